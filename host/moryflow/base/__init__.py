"""The ground floor: paths, the table of built-in plugins, the event bus, foreign errors. It imports nothing of the host."""

from __future__ import annotations

import sys
from types import ModuleType

_PYDANTIC_LOADER = "pydantic.plugin._loader"
"""Where pydantic looks for plugins. Its switch, an environment variable, would be handed on to every child."""


def leave_out_pydantic_plugins() -> None:
    """Keep pydantic from loading plugins of its own in this process.

    At its first schema it imports whatever any installed distribution names as a plugin of it: code that nobody agreed to,
    in every process, on the host's thread. Looking for them alone reads the metadata of every distribution, 3.5 % of a start.
    """
    if _PYDANTIC_LOADER not in sys.modules:
        sys.modules[_PYDANTIC_LOADER] = loader = ModuleType(_PYDANTIC_LOADER)
        vars(loader)["get_plugins"] = tuple

"""The ground floor: paths, the table of built-in plugins, the event bus, foreign errors. It imports no other room."""

from __future__ import annotations

import sys
from types import ModuleType

# The module in which pydantic looks for plugins. Its own switch is an environment variable, which child processes inherit.
_PYDANTIC_LOADER = "pydantic.plugin._loader"


def leave_out_pydantic_plugins() -> None:
    """Keep pydantic from loading pydantic plugins in this process.

    At its first schema pydantic imports every plugin that any installed distribution declares for it: code that nobody
    agreed to, in every process, on the host's thread. Just looking for them reads the metadata of every distribution,
    which is 3.5 % of a start.
    """
    if _PYDANTIC_LOADER not in sys.modules:
        sys.modules[_PYDANTIC_LOADER] = loader = ModuleType(_PYDANTIC_LOADER)
        vars(loader)["get_plugins"] = tuple

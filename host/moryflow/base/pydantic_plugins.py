"""Keep pydantic from loading plugins of its own: they would be foreign code in every process, and slow the start.

At its first schema pydantic imports whatever any installed distribution names as a plugin of it: code that nobody agreed to,
in every process, on the host's thread. Looking for them alone reads the metadata of every distribution, 3.5 % of a start.
"""

from __future__ import annotations

import sys
from types import ModuleType

_LOADER = "pydantic.plugin._loader"
"""Where pydantic looks for them. Its switch, an environment variable, would be handed on to every child."""


def leave_out() -> None:
    """Let pydantic find none in this process."""
    if _LOADER not in sys.modules:
        sys.modules[_LOADER] = loader = ModuleType(_LOADER)
        vars(loader)["get_plugins"] = tuple

"""One generation: the configuration and the plugins as they are at one moment (invariant 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .builtins import AMONG_USER, FINAL_TOOL_AFTER, RESERVED
from .config import Config, load_config
from .kernel.plugins import PluginSet, PluginSettings, load_plugin_set, start
from .loading.plugin_context import plain_context


@dataclass(frozen=True)
class Sources:
    """What a generation is made from; the same for all generations of a host.

    :param only: third-party plugins to load, ``None`` for all.
    """

    home: Path
    environ: Mapping[str, str]
    inline: str | None
    flags: Mapping[str, Any] | None
    safe_mode: bool
    only: frozenset[str] | None
    builtins: Sequence[str]

    async def load(self, previous: PluginSet | None = None) -> tuple[Config, PluginSet]:
        """Read configuration and plugins; what is unchanged is taken over from `previous`.

        :raises ConfigError: the inline configuration is wrong. Nothing in the user's files raises.
        """
        config = load_config(self.home, inline=self.inline, environ=self.environ, flags=self.flags)
        disabled = frozenset(config.get("disabledPlugins") or ())
        plugin_set = load_plugin_set(
            home=self.home,
            builtins=self.builtins,
            settings=PluginSettings(disabled=disabled, only=self.only, safe_mode=self.safe_mode),
            config=config,
            final_after=FINAL_TOOL_AFTER,
            among_user=AMONG_USER,
            previous=previous,
        )
        return config, await start(plugin_set, plain_context(self.home, self.environ), reserved=RESERVED)


def asked_for(plugins: Sequence[str] | None, environ: Mapping[str, str]) -> frozenset[str] | None:
    """Return the third-party plugins that were asked for by argument or ``MORYFLOW_PLUGINS``; ``None`` means all."""
    chosen = environ.get("MORYFLOW_PLUGINS") if plugins is None else ",".join(plugins)
    return None if chosen is None else frozenset(name.strip() for name in chosen.split(",") if name.strip())


def switched_on(given: bool | None, environ: Mapping[str, str], name: str) -> bool:
    """Return a switch: the flag if it was given, else the environment's."""
    return given if given is not None else environ.get(name, "").lower() in ("1", "true", "yes", "on")

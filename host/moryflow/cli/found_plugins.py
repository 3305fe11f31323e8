"""The plugins found on this machine, loaded or not, as all plugin commands see them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import ConfigError
from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.open_host import own_home
from moryflow.cli.options import Flags
from moryflow.cli.terminal import say

if TYPE_CHECKING:
    from moryflow.config import Config
    from moryflow.packages.inventory import Row
    from moryflow.packages.manager import Manager
    from moryflow.plugins.discovery import PluginSettings


class FoundPlugins:
    """Home, configuration and plugins as a host would find them, without loading any."""

    def __init__(self, flags: Flags) -> None:
        from moryflow.config import load_config

        self.flags = flags
        self.home: Path = own_home()
        self.config: Config = load_config(self.home, inline=flags.config, environ=os.environ)

    @property
    def settings(self) -> PluginSettings:
        """Which plugins the user wants loaded, from configuration, flags and environment."""
        from moryflow.runtime.generation import wanted_plugins

        return wanted_plugins(self.config, safe_mode=self.flags.safe_mode or None)

    def rows(self) -> list[Row]:
        from moryflow.packages.inventory import rows

        return rows(self.home, self.config, self.settings)

    def found(self, name: str, rows: list[Row]) -> list[Row]:
        """Return all plugins called `name`: two may claim one name. A package's name stands for the one plugin it brings.

        :raises ConfigError: there is no such plugin.
        """
        from moryflow.plugins.entry_points import normal

        same = [row for row in rows if row.name == name]
        of_package = [row for row in rows if (made := row.package) and normal(made) == normal(name)]
        if same := same or (of_package if len(of_package) == 1 else []):
            return same
        raise self.unknown(name, [row.name for row in rows])

    def unknown(self, name: str, known: list[str]) -> Exception:
        return ConfigError(f"there is no plugin {name!r}{did_you_mean(name, known)}", next_step="moryflow plugin list")

    def manager(self, *, building: bool = False) -> Manager:
        """Return a package manager that reports and asks on standard error; ``-y`` answers its questions."""
        from moryflow.cli.terminal.stdin import confirm
        from moryflow.packages.manager import Manager

        def ask(text: str) -> None:
            confirm(text, self.flags, command=shlex.join(["moryflow", *sys.argv[1:], "-y"]))

        config, disabled = self.config.section(""), self.settings.disabled
        return Manager(self.home, os.environ, self.tell, ask, config, disabled, building)

    def tell(self, text: str) -> None:
        """Show a notice or a screen; ``-q`` leaves it out only together with ``-y``, since a question may follow it."""
        if not self.flags.quiet or not self.flags.yes:
            say(text)

"""The context that a plugin gets during set-up, when only the home is known."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from moryflow_sdk import PluginContext, PluginError

from moryflow.base.paths import make_folder
from moryflow.hooks.plugin_set import Plugin

from .admission import Admission, admit_all
from .user_code import LoadedCode, read_consented
from .watch_registry import Hub


@dataclass(eq=False, repr=False)
class PlainContext:
    """A :class:`moryflow_sdk.PluginContext` of a host that stores no events of plugins."""

    name: str
    home: Path
    config: Any
    environ: Mapping[str, str]
    profile: str
    safe_mode: bool
    code: LoadedCode
    admission: Admission
    hub: Hub

    @property
    def data_dir(self) -> Path:
        folder = self.home / "data" / self.name
        make_folder(folder)
        return folder

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"moryflow.plugin.{self.name}")

    @property
    def code_loader(self) -> PlainContext:
        return self

    def read(self, path: Path) -> bytes:
        """Return the content of a Python file that only its owner may write and that a person consented to."""
        if self.safe_mode:
            raise PluginError("safe mode runs no code of the person's own", where=str(path))
        return read_consented(path, self.home)

    def load(self, path: Path) -> ModuleType:
        """Run such a file as a module of its own."""
        self.read(path)
        return self.code.load(self.name, path, self.home, self.admission)

    def emit(self, type: str, **data: Any) -> None:
        """Write the event to the log: there is no session yet that it could belong to."""
        self.log.info("%s %s", type, data)

    def watch(self, path: Path, changed: Callable[[Path], None]) -> Callable[[], None]:
        """Call `changed` on the loop after changes below `path`, in a host that watches files."""
        return self.hub.watch(self.name, path, changed)

    def invalidate(self) -> None:
        """Ask for a new generation, in a host that reloads."""
        self.hub.asked()


def plain_context(
    home: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    profile: str = "local",
    safe_mode: bool = False,
    code: LoadedCode | None = None,
    admission: Admission | None = None,
    hub: Hub | None = None,
) -> Callable[[Plugin], PluginContext]:
    """Return what makes contexts below `home`.

    :param code: what the plugins of this host have imported in earlier generations.
    :param admission: who says what may be imported; ``None`` asks nobody.
    :param hub: takes what plugins want watched.
    """
    loaded, who, wishes = code or LoadedCode(), admission or admit_all, hub or Hub()

    def make(plugin: Plugin) -> PluginContext:
        context = PlainContext(plugin.name, home, plugin.config, environ, profile, safe_mode, loaded, who, wishes)
        return cast("PluginContext", context)

    return make

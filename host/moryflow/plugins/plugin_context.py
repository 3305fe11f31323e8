"""What a plugin is given while it is set up: its context, the files it may import for a person, what it wants watched."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from moryflow_sdk import PluginContext, PluginError

from moryflow.base.foreign_errors import describe
from moryflow.base.paths import make_folder
from moryflow.hooks.plugin_set import Plugin

from .consent import Admission, Consents, admit_all
from .discovery import Candidate
from .importer import printing_aside
from .sources import Sources, check_owned, digest, forget, load_sources, read_owned


def read_consented(path: Path, home: Path) -> bytes:
    """Return the content of a file that may be imported.

    :raises PluginError: no consent, others can write to it, or it cannot be read.
    """
    if Consents(home).is_waiting(path):
        raise PluginError(
            "it appeared while Moryflow ran and may be an agent's work, so it waits for your yes",
            where=str(path),
            next_step=f"moryflow tool allow {path.name}",
        )
    data = read_owned(path)
    try:
        check_owned(path)
    except OSError as error:
        raise PluginError(f"it cannot be read: {error.strerror}", where=str(path)) from error
    return data


class LoadedCode:
    """The files that the plugins of one host have imported, over all its generations."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, Path], tuple[str, ModuleType]] = {}

    def load(self, owner: str, path: Path, home: Path, admission: Admission = admit_all) -> ModuleType:
        """Return the file at `path` as a module for the plugin `owner`; one that has not changed is not run again.

        :raises PluginError: it may not be imported, or its code raised.
        """
        data = read_consented(path, home)
        content = digest({path.name: data})
        key = (owner, path)
        known = self._loaded.get(key)
        if known is not None and known[0] == content:
            return known[1]
        loud = admission.code(Candidate(path.stem, "user", str(path), str(path), file=str(path)), content)
        try:
            with printing_aside(loud=loud):
                module = load_sources(f"{owner}_{path.stem}", Sources(path, {str(path): data}, content))
        except BaseException as error:  # whatever a person's file raises, SystemExit too, is told and not passed on
            raise _failure(error, path) from error
        self._loaded[key] = (content, module)
        if known is not None:
            forget(known[1].__name__)
        return module

    def prune(self) -> None:
        """Let go of the modules whose files are gone."""
        for key in [key for key in self._loaded if not key[1].exists()]:
            forget(self._loaded.pop(key)[1].__name__)


def _failure(error: BaseException, path: Path) -> PluginError:
    text, file, line = describe(error, str(path))
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({error.code!r}) while it was imported"
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f'name {error.name} in a "# /// script" block of the file, or install it where Moryflow is installed'
    return PluginError(text, where=f"{file or path}:{line}" if line else str(path), next_step=hint)


Watches = dict[tuple[str, Path], Callable[[Path], None]]


class WatchRegistry:
    """What plugins want watched, by plugin and path. A host that does not reload never looks at it.

    :ivar changed: called when the wishes have changed; `asked` when a plugin asks for a new generation. From any thread.
    """

    def __init__(self) -> None:
        self.watches: Watches = {}
        self.changed: Callable[[], None] = lambda: None
        self.asked: Callable[[], None] = lambda: None

    def watch(self, plugin: str, path: Path, tell: Callable[[Path], None]) -> Callable[[], None]:
        """Tell `plugin` of changes below `path`; return what ends that. A second wish takes the place of the first."""
        key = (plugin, path.absolute())
        self.watches[key] = tell
        self.changed()

        def end() -> None:
            if self.watches.get(key) is tell:
                del self.watches[key]
                self.changed()

        return end


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
    watch_registry: WatchRegistry

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
        return self.watch_registry.watch(self.name, path, changed)

    def invalidate(self) -> None:
        """Ask for a new generation, in a host that reloads."""
        self.watch_registry.asked()


def plain_context(
    home: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    profile: str = "local",
    safe_mode: bool = False,
    code: LoadedCode | None = None,
    admission: Admission | None = None,
    watch_registry: WatchRegistry | None = None,
) -> Callable[[Plugin], PluginContext]:
    """Return what makes contexts below `home`.

    :param code: what the plugins of this host have imported in earlier generations.
    :param admission: who says what may be imported; ``None`` asks nobody.
    :param watch_registry: takes what plugins want watched.
    """
    loaded, who, wishes = code or LoadedCode(), admission or admit_all, watch_registry or WatchRegistry()

    def make(plugin: Plugin) -> PluginContext:
        context = PlainContext(plugin.name, home, plugin.config, environ, profile, safe_mode, loaded, who, wishes)
        return cast("PluginContext", context)

    return make

"""Python files that plugins import for a person: consented to, safe to run, and run once per content."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from moryflow_sdk import PluginError

from moryflow.hooks.call import describe

from .admission import Admission, admit_all
from .consent import Consents
from .discovery import Candidate
from .import_output import printing_aside
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
        admission.code(Candidate(path.stem, "user", str(path), str(path), file=str(path)), content)
        try:
            with printing_aside():
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

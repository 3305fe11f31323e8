"""Find plugins without importing any: built-ins by name, entry points of installed packages, files of the user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moryflow_sdk import PluginError

from moryflow.kernel.records import LoadFailure, Tier

from .entry_points import Found, installed
from .sources import check_owned

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Candidate:
    """A plugin that was found.

    :param source: where it comes from, for people.
    :param target: what to load: ``module``, ``module:attribute``, or a path.
    :param file: the file that names it, for errors before its own file is known; likewise `line`.
    :param manifest: its ``plugin.toml``, if it has one.
    :param problem: why it cannot be loaded although it was found.
    """

    name: str
    tier: Tier
    source: str
    target: str
    version: str = ""
    file: str = ""
    line: int = 0
    manifest: str = ""
    problem: LoadFailure | None = None


def discover(home: Path, builtins: Sequence[str]) -> Iterator[Candidate]:
    """Yield every plugin there is: built-ins in the given order, installed ones by name, the user's own by name."""
    for dotted in builtins:
        yield Candidate(dotted.rpartition(".")[2], "builtin", dotted, dotted)
    for found in sorted(installed(home / "cache"), key=lambda item: (item.name, item.dist)):
        yield _installed(found)
    yield from _files(home / "plugins")


def _installed(found: Found) -> Candidate:
    return Candidate(
        name=found.name,
        tier="installed",
        source=f"{found.dist} {found.version} ({found.value})".replace("  ", " "),
        target=found.value,
        version=found.version,
        file=found.file,
        line=found.line,
        manifest=found.manifest,
        problem=_bad_name(found.name, found.file),
    )


def _files(folder: Path) -> Iterator[Candidate]:
    """Yield ``plugins/*.py`` and ``plugins/NAME/__init__.py``. Names that start with a dot or underscore are left out."""
    try:
        check_owned(folder, folder.stat())
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except (OSError, PluginError) as error:
        unsafe = _refused(error)
        yield Candidate("plugins", "user", str(folder), str(folder), file=str(folder), problem=unsafe)
        return
    for path in paths:
        package = (path / "__init__.py").is_file()
        if path.name.startswith((".", "_")) or not (package or path.suffix == ".py"):
            continue
        name = path.name if package else path.stem
        toml = path / "plugin.toml"
        yield Candidate(
            name=name,
            tier="user",
            source=str(path),
            target=str(path),
            file=str(path / "__init__.py" if package else path),
            manifest=str(toml) if package and toml.is_file() else "",
            problem=_bad_name(name, str(path)),
        )


def _bad_name(name: str, file: str) -> LoadFailure | None:
    if _NAME.fullmatch(name):
        return None
    return LoadFailure("discover", f"{name!r} is not a plugin name: letters, digits, - and _", file=file)


def _refused(error: Exception) -> LoadFailure:
    if isinstance(error, PluginError):
        return LoadFailure("discover", error.message, file=error.where, hint=error.next_step)
    return LoadFailure("discover", f"the folder cannot be read: {error}")

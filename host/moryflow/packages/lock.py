"""``plugins.lock`` in the home: each installed package, its origin, its hash, and what the user agreed to.

Every start reports what is missing or has another version; the content of the files is compared only on request.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from urllib.parse import unquote, urlsplit

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import try_lock

from moryflow.base.paths import make_folder
from moryflow.plugins.entry_points import installed, normal

from . import InstallError

if TYPE_CHECKING:
    from .distributions import Distribution, PluginPackage


Kind = Literal["index", "folder", "editable", "git", "archive", "file", "claude"]
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_SSH = r"([A-Za-z0-9._-]+@[A-Za-z0-9._-]+):(?!/)(.+)"
_GIT_SCHEMES = ("git+https://", "git+ssh://", "git+file://")
_HOSTS = ("https://github.com/", "https://gitlab.com/", "https://codeberg.org/", "https://bitbucket.org/")
FORMS = "a name, ./FOLDER, -e ./FOLDER, git+https://…, FILE.whl, FILE.py or claude:PATH"


class PackageOrigin(NamedTuple):
    """Where a plugin is installed from.

    :param text: the argument for the installer: a requirement, an absolute path or a ``git+…`` address.
    """

    kind: Kind
    text: str

    @property
    def path(self) -> Path:
        return Path(self.text)


def origin_of(given: str, *, editable: bool = False) -> PackageOrigin:
    """Return the origin that `given`, as the user typed it, names.

    :raises ConfigError: it names nothing that can be installed, or nothing exists at that path.
    """
    if given.startswith("claude:"):
        return PackageOrigin("claude", given.removeprefix("claude:"))
    if given.startswith("file://") and not given.partition("#")[0].endswith(".git"):
        given = unquote(urlsplit(given).path)
    address = None if editable else _git_address(given)
    if address is not None:
        return PackageOrigin("git", address)
    if "://" in given:
        raise ConfigError(f"{given!r} is not an address of a git repository", next_step=f"give {FORMS}")
    if editable or _looks_like_path(given):
        try:
            path = Path(given).expanduser().resolve()
            there = path.exists()
        except (RuntimeError, ValueError, OSError) as error:  # an unknown home, a NUL, a name that is too long
            raise ConfigError(f"{given!r} is not a path: {error}", next_step=f"give {FORMS}") from error
        if not there:
            raise ConfigError("there is nothing to install", where=str(path), next_step=f"give {FORMS}")
        if path.is_dir():
            if not any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
                problem = "this folder is not a Python project: it has neither pyproject.toml nor setup.py"
                raise ConfigError(problem, where=str(path), next_step="moryflow new plugin NAME")
            return PackageOrigin("editable" if editable else "folder", str(path))
        if editable:
            raise ConfigError("-e takes the folder of a project", where=str(path), next_step="moryflow plugin install FILE")
        if path.suffix == ".py":
            return PackageOrigin("file", str(path))
        if path.name.endswith(_ARCHIVES):
            return PackageOrigin("archive", str(path))
        raise ConfigError("this is neither a wheel, an archive nor a Python file", where=str(path), next_step=f"give {FORMS}")
    return PackageOrigin("index", _requirement(given))


def _git_address(given: str) -> str | None:
    if ssh := re.fullmatch(_SSH, given):
        return f"git+ssh://{ssh[1]}/{ssh[2]}"
    bare = given.partition("#")[0].partition("?")[0]
    if given.startswith(("https://", "ssh://", "file://")) and (bare.endswith(".git") or given.startswith(_HOSTS)):
        given = f"git+{given}"
    if not given.startswith("git+"):
        return None
    if not given.startswith(_GIT_SCHEMES):
        raise ConfigError(f"{given!r} is not fetched safely", next_step="use git+https:// or git+ssh://")
    return given


def _looks_like_path(given: str) -> bool:
    named = os.sep in given or given.startswith((".", "~")) or given.endswith((".py", *_ARCHIVES))
    return named or (Path(given).suffix != "" and os.path.isfile(given))  # noqa: PTH113 - no error for a name that is too long


def _requirement(given: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(given)
    except InvalidRequirement as error:
        raise ConfigError(f"{given!r} is not the name of a package", next_step=f"give {FORMS}") from error
    if wanted.url:
        raise ConfigError(f"{given!r} names an address", next_step=f"give the address alone: {wanted.url}")
    return str(wanted)


class Busy(InstallError):
    """Another installation is running, or the installer of one that was killed still is."""


class InstallLock:
    """The lock of an installation. Installers inherit it, so that it is held until they end even if this process is killed."""

    def __init__(self, home: Path) -> None:
        self._file = home / ".installing.lock"
        self.descriptor = -1

    def __enter__(self) -> InstallLock:
        try:
            make_folder(self._file.parent)
            self.descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InstallError(f"it cannot be written: {error.strerror}", where=str(error.filename or self._file)) from error
        if not try_lock(self.descriptor):
            self.__exit__()
            raise Busy("another installation is running", where=str(self._file), next_step="wait for it, then try again")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


FILE = "plugins.lock"
_VERSION = 1


class Locked(NamedTuple):
    """One installation that the user agreed to: a line of the lock.

    :param name: the name of the distribution, or ``plugins/NAME.py`` for a file of the home.
    :param hash: the hash of the installed files; empty for an editable installation, whose files are meant to change.
    :param plugins: by name, the hooks, tools, services and capabilities that the user saw.
    """

    name: str
    version: str
    kind: Kind
    origin: str
    hash: str
    plugins: Mapping[str, Mapping[str, Any]] = {}
    commit: str = ""

    @property
    def source(self) -> PackageOrigin:
        return PackageOrigin(self.kind, self.origin)

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


@dataclass(frozen=True)
class InstallResult:
    """The result of one installation.

    :param action: ``installed``, ``unchanged`` or ``updated``.
    :param also: name and version of the packages that were installed besides.
    :param changes: the differences from what the user agreed to before, one line each.
    """

    action: str
    entry: Locked
    also: tuple[tuple[str, str], ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def plugins(self) -> tuple[str, ...]:
        return tuple(self.entry.plugins)


class Interrupted(NamedTuple):
    """A note that an installation has begun: the package, and the names that were not installed before."""

    name: str
    new: list[str]


class Lockfile:
    """Reads and writes the lock. Only commands that the user typed write it."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    def read(self) -> dict[str, Locked]:
        """Return the lines of the lock, by normalised name.

        :raises ConfigError: the file cannot be read, or a newer Moryflow wrote it.
        """
        return self._content()[0]

    def interrupted(self) -> Interrupted | None:
        """Return the installation that began and has neither ended nor been taken back; ``None`` while one still runs."""
        noted = self._content()[1]
        if noted is None:
            return None
        try:
            with InstallLock(self.path.parent):
                return noted
        except Busy:
            return None

    def _content(self) -> tuple[dict[str, Locked], Interrupted | None]:
        try:
            content = json.loads(self.path.read_bytes())
            if content["v"] != _VERSION:
                raise ConfigError("it was written by a newer Moryflow", where=str(self.path), next_step="update moryflow")
            known = {_key(name): _entry(name, item) for name, item in content["installed"].items()}
            return known, Interrupted(*content["installing"]) if "installing" in content else None
        except FileNotFoundError:
            return {}, None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            hint = "restore it, or move it away and agree again: moryflow plugin enable NAME"
            line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            why = f": {error}" if isinstance(error, ValueError) else ""
            raise ConfigError(f"plugins.lock cannot be read{why}", where=f"{self.path}{line}", next_step=hint) from error

    def put(self, entry: Locked) -> None:
        """Add or replace the line of an installation."""
        self._change(lambda known: {**known, _key(entry.name): entry})

    def remove(self, name: str) -> None:
        """Remove the line of an installation."""
        self._change(lambda known: {key: item for key, item in known.items() if key != _key(name)})

    def note(self, installing: Interrupted | None) -> None:
        """Note an installation that begins; ``None`` when it was taken back. A change of the lines removes the note too."""
        self._change(lambda known: known, installing)

    def _change(self, change: Callable[[dict[str, Locked]], dict[str, Locked]], installing: Interrupted | None = None) -> None:
        from moryflow.base.atomic_write import locked, write_atomically

        with locked(self.path):
            known = change(self.read())
            rows = {item.name: dict(zip(item._fields[1:], item[1:], strict=True)) for _, item in sorted(known.items())}
            more = {"installing": installing} if installing else {}
            text = json.dumps({"v": _VERSION, "installed": rows, **more}, indent=2, ensure_ascii=False)
            write_atomically(self.path, f"{text}\n".encode())


def _entry(name: str, item: Mapping[str, Any]) -> Locked:
    with suppress(TypeError, AttributeError):
        entry = Locked(name=name, **item)
        lists = [asked.get(part, []) for asked in entry.plugins.values() for part in ("hooks", "tools", "services")]
        tables = [asked.get("capabilities", {}) for asked in entry.plugins.values()]
        typed = ((str, entry[1:5]), (list, lists), (dict, tables))
        if entry.kind in get_args(Kind) and all(isinstance(value, kind) for kind, values in typed for value in values):
            return entry
    raise ValueError(f"its entry {name!r} is not as Moryflow writes it")


def entry_for(package: PluginPackage, origin: PackageOrigin, *, commit: str = "") -> Locked:
    """Return the line of the lock for a package that the user has just agreed to."""
    plugins = {card.name: card.asks for card in package.cards}
    return Locked(package.name, package.version, origin.kind, origin.text, package.digest, plugins, commit)


def plugin_named(known: Mapping[str, Locked], name: str) -> Locked | None:
    """Return the installation called `name`, or the one that has a plugin of that name."""
    if (found := known.get(_key(name))) is not None:
        return found
    return next((item for item in known.values() if name in item.plugins), None)


def _key(name: str) -> str:
    return name if "/" in name else normal(name)


class Drift(NamedTuple):
    """One difference between the lock and what is installed.

    :param kind: ``missing``, ``version``, ``content``, ``unlocked`` or ``interrupted``.
    """

    name: str
    kind: str
    text: str
    next_step: str


def drifts(home: Path, *, content: bool = True) -> list[Drift]:
    """Return all differences.

    :param content: compare the content of the installed files too, which reads all of them.
    :raises ConfigError: the lock cannot be read.
    """
    lock, points = Lockfile(home), installed(home / "cache")
    known, there = lock.read(), dict[str, "Distribution"]()
    if content:
        from .distributions import installed_packages

        there = installed_packages()
    versions = {normal(point.dist): point.version for point in points}
    found = [drift for entry in known.values() if (drift := _drift(entry, versions, there, home, content=content))]
    noted = lock.interrupted()
    if noted is not None:
        text = f"the installation of {noted.name} was interrupted, and it may be incomplete"
        found.insert(0, Drift(noted.name, "interrupted", text, "moryflow plugin sync"))
    for item in points if known else ():
        if normal(item.dist) not in known and (noted is None or normal(item.dist) not in noted.new):
            hint = f"moryflow plugin enable {item.name}, or moryflow plugin uninstall {item.name}"
            text = f"{item.dist} {item.version} is installed, but nobody agreed to it (it is not in plugins.lock)"
            found.append(Drift(item.dist, "unlocked", text, hint))
    return found


def _drift(
    entry: Locked, versions: Mapping[str, str], there: Mapping[str, Distribution], home: Path, *, content: bool
) -> Drift | None:
    sync, key = "moryflow plugin sync", normal(entry.name)
    if entry.kind == "claude":
        folder = folder_of(home, entry.name)
        if not folder.is_dir():
            return Drift(entry.name, "missing", f"{entry.name} is in plugins.lock, but not there", sync)
        text = f"{entry.name} is not what was agreed to: its files differ from plugins.lock"
        return Drift(entry.name, "content", text, sync) if content and folder_digest(folder) != entry.hash else None
    if entry.is_file:
        missing = not (home / entry.name).exists()
        return Drift(entry.name, "missing", f"{entry.name} is in plugins.lock, but not there", sync) if missing else None
    if key not in versions:
        return Drift(entry.name, "missing", f"{entry.name} {entry.version} is in plugins.lock, but not installed", sync)
    version = versions[key]
    accept = f"{sync}, or moryflow plugin enable {next(iter(entry.plugins), entry.name)} to agree to it"
    if version != entry.version and entry.kind != "editable":
        text = f"{entry.name} {version} is installed, but plugins.lock says {entry.version}"
        return Drift(entry.name, "version", text, accept)
    if key in there and there[key].package().digest != entry.hash:
        text = f"{entry.name} {version} is not what was agreed to: its files differ from plugins.lock"
        return Drift(entry.name, "content", text, accept)
    return None


FOLDER = "claude-plugins"
MAX_FILES, MAX_BYTES = 5000, 64 * 1024 * 1024


def folder_of(home: Path, name: str) -> Path:
    """Return where the files of the plugin are that the lock calls `name`: ``claude/reviewer``."""
    return home / FOLDER / name.rpartition("/")[2]


def folder_digest(folder: Path) -> str:
    """Return one hash of all files of a folder."""
    total = hashlib.sha256()
    for name, data in sorted(folder_files(folder).items()):
        total.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def folder_files(folder: Path) -> dict[str, bytes]:
    """Return the content of the files of a folder, by relative path; git's own and links are left out.

    :raises InstallError: there are too many, or they are too large.
    """
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if ".git" in name.parts or path.is_symlink() or not path.is_file():
            continue
        found[str(name)] = path.read_bytes()
        if len(found) > MAX_FILES or sum(map(len, found.values())) > MAX_BYTES:
            raise InstallError(f"it has more than {MAX_FILES} files or {MAX_BYTES // 2**20} MiB", where=str(folder))
    return found

"""What the package commands share: fetching, installing, putting back, and removal; and plugins in one file."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import PluginError

from moryflow.base.builtins import BUILTINS
from moryflow.plugins.consent import Consents
from moryflow.plugins.discovery import Candidate, discover, is_reserved
from moryflow.plugins.entry_points import normal
from moryflow.plugins.last_seen import GateMemory, forget
from moryflow.plugins.sources import read_owned

from . import InstallError
from .distributions import PluginPackage, installed_packages, package_in_folder, package_in_wheel, start_files
from .installer import HOST, Installer
from .inventory import Row
from .lock import FILE, InstallLock, Interrupted, Locked, Lockfile, PackageOrigin, entry_for, plugin_named

if TYPE_CHECKING:
    from moryflow.plugins.preflight.prober import ProbeVerdict

# Seconds that one plugin may take in the probe, while the user waits.
PROBE_TIMEOUT = 10.0


class DoesNotLoad(InstallError):
    """A plugin that was to be installed does not load (exit code 3). `found` is the verdict on each plugin of the package."""

    code = "does_not_load"

    def __init__(self, message: str, *, found: Mapping[str, ProbeVerdict], next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.found = found


@dataclass(frozen=True)
class Ready:
    """A package that was read and may be installed, and the origin that the installer gets."""

    package: PluginPackage
    origin: PackageOrigin
    commit: str = ""


@dataclass
class Manager:
    """Installs packages, and checks and tries what was installed.

    :param tell: shows a line or a screen to the user.
    :param ask: asks a question, and raises unless the answer is yes.
    :param config: the user's settings as one object.
    :param disabled: disabled plugins; no host would load them, so they are not tried.
    :param building: whether a package from an index may be built from its sources.
    """

    home: Path
    environ: Mapping[str, str]
    tell: Callable[[str], None]
    ask: Callable[[str], None]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    disabled: Collection[str] = ()
    building: bool = False

    @property
    def lock(self) -> Lockfile:
        return Lockfile(self.home)

    @cached_property
    def installer(self) -> Installer:
        return Installer(self.environ, self.building)

    # ---------------------------------------------------------------- before the consent

    def read(self, origin: PackageOrigin, folder: Path) -> Ready:
        """Fetch a package into `folder` and read it; nothing is installed or imported.

        :raises InstallError: it cannot be fetched, or must not be installed, even with the user's consent.
        """
        if origin.kind in ("folder", "editable", "git"):
            self.tell(f"moryflow: building {origin.text}, which runs its build script")
        if origin.kind == "editable":
            ready = Ready(package_in_folder(origin.path), origin)
        else:
            wheel, commit = self.installer.fetch(origin, folder)
            ready = Ready(package_in_wheel(wheel), PackageOrigin("archive", str(wheel)), commit)
        package = ready.package
        if not package.cards:
            hint = "if it is a library, install it with pip"
            raise InstallError(f"{package.name} brings no plugin: no entry point in moryflow.plugins", next_step=hint)
        if package.start_files:
            problem = f"{package.name} brings {', '.join(package.start_files)}, which Python would run at every start"
            raise InstallError(problem, next_step="ask its author what it is for")
        there = installed_packages().get(normal(package.name))
        had = there.plugins if there is not None else ()  # an update does not have to undo what is so already
        self.refuse_taken({card.name for card in package.cards}.difference(had), package=package.name)
        return ready

    def refuse_taken(self, names: Collection[str], *, package: str = "", file: str = "") -> None:
        """Refuse plugins with the name of a built-in or of another plugin: only one of the two would be loaded.

        :param package: the package that brings them, or `file`, where one will be.
        :raises InstallError: naming the other.
        """
        for name in names:
            if is_reserved(name, BUILTINS):
                step = "ask its author for another name, or give the file another one"
                raise InstallError(f"the plugin name {name!r} belongs to a built-in plugin", next_step=step)
        for other in discover(self.home, BUILTINS):
            own = other.target == file or (package and normal(other.package) == normal(package))
            if other.tier != "builtin" and other.name in names and not own:
                owner = f"the package {other.package}" if other.package else other.source
                raise InstallError(
                    f"the plugin name {other.name!r} is taken by {owner}, and only one of them would be loaded",
                    next_step=f"moryflow plugin uninstall {other.name}, then install this one",
                )

    def plan(self, ready: Ready) -> list[tuple[str, str]]:
        """Return name and version of the packages that would be installed besides the plugin.

        :raises InstallError: they do not fit what Moryflow and the other plugins run on.
        """
        own = ready.package.name
        return [item for item in self.installer.plan(ready.origin, own) if normal(item[0]) != normal(own)]

    # ---------------------------------------------------------------- after the consent

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Allow no other installation or removal within the block.

        :raises Busy: another one is running.
        """
        with InstallLock(self.home) as held:
            self.installer.lock_descriptor = held.descriptor
            try:
                yield
            finally:
                self.installer.lock_descriptor = -1  # the descriptor's number may be reused

    def put(self, ready: Ready, source: PackageOrigin, also: Sequence[tuple[str, str]]) -> Locked:
        """Install the package that was shown, try it, and write it to the lock; return its line of the lock.

        If this fails, the version before is put back. If it is interrupted, the lock has a note of it.

        :param source: where it comes from, as the user named it.
        :raises DoesNotLoad: it does not load.
        :raises InstallError: the installed package is not the one shown, or a new ``.pth`` came along.
        """
        name = ready.package.name
        before = {known: item.version for known, item in installed_packages().items()}
        with self.exclusive():
            new = [each for each in map(normal, (name, *dict(also))) if each not in before]
            self.lock.note(Interrupted(name, new))
            try:
                package = self._install(ready, also)
                notes = self._try(package.name, package.version, updated=normal(name) in before)
            except Exception as error:
                self._put_back(name, before, error)
                raise
            entry = entry_for(package, source, commit=ready.commit)
            self.lock.put(entry)
        came = (item for each, item in installed_packages().items() if each not in before and each != normal(name))
        notes += [
            f"{plugin} came along and is a plugin too: moryflow plugin info {plugin}" for x in came for plugin in x.plugins
        ]
        for note in notes:
            self.tell(f"moryflow: {note}")
        return entry

    def _install(self, ready: Ready, also: Sequence[tuple[str, str]]) -> PluginPackage:
        shown, starts = ready.package, start_files()
        self.installer.install(ready.origin, shown.name, also)
        found = installed_packages().get(normal(shown.name))
        if found is not None and shown.digest and found.package().digest != shown.digest:
            self.installer.install(ready.origin, shown.name, also, again=True)
            found = installed_packages().get(normal(shown.name))
        if found is None:
            raise InstallError(f"{shown.name} is not there after its installation", next_step="moryflow doctor")
        package = found.package()
        if shown.digest and package.digest != shown.digest:
            raise InstallError(f"what was installed as {shown.name} is not what was shown")
        own = {found.site / name for name in found.start_files()} if found.direct.editable else set[Path]()
        if new_start_files := sorted(start_files() - starts - own):
            for path in new_start_files:
                path.unlink()  # at once: pip, too, would run it
            names = ", ".join(map(str, new_start_files))
            problem = f"{names} would be run by Python at every start; the file was removed and the installation undone"
            raise InstallError(problem, next_step="ask the author of the plugin what it is for")
        return replace(package, digest=shown.digest)

    def _try(self, name: str, version: str, *, updated: bool) -> list[str]:
        """Try the plugins of a package as it is installed now; return notes for the user."""
        importlib.invalidate_caches()
        mine = [candidate for candidate in discover(self.home, BUILTINS) if normal(candidate.package) == normal(name)]
        wanted = [candidate for candidate in mine if candidate.name not in self.disabled]
        found = self.probe(wanted, f"{name} {version}".rstrip(), updated=updated)
        notes = [f"{each}: {note}" for each, verdict in found.items() for note in verdict.notes]
        return notes + [f"{each.name} is disabled, so it was not tried" for each in mine if each not in wanted]

    def probe(self, candidates: Sequence[Candidate], what: str, *, updated: bool) -> dict[str, ProbeVerdict]:
        """Return the probe's verdicts by plugin. A new plugin may lack settings: the user sets them after installing it.

        :raises DoesNotLoad: a plugin of `what` does not load.
        """
        verdicts = probe_candidates(candidates, self.home, self.config)
        found = {each.name: verdict for each, verdict in zip(candidates, verdicts, strict=True)}
        bad: list[str] = []
        for name, verdict in found.items():
            unset = updated and verdict.stage == "register" and bool(verdict.notes)
            if not verdict.ok or verdict.failed_hooks or unset:
                place = f"{verdict.place}: " if verdict.place and not verdict.ok else ""
                # Without the hint to check the plugin where it is: it will not stay there.
                error = verdict.error or "; ".join(note.partition("; next: ")[0] for note in verdict.notes)
                bad.append(f"  {name} failed ({verdict.stage}): {place}{error}")
        if bad:
            hint = next((verdict.hint for verdict in found.values() if verdict.hint), "")
            alone = "ask its author for a version that loads; plugins in disabledPlugins need not load"
            raise DoesNotLoad("\n".join([f"{what} does not load:", *bad]), found=found, next_step=hint or alone)
        return found

    # ---------------------------------------------------------------- putting back

    def _put_back(self, name: str, before: Mapping[str, str], error: Exception) -> None:
        """Install what was installed before, from where the lock says that it came from, and remove what came along."""
        now, own = installed_packages(), normal(name)
        entry = self.lock.read().get(own) if own in before else None
        changed = {each: version for each, version in before.items() if each in now and now[each].version != version}
        try:
            if new := [each for each in now if each not in before]:
                self.installer.uninstall(*new)
            if entry is not None:
                self.restore(entry)
            for each, version in changed.items():
                if entry is None or each != own:
                    self.installer.install(PackageOrigin("index", f"{each}=={version}"), each)
        except InstallError as other:
            problem = f"{error}\n{name} cannot be put back as it was: {other.message}"
            raise InstallError(problem, where=other.where, next_step="moryflow plugin sync") from error
        self.lock.note(None)

    def restore(self, entry: Locked) -> None:
        """Install the package of one line of the lock.

        :raises InstallError: its origin no longer has what the user agreed to.
        """
        with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
            ready = self.read(_pinned_origin(entry), Path(folder))
            check_agreed(entry, ready.package.digest, entry.name)
            self._install(ready, self.plan(ready))


def check_agreed(entry: Locked, digest: str, name: str) -> None:
    """Check that an origin still has what the user agreed to.

    :raises InstallError: it has something else.
    """
    if digest != entry.hash:
        problem = f"{entry.origin} no longer matches plugins.lock"
        raise InstallError(problem, where=FILE, next_step=f"moryflow plugin update {name}")


def _pinned_origin(entry: Locked) -> PackageOrigin:
    if entry.kind == "index":
        return PackageOrigin("index", f"{entry.name}=={entry.version}")
    if entry.kind == "git" and entry.commit:
        address, hash_sign, rest = entry.origin.partition("#")
        scheme, _, path = address.partition("://")
        head, at, _ = path.rpartition("@")
        bare = head if at and "/" in head else path
        return PackageOrigin("git", f"{scheme}://{bare}@{entry.commit}{hash_sign}{rest}")
    return entry.source


def probe_candidates(candidates: Sequence[Candidate], home: Path, config: Mapping[str, Any]) -> list[ProbeVerdict]:
    """Return the verdict on each candidate. A candidate with a problem is not run; its problem is the verdict."""
    from moryflow.plugins.preflight.policy import probe_all
    from moryflow.plugins.preflight.prober import ProbeVerdict

    rest = [candidate for candidate in candidates if candidate.problem is None]
    found = dict(zip(rest, probe_all(rest, home=home, config=config, seconds=PROBE_TIMEOUT), strict=True))
    for candidate in candidates:
        if (problem := candidate.problem) is not None:
            place = (problem.file, problem.line, problem.hint)
            found[candidate] = ProbeVerdict(False, problem.stage, problem.message, *place)
    return [found[candidate] for candidate in candidates]


# ---------------------------------------------------------------- plugins in one file


FOLDER = "plugins"
ASIDE = "removed"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def content_of(path: Path) -> bytes:
    """Return the content of a file that only its owner can change.

    :raises InstallError: someone else can change it, or it does not exist.
    """
    try:
        return read_owned(path)
    except PluginError as error:
        raise InstallError(error.message, where=error.where, next_step=error.next_step) from error


def plugin_name(path: Path) -> str:
    """Return the name of the plugin in a file.

    :raises InstallError: the file's name is not a plugin name.
    """
    if not _NAME.fullmatch(path.stem):
        problem = f"{path.stem!r} is not a plugin name: letters, digits, - and _"
        raise InstallError(problem, where=str(path), next_step="rename the file")
    return path.stem


def file_digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_new(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may read.

    :raises FileExistsError: the file exists.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write(data)


def put_file(home: Path, name: str, data: bytes) -> Path:
    """Write a plugin into the home and return its path; a copy of a different file there is put aside first."""
    from moryflow.base.atomic_write import write_atomically

    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{name}.py"
    if target.exists() and target.read_bytes() != data:
        write_new(_place_aside(home, target), target.read_bytes())  # a copy: whatever happens now, the plugin still exists
    write_atomically(target, data)
    target.chmod(0o600)
    return target


def _place_aside(home: Path, path: Path) -> Path:
    """Return a new path in the home for a removed file or folder, from which nothing is loaded."""
    aside = home / ASIDE
    aside.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        target = aside / f"{path.stem}-{stamp}{f'-{number}' if number else ''}{path.suffix}"
        if not os.path.lexists(target):
            return target
    raise InstallError("there are too many removed plugins of this name", where=str(aside), next_step=f"empty {aside}")


def file_entry(name: str, origin: Path, data: bytes) -> Locked:
    """Return the line of the lock for a plugin in one file."""
    plugins = {name: {"manifest": False, "hooks": [], "tools": [], "services": [], "capabilities": {}}}
    return Locked(f"{FOLDER}/{name}.py", "", "file", str(origin), file_digest(data), plugins)


@dataclass(frozen=True)
class UninstallTarget:
    """What to remove under a name: a distribution, which may have several plugins, or a file or folder of the home."""

    name: str
    plugins: tuple[str, ...]
    path: Path | None = None


def target_of(name: str, rows: list[Row], manager: Manager) -> UninstallTarget | None:
    """Return what would be removed under `name`; ``None`` if nothing has that name.

    :raises InstallError: it is a built-in.
    """
    for row in sorted(rows, key=lambda row: row.record.tier == "builtin"):
        candidate = row.candidate
        if candidate is None or row.name != name:
            continue
        if candidate.tier == "user":
            return UninstallTarget(name, (name,), Path(candidate.target))
        if candidate.tier == "installed":
            return _distribution(candidate.package)
        raise InstallError(f"{name} is built in", next_step=f"moryflow plugin disable {name}")
    if normal(name) in installed_packages() and (found := _distribution(name)).plugins:
        return found
    entry = plugin_named(manager.lock.read(), name)
    return UninstallTarget(entry.name, tuple(entry.plugins)) if entry else None


def _distribution(name: str) -> UninstallTarget:
    item = installed_packages().get(normal(name))
    if normal(name) == HOST:
        raise InstallError("Moryflow does not uninstall itself", next_step="python3 -m pip uninstall moryflow")
    return UninstallTarget(name, item.plugins if item else ())


def remove(target: UninstallTarget, manager: Manager) -> str:
    """Remove `target` and forget its loads, gates and consents; its settings and its data stay.

    :returns: where a file or folder of the home is now; empty for a distribution.
    :raises InstallError: it cannot be removed.
    """
    aside = ""
    if target.path is not None:
        Consents(manager.home).give(target.path)  # a removed item must not wait for consent
        aside = str(target.path.rename(_place_aside(manager.home, target.path)))
        manager.lock.remove(f"plugins/{target.path.name}")
    else:
        with manager.exclusive():
            if normal(target.name) in installed_packages():
                manager.installer.uninstall(target.name)
            manager.lock.remove(target.name)
    memory = GateMemory(manager.home)
    for plugin in target.plugins:
        memory.forget(plugin)
        forget(manager.home, plugin)
    memory.save()
    return aside

"""What the package commands share: installing with rollback, plugins in one file, removal, and the trial of new code."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import PluginError

from moryflow.base.builtins import BUILTINS
from moryflow.hooks.plugin_set import LoadFailure
from moryflow.plugins.consent import Consents
from moryflow.plugins.discovery import Candidate, discover, is_reserved
from moryflow.plugins.entry_points import normal
from moryflow.plugins.last_seen import GateMemory, forget, recall
from moryflow.plugins.sources import read_owned

from . import InstallError
from .distributions import PluginPackage, installed_packages, package_in_wheel, start_files, wheel_names
from .installer import HOST, Installer, host_pins, refuse_bad, refuse_breaking, refuse_conflicts, refuse_replacing
from .inventory import Row
from .lock import Locked, Lockfile, PackageOrigin, entry_for, plugin_named
from .rollback import InstallLock, Rollback, recover

if TYPE_CHECKING:
    from moryflow.plugins.preflight.prober import ProbeVerdict


@dataclass
class Manager:
    """Installs packages, and checks and tries what was installed.

    :param tell: shows a line or a screen to the user.
    :param ask: asks a question, and raises unless the answer is yes.
    :param trial: tries the installed plugins.
    :param building: whether a package from an index may be built from its sources.
    :param downgrading: whether a package may be replaced by an older version.
    """

    home: Path
    environ: Mapping[str, str]
    tell: Callable[[str], None]
    ask: Callable[[str], None]
    trial: Trial
    building: bool = False
    downgrading: bool = False

    @property
    def lock(self) -> Lockfile:
        return Lockfile(self.home)

    @cached_property
    def pins(self) -> dict[str, str]:
        return host_pins()

    @cached_property
    def installer(self) -> Installer:
        return Installer(self.environ, self.pins, self.building)

    def refuse(self, package: PluginPackage) -> None:
        """Refuse a package that is never installed, even with the user's consent.

        :raises InstallError: it has no plugin, uses the name of a built-in or of another plugin, has a file that Python
            would run at every start, is known to be malicious, or would change what the host runs on.
        """
        if not package.cards:
            hint = "if it is a library, install it with pip"
            raise InstallError(f"{package.name} brings no plugin: no entry point in moryflow.plugins", next_step=hint)
        for card in package.cards:
            refuse_reserved(card.name, "ask its author for another name: it is an entry point of the package")
        there = installed_packages().get(normal(package.name))
        had = there.plugins if there is not None else ()  # an update does not have to undo what is so already
        self.refuse_taken({card.name for card in package.cards}.difference(had), package=package.name)
        refuse_conflicts(package, self.pins)
        refuse_bad([(package.name, package.version)])
        refuse_replacing(package, self.pins)
        if package.start_files:
            names = ", ".join(package.start_files)
            problem = f"{package.name} brings {names}, which Python would run at every start"
            raise InstallError(problem, next_step="ask its author what it is for")

    def refuse_taken(self, names: Collection[str], *, package: str = "", file: str = "") -> None:
        """Refuse plugins whose name another one has already: only one of the two would be loaded.

        :param package: the package that brings them, or `file`, where one will be.
        :raises InstallError: naming the other.
        """
        for other in discover(self.home, BUILTINS):
            own = other.target == file or (package and normal(other.package) == normal(package))
            if other.tier != "builtin" and other.name in names and not own:
                owner = f"the package {other.package}" if other.package else other.source
                raise InstallError(
                    f"the plugin name {other.name!r} is taken by {owner}, and only one of them would be loaded",
                    next_step=f"moryflow plugin uninstall {other.name}, then install this one",
                )

    def plan(self, origin: PackageOrigin, package: PluginPackage) -> list[tuple[str, str]]:
        """Return name and version of the packages that would be installed besides the plugin.

        :raises InstallError: they do not fit, one is known to be malicious, or they would break another plugin or replace
            files of others.
        """
        own = normal(package.name)
        also = [(name, version) for name, version in self.installer.plan(origin) if normal(name) != own]
        refuse_bad(also)
        refuse_breaking([(package.name, package.version), *also])
        if also:
            with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
                for wheel in self.installer.fetch_also(also, Path(folder)):
                    refuse_replacing(package_in_wheel(wheel), self.pins)
        return also

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Allow no other installation or removal within the block.

        :raises Busy: another one is running.
        """
        with InstallLock(self.home) as held:
            recover(self.home, held)
            self.installer.lock_descriptor = held.descriptor
            try:
                yield
            finally:
                self.installer.lock_descriptor = -1  # the descriptor's number may be reused

    @contextmanager
    def _rollback_on_failure(
        self, shown: PluginPackage, origin: PackageOrigin, also: Sequence[tuple[str, str]]
    ) -> Iterator[None]:
        """Restore all changed packages if the block fails or is interrupted, or at the next start if it is killed."""
        entry = self.lock.read().get(normal(shown.name))
        files = wheel_names(origin.path) if origin.kind == "archive" else ()
        with self.exclusive():
            rollback = Rollback(self.home, [shown.name, *(name for name, _ in also)], files, entry, shown.name)
            try:
                yield
            except BaseException:
                rollback.take_back()
                raise
            rollback.done()

    def put(
        self,
        origin: PackageOrigin,
        shown: PluginPackage,
        source: PackageOrigin,
        also: Sequence[tuple[str, str]],
        commit: str = "",
    ) -> Locked:
        """Install the package that was shown, try it, and write it to the lock; return its line of the lock.

        :param shown: the package as the user saw it.
        :param source: where it comes from, as the user named it.
        :raises DoesNotLoad: it does not load; everything was restored.
        :raises InstallError: the installed package is not the one shown, or a new ``.pth`` came along; everything was restored.
        """
        known = self.lock.read().get(normal(shown.name))
        there = installed_packages().get(normal(shown.name))
        before = there.plugins if there is not None else tuple(known.plugins if known else ())
        with self._rollback_on_failure(shown, origin, also):
            package = self._installed(origin, shown, also)
            notes = self.trial.package(package.name, package.version, before=before)
            entry = entry_for(package, source, commit=commit)
            self.lock.put(entry)
        for note in notes:
            self.tell(f"moryflow: {note}")
        return entry

    def _installed(self, origin: PackageOrigin, shown: PluginPackage, also: Sequence[tuple[str, str]]) -> PluginPackage:
        """Install the package that was shown and return it. Check that it is the same, and brought no start files along."""
        before, starts = set(installed_packages()), start_files()
        self.installer.install(origin, also)
        found = installed_packages().get(normal(shown.name))
        if found is not None and shown.digest and found.package().digest != shown.digest:
            self.installer.install(origin, also, again=True)
            found = installed_packages().get(normal(shown.name))
        if found is None:
            raise InstallError(f"{shown.name} is not there after its installation", next_step="moryflow doctor")
        package = found.package()
        if shown.digest and package.digest != shown.digest:
            raise InstallError(f"what was installed as {shown.name} is not what was shown; it was removed again")
        own = {found.site / name for name in found.start_files()} if found.editable else set()
        if new_start_files := sorted(start_files() - starts - own):
            names = ", ".join(str(path) for path in new_start_files)
            problem = f"{names} would be run by Python at every start; the installation was undone"
            raise InstallError(problem, next_step="ask the author of the plugin what it is for")
        for name in sorted(set(installed_packages()) - before - {normal(shown.name)}):
            for plugin in installed_packages()[name].plugins:
                self.tell(f"moryflow: {name} came along and is a plugin too: moryflow plugin info {plugin}")
        return replace(package, digest=shown.digest)


def refuse_reserved(name: str, next_step: str) -> None:
    """Refuse a plugin with the name of a built-in: settings and rules with that name would apply to both.

    :raises InstallError: a built-in has this name.
    """
    if is_reserved(name, BUILTINS):
        raise InstallError(f"the plugin name {name!r} belongs to a built-in plugin", next_step=next_step)


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
    """Return a distribution and its plugins as a target.

    :raises InstallError: it is Moryflow itself.
    """
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


SECONDS = 10.0
"""Seconds that one plugin may take in the probe, while the user waits."""


class DoesNotLoad(InstallError):
    """A plugin that was to be installed does not load, so nothing has changed (exit code 3).

    :param found: by plugin, the verdict of the probe.
    """

    code = "does_not_load"

    def __init__(self, message: str, *, found: Mapping[str, ProbeVerdict], next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.found = found


class Trial:
    """Tries plugins as this person's host would load them.

    :param config: the user's settings as one object.
    :param disabled: disabled plugins; no host would load them, so they are not tried.
    """

    def __init__(self, home: Path, config: Mapping[str, Any], disabled: Collection[str] = ()) -> None:
        self._home = home
        self._config = config
        self._disabled = disabled

    def package(self, name: str, version: str, *, before: Collection[str]) -> list[str]:
        """Try the plugins of a package as it is installed now; return notes for the user.

        :param before: the plugins that were installed before; whether they loaded is known from their last load.
        :raises DoesNotLoad: a plugin does not load that is new or loaded before, or none loads.
        """
        importlib.invalidate_caches()
        mine = [candidate for candidate in discover(self._home, BUILTINS) if normal(candidate.package) == normal(name)]
        wanted = [candidate for candidate in mine if candidate.name not in self._disabled]
        found = {
            each.name: verdict for each, verdict in zip(wanted, probe_candidates(wanted, self._home, self._config), strict=True)
        }
        bad = {name: verdict for name, verdict in found.items() if not _would_load(verdict, updated=name in before)}
        lost = [each for each in bad if each not in before or not self._failed_before(each)]
        if bad and (lost or len(bad) == len(found)):
            hint = (
                _one_of_several(bad, found)
                or next((verdict.hint for verdict in bad.values() if verdict.hint), "")
                or "ask its author for a version that loads"
            )
            raise DoesNotLoad(f"{f'{name} {version}'.rstrip()} does not load:\n{_failures(bad)}", found=bad, next_step=hint)
        notes = [f"{each} does not load, as before: {verdict.error}" for each, verdict in bad.items()]
        notes += [f"{each}: {note}" for each, verdict in found.items() if verdict.ok for note in verdict.notes]
        return notes + [f"{each.name} is disabled, so it was not tried" for each in mine if each not in wanted]

    def file(self, name: str, path: Path) -> None:
        """Try a plugin in one file, in a folder of its own.

        :raises DoesNotLoad: the plugin does not load.
        """
        if name in self._disabled:
            return
        [verdict] = probe_candidates([Candidate.at(path, name)], self._home, self._config)
        if not _would_load(verdict, updated=False):
            hint = verdict.hint or "fix it, then install it again"
            raise DoesNotLoad(f"{name} does not load:\n{_failures({name: verdict})}", found={name: verdict}, next_step=hint)

    def _failed_before(self, name: str) -> bool:
        last = [known.record for known in recall(self._home).values() if known.record.name == name]
        return bool(last) and last[-1].status == "failed"


def probe_candidates(candidates: Sequence[Candidate], home: Path, config: Mapping[str, Any]) -> list[ProbeVerdict]:
    """Return the verdict on each candidate. A candidate with a problem is not run; its problem is the verdict."""
    from moryflow.plugins.preflight.policy import probe_all
    from moryflow.plugins.preflight.prober import ProbeVerdict

    wrong: dict[Candidate, ProbeVerdict] = {}
    for candidate in candidates:
        problem: LoadFailure | None = candidate.problem
        if problem is not None:
            place = (problem.file, problem.line, problem.hint)
            wrong[candidate] = ProbeVerdict(False, problem.stage, problem.message, *place)
    rest = [candidate for candidate in candidates if candidate not in wrong]
    found = wrong | dict(zip(rest, probe_all(rest, home=home, config=config, seconds=SECONDS), strict=True))
    return [found[candidate] for candidate in candidates]


def _would_load(verdict: ProbeVerdict, *, updated: bool) -> bool:
    """Whether a host would load the whole plugin. A new plugin may lack settings: the user sets them after installing it."""
    unset = verdict.ok and verdict.stage == "register" and bool(verdict.notes)
    return verdict.ok and not verdict.failed_hooks and not (updated and unset)


def _failures(bad: Mapping[str, ProbeVerdict]) -> str:
    lines: list[str] = []
    for name, verdict in bad.items():
        place = f"{verdict.place}: " if verdict.place and not verdict.ok else ""
        lines.append(f"  {name} failed ({verdict.stage}): {place}{_error(verdict)}")
    return "\n".join(lines)


def _error(verdict: ProbeVerdict) -> str:
    """Return what is wrong, without the hint to check the plugin where it is: it will not be installed."""
    return verdict.error or "; ".join(note.partition("; next: ")[0] for note in verdict.notes)


def _one_of_several(bad: Mapping[str, ProbeVerdict], found: Mapping[str, ProbeVerdict]) -> str:
    """Return a hint how to install a package's other plugins without those that do not load; empty if none loads."""
    if len(bad) == len(found):
        return ""
    names = json.dumps(list(bad))
    return f"moryflow config set disabledPlugins '{names}' (with those that are in it already) installs the others alone"

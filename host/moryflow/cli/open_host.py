"""Open a host for a command, run its work on one loop, close everything; and warn of faults in plugins and configuration."""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .findings import in_folders
from .options import Flags
from .terminal import plain, say
from .terminal.streams import keep_stdout, restore

if TYPE_CHECKING:
    from moryflow.hooks.plugin_set import LoadRecord
    from moryflow.runtime.host import Host
    from moryflow.store import Store


T = TypeVar("T")
# The most plugins that one line names.
MAX_NAMES = 3
# The most notes on one plugin, each an item it had to leave out, that are shown one by one.
MAX_NOTES = 20


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
    from moryflow.config import store_url
    from moryflow.store import open_store

    home = own_home()
    with _naming_home():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = open_store(home, url=store_url(home))

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
    from moryflow.cli.terminal.interrupts import set_breakpoints
    from moryflow.runtime.generation import WAIT
    from moryflow.runtime.host import open_host

    keep_stdout()
    set_breakpoints(debug=given.debug)
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

    from .findings import unknown_agent

    for problem in (*host.config.checked(settings_of_plugins(host.plugin_set)).problems, *unknown_agent(host)):
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
    complaints: list[str] = []
    for record in host.plugin_set.records:
        if record in tried_out:
            continue
        itself = bool(record.error) and record.tier != "builtin" and record.error != "; ".join(record.notes)
        if record.status in ("failed", "pending") or itself:
            complaints.append(f"moryflow: plugin {record.name} {complaint(record)}")
        elif notes := [note for note in record.notes if not in_folders(host, note)]:
            complaints += (f"moryflow: {note}" for note in _note_lines(record, notes))
    for line in not_said_before(host.home, complaints):
        say(" ".join(line.splitlines()))  # a file name may contain a line break


def not_said_before(home: Path, lines: Sequence[str]) -> list[str]:
    """Return the lines that the last start on this home did not have: a broken file is named once, until it changes.

    ``plugin list`` and ``doctor`` always name it.
    """
    file = home / "said"
    if not lines:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return []
    from hashlib import sha256

    from moryflow_sdk.support.own_files import replace_file

    now = [sha256(line.encode("utf-8", "replace")).hexdigest()[:16] for line in lines]
    before: list[str] = []
    with suppress(OSError, UnicodeError):
        before = file.read_text("utf-8").split()
    if now != before:
        with suppress(OSError):
            replace_file(file, " ".join(now).encode())
    return [line for line, mark in zip(lines, now, strict=True) if mark not in before]


def _note_lines(record: LoadRecord, notes: Sequence[str]) -> list[str]:
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


def drift_notices(home: Path, *, content: bool = False) -> list[str]:
    """Return a line for each difference between ``plugins.lock`` and what is installed.

    :param content: compare the content of the installed files too.
    """
    if not (home / "plugins.lock").exists():
        return []
    from moryflow_sdk import MoryflowError

    from moryflow.packages.lock import drifts

    try:
        return [plain(f"moryflow: {drift.text}: {drift.next_step}") for drift in drifts(home, content=content)]
    except MoryflowError as error:
        return [plain(f"moryflow: {error}")]

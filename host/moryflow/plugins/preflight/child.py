"""Inside the probe: import, register, contribute. The process may end in any way, so all it says is written at once."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import PluginContext

from moryflow.base.foreign_errors import describe, root_of
from moryflow.hooks.plugin_set import LoadFailure, LoadRecord, PluginSet
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.importer import import_sources
from moryflow.plugins.lifecycle import PlainContext, start
from moryflow.plugins.load import load_alone
from moryflow.plugins.load_failures import failure_line

from . import VERDICT

Mark = Callable[[str], None]
MAX_FILES = 256
# Bytes, so that a plugin that prints without end does not fill the disk.
MAX_FILE_SIZE = 1 << 28
_write, _leave, _json = os.write, os._exit, json.dumps  # kept here before a plugin can replace them


def main(request: Mapping[str, Any]) -> None:
    """Run a probe and end the process. Never returns.

    Standard output takes the report: each stage when it begins, then the verdict.
    """
    report = os.dup(1)
    silence()
    seconds = float(request["seconds"])
    limit()
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        found = examine(request, lambda stage: _say(report, stage))
        with suppress(BaseException):
            sys.stdout.flush()
        _say(report, VERDICT + _json(found))
        _leave(0)
    finally:
        _leave(70)


def _say(report: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[_write(report, data) :]


class ProbeSettings:
    """The user's settings as JSON: the part of a configuration that loading one plugin needs."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def section(self, dotted: str) -> Mapping[str, Any]:
        value: Any = self._values
        for name in dotted.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}

    def origin(self, dotted: str) -> None:
        return None

    def checked(self, known: Iterable[tuple[str, Any]]) -> ProbeSettings:
        return self


def examine(request: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    """Return the verdict on one candidate, as JSON.

    :param mark: called with the name of each stage when it begins.
    """
    sys.dont_write_bytecode = True
    started = time.perf_counter()
    mark("import")
    try:
        found = _import_file(Path(request["file"])) if "file" in request else _load_plugin(request, mark)
    except BaseException as error:  # the isolation boundary of the probe, where nobody can press Ctrl-C
        found = _error_report(error, str(request.get("root") or request.get("file")))
    found["ms"] = round((time.perf_counter() - started) * 1000, 1)
    return found


def _error_report(error: BaseException, root: str) -> dict[str, Any]:
    found = {"ok": False, "stage": "import", "error": type(error).__name__, "file": root, "fatal": _is_fatal(error)}
    with suppress(BaseException):
        found["error"], file, found["line"] = describe(error, root_of(root))
        found["file"] = file or root
    return found


_FATAL = (MemoryError, RecursionError, SystemExit)
_TERMINAL_HINT = "an import must not read standard input, which is the user's terminal"


def _is_fatal(error: BaseException | None) -> bool:
    """Whether code ran out of memory or stack, tried to end the process, or read the terminal."""
    return any(isinstance(each, _FATAL) or _reads_terminal(each) for each in _causes(error))


def _causes(error: BaseException | None) -> list[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _reads_terminal(error: BaseException) -> bool:
    """Whether `error` is the one that reading standard input raises here; see :func:`silence`."""
    return isinstance(error, OSError) and error.errno == errno.EBADF


def _import_file(path: Path) -> dict[str, Any]:
    try:
        import_sources(Candidate.at(path), None)
    except LoadFailure as failure:
        return _failure_report(failure, str(path))
    return {"ok": True, "stage": "import", "file": str(path)}


def _load_plugin(request: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    home = Path(request["home"])
    candidate = Candidate(**request["candidate"])
    config = ProbeSettings(request["config"])
    try:
        plugin_set = load_alone(candidate, home=home, config=config, imported=lambda: mark("register"))
    except LoadFailure as failure:
        if failure.stage != "config":
            return _failure_report(failure)
        # Settings are not part of the code: the host reports them itself.
        return {"ok": True, "stage": "register", "file": failure.file, "notes": [failure_line(failure)]}
    record = plugin_set.records[0]
    remarks = [failure_line(record)] if record.error else []
    mark("contribute")
    record = asyncio.run(_contribute(plugin_set, PlainContext(home).of))
    notes = [*remarks, *record.notes]
    file = {"file": record.file, "hooks": record.hooks, "tools": record.tools, "notes": notes}
    return {"ok": True, "stage": "contribute", "failed_hooks": record.failed_hooks, **file}


async def _contribute(plugin_set: PluginSet, contexts: Callable[[Any], PluginContext]) -> LoadRecord:
    """Call the contribute hooks. If they raise, the plugin has not failed; if they end the process, it has.

    ``plugin_start`` is not called, because a plugin may have effects there.
    """
    for plugin in plugin_set.plugins.values():
        plugin.life.started = True
    return (await start(plugin_set, contexts)).records[0]


def _failure_report(failure: LoadFailure, file: str = "") -> dict[str, Any]:
    hint = _TERMINAL_HINT if any(map(_reads_terminal, _causes(failure))) else failure.hint
    found = {"ok": False, "fatal": _is_fatal(failure), "stage": failure.stage, "error": failure.message, "hint": hint}
    return {**found, "file": failure.file or file, "line": failure.line}


def silence() -> None:
    """Keep the plugin away from the standard streams: what it prints is lost, and nothing can be read.

    In the host, standard input is the terminal, and an import that reads it would never end.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, target in enumerate((nowhere, 2, nowhere)):
        os.dup2(target, number)


def limit() -> None:
    """Limit memory, open files, the size of files and core dumps."""
    import resource

    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for kind, limit in (
        (resource.RLIMIT_DATA, min(2 << 30, machine // 4)),  # RLIMIT_AS would count mapped files and reserved addresses too
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_FSIZE, MAX_FILE_SIZE),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(kind)
        wanted = limit if most == resource.RLIM_INFINITY else min(limit, most)
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (wanted, most))

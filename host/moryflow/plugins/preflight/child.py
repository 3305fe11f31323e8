"""Inside the probe: import, register, contribute. This runs in a forked process, which may end in any way."""

from __future__ import annotations

import asyncio
import atexit
import errno
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import PluginContext
from moryflow_sdk.support.processes import children

from moryflow.base.foreign_errors import describe, root_of
from moryflow.hooks.plugin_set import LoadFailure, LoadRecord, PluginSet
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.importer import import_sources, show_printing
from moryflow.plugins.lifecycle import PlainContext, start
from moryflow.plugins.load import load_alone
from moryflow.plugins.load_failures import failure_line

Mark = Callable[[str], None]
_FILES = 256


class ProbeSettings:
    """The person's settings as JSON: the part of a configuration that loading one plugin needs."""

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
    sys.path[:] = request["path"]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    show_printing()
    atexit._clear()  # drop the helper's functions: this fork must not run them
    started = time.perf_counter()
    mark("import")
    try:
        found = _import_file(Path(request["file"])) if "file" in request else _load_plugin(request, mark)
    except BaseException as error:  # the isolation boundary of the probe, where nobody can press Ctrl-C
        found = _error_report(error, str(request.get("root") or request.get("file")))
    if found["ok"]:
        mark("atexit")  # if they hang or exit, so would the host
        atexit._run_exitfuncs()
    found["ms"] = round((time.perf_counter() - started) * 1000, 1)
    return found


def _error_report(error: BaseException, root: str) -> dict[str, Any]:
    """Return the verdict for an exception, with its text and place unless the plugin broke what reads them."""
    found = {"ok": False, "stage": "import", "error": type(error).__name__, "file": root, "fatal": _is_fatal(error)}
    with suppress(BaseException):
        found["error"], file, found["line"] = describe(error, root_of(root))
        found["file"] = file or root
    return found


_FATAL = (MemoryError, RecursionError, SystemExit)


def _is_fatal(error: BaseException | None) -> bool:
    """Whether `error` or one of its causes means that code ran out of memory or stack, tried to end the process, or read
    the terminal."""
    return any(isinstance(each, _FATAL) or _reads_terminal(each) for each in _causes(error))


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return `error` and the chain of its causes."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _reads_terminal(error: BaseException) -> bool:
    """Whether `error` is the one that reading standard input raises here; see :func:`silence`."""
    return isinstance(error, OSError) and error.errno == errno.EBADF


_TERMINAL_HINT = "an import must not read standard input, which is the person's terminal"


def _import_file(path: Path) -> dict[str, Any]:
    """Import a file with tools, which is not a plugin."""
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
    raised: list[BaseException] = []
    record = asyncio.run(_contribute(_with_notes(plugin_set, raised), PlainContext(home).of))
    notes = [*remarks, *record.notes]
    if fatal := next(filter(_is_fatal, raised), None):
        error, file, line = describe(fatal, root_of(record.file))
        failure = LoadFailure("contribute", error, file=file or record.file, line=line, hint=record.hint)
        failure.__cause__ = fatal
        return _failure_report(failure)
    file = {"file": record.file, "hooks": record.hooks, "tools": record.tools, "notes": notes}
    return {"ok": True, "stage": "contribute", "failed_hooks": record.failed_hooks, **file}


async def _contribute(plugin_set: PluginSet, contexts: Callable[[Any], PluginContext]) -> LoadRecord:
    """Call the contribute hooks. If they raise, the plugin has not failed; if they harm the process, it has.

    ``plugin_start`` is not called, because a plugin may have effects there.
    """
    for plugin in plugin_set.plugins.values():
        plugin.life.started = True
    return (await start(plugin_set, contexts)).records[0]


def _with_notes(plugin_set: PluginSet, raised: list[BaseException]) -> PluginSet:
    """Return the set with hooks that add what they raise to `raised`."""
    hooks = {
        hook: tuple(replace(item, function=_note_errors(item.function, raised)) for item in items)
        for hook, items in plugin_set.hooks.items()
    }
    return replace(plugin_set, hooks=hooks)


def _note_errors(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    @contextmanager
    def noting() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            raised.append(error)
            raise

    async def later(*arguments: Any) -> Any:
        with noting():
            return await function(*arguments)

    wrapped = later if inspect.iscoroutinefunction(function) else noting()(function)
    return wraps(function)(wrapped)


def _failure_report(failure: LoadFailure, file: str = "") -> dict[str, Any]:
    hint = _TERMINAL_HINT if any(map(_reads_terminal, _causes(failure))) else failure.hint
    found = {"ok": False, "fatal": _is_fatal(failure), "stage": failure.stage, "error": failure.message, "hint": hint}
    return {**found, "file": failure.file or file, "line": failure.line}


def silence(output: int) -> None:
    """Keep a plugin away from the helper's own streams.

    Standard input cannot be read at all: in the host it is the terminal, and an import that reads it would never end.

    :param output: the descriptor that receives what the plugin prints, so that it can be counted.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, target in enumerate((nowhere, output, nowhere)):
        os.dup2(target, number)
    for descriptor in (output, nowhere):
        if descriptor > 2:
            os.close(descriptor)


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of this container if that has fewer."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return min(found)


def limit(seconds: float) -> None:
    """Limit processor time, open files and core dumps. Memory is watched instead: code may catch the error of a limit.

    The memory limit that is set here is the whole machine's, which a host would meet too.
    """
    import resource

    cpu = int(seconds) + 1
    for kind, limit in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, machine_memory()),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(kind)
        wanted = limit if most == resource.RLIM_INFINITY else min(limit, most)
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (wanted, most))


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process and its children use; 0 if the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))
    return own + sum(memory_of(child) for child in children(pid))

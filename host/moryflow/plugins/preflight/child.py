"""Inside the probe: import, register, contribute, compare. Runs in a forked process that may end in any way."""

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
from moryflow.plugins.importer import import_sources, leave_as_it_is
from moryflow.plugins.lifecycle import PlainContext, start
from moryflow.plugins.load import load_alone
from moryflow.plugins.load_failures import failure_line

from .shared_state import ProcessState, SharedCode, harm, line_of, remarks, take

Mark = Callable[[str], None]
_FILES = 256


class ProbeSettings:
    """The person's settings, as JSON: enough of a configuration for one plugin."""

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


def examine(request: Mapping[str, Any], shared: SharedCode, mark: Mark) -> dict[str, Any]:
    """Return the verdict on one candidate, as JSON.

    :param shared: what the helper had loaded before it forked.
    :param mark: told the stage that begins.
    """
    sys.path[:] = request["path"]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    leave_as_it_is()
    atexit._clear()  # of the helper, which this fork never ends as
    atexit.register(_stand_in)
    forked: list[bool] = []
    os.register_at_fork(before=lambda: forked.append(True))
    before = take()
    started = time.perf_counter()
    mark("import")
    raised = False
    try:
        found = _import_file(Path(request["file"])) if "file" in request else _load_plugin(request, mark)
    except BaseException as error:  # the isolation boundary of the probe, where nobody can press Ctrl-C
        raised = True
        found = _error_report(error, str(request.get("root") or request.get("file")))
    harmed = _find_harm(before, shared)  # also of one that failed: the host would import it once more to say how
    harmed += ["what runs: it forks this process"] if forked else []
    if found["ok"] or raised:
        with suppress(BaseException):  # what it is told with may be broken by now
            found["changed"] = list(remarks(before, take()))
    if harmed:
        hint = _HARM_IN_TOOLS if "file" in request else _HARM_HINT
        failed = "" if found["ok"] or raised else f"{found['error']}; "
        found["line"] = line_of(harmed[0], str(found.get("file") or request.get("root") or request.get("file")))
        found |= {"ok": False, "fatal": True, "stage": "import", "hint": hint}
        found["error"] = f"{failed}it changes something that all code shares: {'; '.join(harmed[:3])}"
    elif found["ok"]:
        mark("atexit")  # a hang or an exit there would be the host's
        atexit._run_exitfuncs()
    found["ms"] = round((time.perf_counter() - started) * 1000, 1)
    return found


def _error_report(error: BaseException, root: str) -> dict[str, Any]:
    """Say what was raised, and where, unless what says so is broken by now."""
    found = {"ok": False, "stage": "import", "error": type(error).__name__, "file": root, "fatal": _is_fatal(error)}
    with suppress(BaseException):
        found["error"], file, found["line"] = describe(error, root_of(root))
        found["file"] = file or root
    return found


def _find_harm(before: ProcessState, shared: SharedCode) -> list[str]:
    """Return what was changed that others rely on; that the comparison itself cannot go on is one such change."""
    found: list[str] = []
    try:
        found.extend(shared.changes())  # first: it fixes what the rest needs
        found.extend(harm(before, take()))
        if not atexit._ncallbacks():
            found.append("what runs at the end of the program (atexit)")
    except BaseException as error:  # the isolation boundary of the probe
        found.append(f"what the probe itself needs ({type(error).__name__}: {error})")
    return found


def _stand_in() -> None:
    """Stand for what the host has registered to run at its end."""


_FATAL = (MemoryError, RecursionError, SystemExit)


def _is_fatal(error: BaseException | None) -> bool:
    """Whether code ran out of memory or stack, wanted to end the process or to read the terminal, also where it then raised
    something else."""
    return any(isinstance(each, _FATAL) or _reads_terminal(each) for each in _behind(error))


def _behind(error: BaseException | None) -> list[BaseException]:
    """Return `error` and what it was raised because of."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _reads_terminal(error: BaseException) -> bool:
    """Whether `error` is what reading standard input gives here (:func:`silence`)."""
    return isinstance(error, OSError) and error.errno == errno.EBADF


_TERMINAL_HINT = "an import must not read standard input, which is the person's terminal"


_HARM_HINT = "do it in plugin_start and undo it in what that returns, or not at all"
_HARM_IN_TOOLS = "do it in the function of the tool and undo it there, or not at all"


def _import_file(path: Path) -> dict[str, Any]:
    """Import a file that is not a plugin: one with tools."""
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
        # Settings are not part of the code: the host holds them against the plugin itself.
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
    """Call the contribute hooks. What they raise is no failure of the plugin; what they do to the process is.

    ``plugin_start`` is not called: it is where a plugin does what has effects.
    """
    for plugin in plugin_set.plugins.values():
        plugin.life.started = True
    return (await start(plugin_set, contexts)).records[0]


def _with_notes(plugin_set: PluginSet, raised: list[BaseException]) -> PluginSet:
    """Return the set with hooks that say what they raise."""
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
    hint = _TERMINAL_HINT if any(map(_reads_terminal, _behind(failure))) else failure.hint
    said = {"stage": failure.stage, "error": failure.message, "file": failure.file or file, "line": failure.line, "hint": hint}
    return {"ok": False, "fatal": _is_fatal(failure), **said}


def silence(output: int) -> None:
    """Let nothing that a plugin prints or reads reach the helper's own streams.

    Standard input cannot be read at all: in the host it is the terminal, and an import that reads it would never end.

    :param output: takes what it prints, so that it can be told; each stream is a file of its own, so that one that is
        put in the place of another is noticed.
    """
    unread, nowhere = os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_RDWR)
    for number, target in enumerate((unread, output, nowhere)):
        os.dup2(target, number)
    for descriptor in (unread, output, nowhere):
        if descriptor > 2:
            os.close(descriptor)


def machine_memory() -> int:
    """Return the bytes of memory that there are for this process and all others beside it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return min(found)


def limit(seconds: float) -> None:
    """Set limits: processor time, files, no core. Memory is watched: code may catch the error that a limit gives.

    The one set here is what a host would meet, too.
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
    """Return the bytes that a process and those that it began have filled by now; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))
    return own + sum(memory_of(child) for child in children(pid))

"""Checks: importing the plugin has no effects that a person did not ask for. A separate process observes the import."""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moryflow.testing.isolated import IsolatedHost

from . import ImportReport, Subject

BUDGET = 0.3
"""Seconds of CPU time that import, registration and start may take together."""


def _report(subject: Subject) -> ImportReport:
    if subject.report.error:
        subject.skip_unless_loaded()
        subject.fail(f"it does not load in a process of its own: {subject.report.error}", "import it with python3 -c first")
    return subject.report


def test_it_uses_no_network_when_imported(plugin_subject: Subject) -> None:
    """If it did, ``moryflow --help`` would wait for the network."""
    for seen in _report(plugin_subject).network:
        plugin_subject.fail(f"it uses the network while it is imported: {seen}", "do it in the hook or tool that needs it")


def test_it_writes_nothing_when_imported(plugin_subject: Subject) -> None:
    """A plugin may write only below ``turn.data_dir``, and only in a hook or a tool."""
    for seen in _report(plugin_subject).writes:
        plugin_subject.fail(f"it writes while it is imported: {seen}", "write below turn.data_dir, in a hook")


def test_it_starts_no_program_when_imported(plugin_subject: Subject) -> None:
    """At import, nobody has agreed to the program yet."""
    for seen in _report(plugin_subject).programs:
        plugin_subject.fail(f"it starts a program while it is imported: {seen}", "start it in the tool that needs it")


def test_it_prints_nothing_when_imported(plugin_subject: Subject) -> None:
    """Standard output carries the answer, and in some commands a protocol."""
    printed = _report(plugin_subject).printed.strip()
    if printed:
        plugin_subject.fail(f"it prints while it is loaded: {printed[:200]!r}", "use turn.log, or ctx.log")


def test_it_leaves_what_is_everyones_alone(plugin_subject: Subject) -> None:
    """After the plugin is unloaded, environment, current folder, signal handlers and streams are the same as before."""
    for seen in _report(plugin_subject).changed:
        what = f"it changes {seen} for the whole process and leaves that behind"
        plugin_subject.fail(what, "undo it in the function that plugin_start returns, or do without")


def test_it_leaves_no_thread_behind(plugin_subject: Subject) -> None:
    """A plugin ends its threads when it is unloaded, because that happens many times in one process."""
    for seen in _report(plugin_subject).threads:
        plugin_subject.fail(f"thread {seen} goes on after it was unloaded", "end it in the function that plugin_start returns")


def test_it_loads_within_its_budget(plugin_subject: Subject) -> None:
    """Loading is quick, because every command waits for it at its start."""
    spent = _report(plugin_subject).cpu
    if spent > BUDGET:
        to_do = "import heavy libraries inside the functions that use them"
        plugin_subject.fail(f"loading takes {spent:.1f} s of computing", to_do)


NETWORK = frozenset({"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"})
PROGRAMS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"})
CHANGES = frozenset({"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"})


class Watcher:
    """Records the audit events that module-level code of the plugin causes."""

    def __init__(self, root: Path, data: Path) -> None:
        self.report = ImportReport()
        self._root = str(root)
        self._data = str(data)
        self.on = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on or not (event in NETWORK | PROGRAMS | CHANGES or event == "open"):
            return
        place = self._importing()
        if place is None:
            return
        if event in NETWORK:
            self.report.network.append(f"{place} ({event})")
        elif event in PROGRAMS:
            self.report.programs.append(f"{place} ({event})")
        elif event != "open" or _writing(args):
            path = os.fsdecode(args[0]) if args and isinstance(args[0], str | bytes) else ""
            if not path.startswith(self._data) and "__pycache__" not in path:
                self.report.writes.append(f"{place} ({path or event})")

    def _importing(self) -> str | None:
        """Return the plugin's line that is running, if its import is in progress."""
        frame, place = inspect.currentframe(), None
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(self._root):
                place = place or f"{code.co_filename}:{frame.f_lineno}"
                if code.co_name == "<module>":
                    return place
            frame = frame.f_back
        return None


def _writing(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1] if len(args) > 1 else None, args[2] if len(args) > 2 else 0
    by_mode = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    by_flags = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    return by_mode or by_flags


def main(path: Path, folder: Path, target: Path) -> None:
    """Load the plugin at `path` in this otherwise idle process, and write the report to `target`."""
    sys.dont_write_bytecode = True  # for the plugin; our own modules are already imported, and their byte code is kept
    subject = Subject(path, folder, json.load(sys.stdin))
    installed = folder / "home" / "plugins" / subject.path.name
    root = subject.package if subject.project else installed
    watcher = Watcher(root, folder / "home" / "data")
    _warm_up(folder / "without")
    before, threads = _global_state(), set(threading.enumerate())
    sys.addaudithook(watcher)
    watcher.on = True
    began = time.process_time()
    record = subject.record
    watcher.report.cpu = time.process_time() - began
    watcher.on = False
    watcher.report.error = "" if record and record.status == "loaded" else "it did not load"
    subject.close()
    watcher.report.changed = [name for name, value in _global_state().items() if value != before[name]]
    watcher.report.threads = _remaining_threads(threads)
    shown = asdict(watcher.report)
    del shown["printed"]
    target.write_text(json.dumps(shown), encoding="utf-8")


def _warm_up(folder: Path) -> None:
    """Open and close a host without the plugin, so that everything seen and measured afterwards is caused by the plugin.

    pydantic is imported too: a plugin needs it for its settings, so that its import does not count.
    """
    import pydantic  # noqa: F401

    host = IsolatedHost(folder / "home", folder / "vault")
    assert host.host is not None
    host.close()


def _global_state() -> dict[str, Any]:
    """Return the global state of the process, by name."""
    import signal

    return {
        "the environment (os.environ)": dict(os.environ),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "the current folder": str(Path.cwd()),
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
        "sys.excepthook": sys.excepthook,
        "the recursion limit": sys.getrecursionlimit(),
    }


def _remaining_threads(before: set[threading.Thread]) -> list[str]:
    """Return the threads that still run after the plugin was unloaded; they get a second to end."""
    ending = time.monotonic() + 1.0
    while True:
        left = [
            thread
            for thread in threading.enumerate()
            if thread not in before and not thread.name.startswith(("moryflow", "asyncio"))
        ]
        if not left or time.monotonic() >= ending:
            break
        time.sleep(0.02)
    return [f"{thread.name}{' (daemon)' if thread.daemon else ''}" for thread in left]


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))

"""State that all code of a process shares, recorded before a plugin is tried and compared afterwards.

Of the seven plugins with side effects in the corpus of broken plugins, five load without an error and break the host later,
when nobody connects that with the plugin: they replace ``open`` or ``json.loads``, turn warnings into errors, leave an
audit hook or a thread behind. Only this comparison names them, with the line. It costs 4 ms of a probe (13,000 names of
1,700 modules and classes) and nothing at a start whose code was probed before.
"""

from __future__ import annotations

import builtins
import codecs
import gc
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import gt, lt, ne
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

_FACTS = (
    "argv", "byteorder", "dont_write_bytecode", "exec_prefix", "executable", "flags", "hexversion", "maxsize", "platform",
    "prefix", "version_info",
)  # fmt: skip
_NEEDED = ("HOME", "MORYFLOW_")
"""Prefixes of the environment variables that must not be changed; others may be set but not removed."""
_ALARM = 0.5
"""Seconds by which two readings of the same alarm may differ."""


def _streams() -> list[Any]:
    """Return the identity of each standard stream and of functions that were set on it, such as a replaced ``write``."""
    streams = [getattr(sys, f"{kept}{name}{kept}") for name in ("stdin", "stdout", "stderr") for kept in ("", "__")]
    return [(id(stream), *_own(stream)) for stream in streams]


def _own(stream: Any) -> list[tuple[str, int]]:
    return sorted((name, id(value)) for name, value in getattr(stream, "__dict__", {}).items() if callable(value))


def _descriptors() -> list[Any]:
    """Return device and inode of the files behind the standard streams."""
    return [(status.st_dev, status.st_ino) for status in map(os.fstat, range(3))]


def _limits() -> Any:
    import resource

    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
    return [resource.getrlimit(kind) for kind in kinds]


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _policy() -> int:
    import asyncio

    # Python 3.14 warns about the public name and uses this one itself.
    ask = getattr(asyncio.events, "_get_event_loop_policy", None) or asyncio.get_event_loop_policy
    return id(ask())


def _logging() -> Any:
    root = logging.getLogger()
    return root.level, list(root.handlers), list(root.filters)


def _adapters() -> dict[Any, Any]:
    """Return how SQLite stores plain values; an adapter for text makes a database unreadable for the host."""
    module = sys.modules.get("sqlite3")
    plain = (str, bytes, int, float, bool, type(None))
    return {key: value for key, value in module.adapters.items() if key[0] in plain} if module else {}


def _interpreter() -> Any:
    limits = sys.getswitchinterval(), sys.get_int_max_str_digits(), sys.getdlopenflags()
    return *limits, tuple(sys.get_asyncgen_hooks())


def _alarms() -> list[float]:
    """Return the time at which each alarm fires, 0 for one that is off."""
    now = time.monotonic()
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return [now + left if (left := signal.getitimer(kind)[0]) else 0.0 for kind in kinds]


def _moved(before: list[float], after: list[float]) -> bool:
    return any(abs(now - then) > _ALARM for then, now in zip(before, after, strict=True))


def _errors() -> int:
    """Return the number of filters that turn all warnings of a category into errors."""
    return sum(action == "error" and not (module or message) for action, message, _, module, _ in warnings.filters)


def _has_lost(before: list[Any], after: list[Any]) -> bool:
    return any(entry not in after for entry in before)


def _has_prepended(before: list[Any], after: list[Any]) -> bool:
    return after[: len(before)] != before and not _has_lost(before, after)


class _State(NamedTuple):
    """One piece of state: its name, how to read it, the calls that change it, and which difference counts."""

    name: str
    read: Callable[[], Any]
    calls: str = ""
    differs: Callable[[Any, Any], Any] = ne


_HARMFUL = (
    _State("sys.stdin, sys.stdout or sys.stderr", _streams),
    _State("the files behind the standard streams", _descriptors, r"dup2|close"),
    _State("the limits of this process", _limits, r"setrlimit"),
    _State("the priority of this process", lambda: os.getpriority(os.PRIO_PROCESS, 0), r"nice|setpriority"),
    _State("the event loop policy", _policy, r"set_event_loop_policy"),
    _State("the current folder", lambda: str(Path.cwd()), r"chdir"),
    _State("the umask", _mask, r"umask"),
    _State(
        "the tracing of this process",
        lambda: (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        r"settrace|setprofile",
    ),
    _State("the signals that are blocked", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), r"pthread_sigmask"),
    _State("the garbage collector", lambda: (gc.isenabled(), gc.get_threshold()[0] > 0, list(gc.callbacks)), r"gc\."),
    _State("the default timeout of sockets", socket.getdefaulttimeout, r"setdefaulttimeout"),
    _State(
        "the settings of the interpreter",
        _interpreter,
        r"setswitchinterval|set_int_max_str_digits|setdlopenflags|set_asyncgen_hooks",
    ),
    _State(
        "what happens to bytes that are not text",
        lambda: [codecs.lookup_error(name) for name in ("strict", "replace", "surrogateescape")],
        r"register_error",
    ),
    _State("how SQLite stores plain values", _adapters, r"register_adapter"),
    _State("what is logged (logging.disable)", lambda: logging.root.manager.disable, r"logging\.disable"),
    _State("what sys says of this process", lambda: [repr(getattr(sys, name, None)) for name in _FACTS]),
    *(
        _State(f"the handler of {each.name}", lambda number=each: signal.getsignal(number), r"signal\.signal")
        for each in signal.Signals
    ),
    _State("the alarm of this process", _alarms, r"alarm|setitimer", _moved),
    _State("the recursion limit", sys.getrecursionlimit, r"setrecursionlimit", gt),
    _State("sys.path", lambda: list(sys.path), differs=_has_lost),
    _State("sys.meta_path", lambda: list(sys.meta_path), differs=_has_lost),
    _State("sys.path_hooks", lambda: list(sys.path_hooks), differs=_has_lost),
    _State("the warnings filter (warnings become errors)", _errors, r"warnings\.", lt),
)
"""State that other code relies on."""
_IMPOLITE = (
    _State("the beginning of sys.path", lambda: list(sys.path), differs=_has_prepended),
    _State("the recursion limit", sys.getrecursionlimit, differs=lt),
    _State("the warnings filter", lambda: list(warnings.filters)),
    _State("the root logger", _logging),
)
"""State whose change does other code no harm."""


@dataclass(frozen=True)
class ProcessState:
    """The shared state at one moment."""

    harmful: tuple[Any, ...]
    impolite: tuple[Any, ...]
    environ: dict[str, str]
    threads: set[int | None]
    children: bool


def process_state() -> ProcessState:
    harmful, impolite = (tuple(_read(state.read) for state in states) for states in (_HARMFUL, _IMPOLITE))
    threads = {thread.ident for thread in threading.enumerate()}
    return ProcessState(harmful, impolite, dict(os.environ), threads, _has_children())


def _read(read: Callable[[], Any]) -> Any:
    """Return one piece of state; if a plugin broke what reads it, the name of the error counts as the state."""
    try:
        return read()
    except BaseException as error:
        return type(error).__name__


def harm(before: ProcessState, after: ProcessState) -> Iterator[str]:
    """Yield the name of each state that was changed and that other code relies on."""
    yield from _changed_states(_HARMFUL, before.harmful, after.harmful)
    lost = [name for name in _changed_variables(before, after) if name not in after.environ or name.startswith(_NEEDED)]
    if lost:
        yield f"os.environ ({', '.join(lost[:3])})"
    for thread in _new_threads(before):
        if not thread.daemon and thread.is_alive():
            yield f"the end of the program: its thread {thread.name!r} is not a daemon"
    yield from _unusable()


def remarks(before: ProcessState, after: ProcessState) -> Iterator[str]:
    """Yield the name of each state that was changed without harm."""
    if names := _changed_variables(before, after):
        yield f"os.environ ({', '.join(names[:5])})"
    yield from _changed_states(_IMPOLITE, before.impolite, after.impolite)
    yield from (f"its thread {thread.name!r} goes on" for thread in _new_threads(before) if thread.daemon)
    if after.children and not before.children:
        yield "a process that it started goes on"


def _changed_states(states: tuple[_State, ...], before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[str]:
    for state, then, now in zip(states, before, after, strict=True):
        try:
            different = bool(state.differs(then, now))
        except BaseException:  # a compared object may be a plugin's
            different = True
        if different:
            yield state.name


def _changed_variables(before: ProcessState, after: ProcessState) -> list[str]:
    """Return the environment variables whose values differ."""
    names = {*before.environ, *after.environ}
    return sorted(name for name in names if before.environ.get(name) != after.environ.get(name))


def _has_children() -> bool:
    if not hasattr(os, "waitid"):
        return False
    with suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def _new_threads(before: ProcessState) -> list[threading.Thread]:
    """Return the threads that have begun since `before` and are not the host's."""
    found = [thread for thread in threading.enumerate() if thread.ident not in before.threads]
    return [each for each in found if each is not threading.current_thread() and not each.name.startswith("moryflow-")]


def _unusable() -> Iterator[str]:
    """Yield what other code needs and no longer works: opening files, finding modules, the standard streams."""
    try:
        with Path(os.devnull).open("rb"):
            pass
    except BaseException:  # an audit hook may raise anything
        yield "open(): files cannot be opened any more"
    try:
        find_spec("moryflow_sdk_and_no_more")  # it does not exist, so every finder is asked
    except BaseException:  # a finder may raise anything
        yield "sys.meta_path: modules cannot be found any more"
    try:
        codecs.lookup("moryflow_and_no_codec")  # it does not exist, so every function that was registered is asked
    except LookupError:
        pass
    except BaseException:  # such a function may raise anything
        yield "codecs.register(): unknown encodings cannot be looked up any more"
    try:
        closed = any(getattr(stream, "closed", False) for stream in (sys.stdin, sys.stdout, sys.stderr))
    except BaseException:  # a stream may raise anything
        closed = True
    if closed:
        yield "the standard streams: they are closed"


_CALLS = (
    *((state.name, state.calls) for state in _HARMFUL if state.calls),
    ("the end of the program: its thread", r"Thread"),
    ("the standard streams", r"close"),
    ("what runs at the end", r"atexit"),
    ("what runs: it forks", r"fork"),
)
"""By the beginning of a message: the calls that cause it."""
_NAME = re.compile(r"([A-Za-z_]\w*)\W*$")
_OTHER = re.compile(r"\s*(import|from|def|class|async def|#|@)\b")


def line_of(what: str, file: str) -> int:
    """Return the line of `file` that makes the change `what`, 0 if none is found."""
    calls = next((calls for beginning, calls in _CALLS if what.startswith(beginning)), "")
    named = _NAME.search(what.partition(" (")[0])
    pattern = re.compile(rf"\b({calls})" if calls else rf"\b{named[1]}\b" if named else "(?!)")
    with suppress(BaseException):  # the plugin may have broken reading files
        for number, line in enumerate(Path(file).read_text("utf-8", "replace").splitlines(), 1):
            if pattern.search(line) and not _OTHER.match(line):
                return number
    return 0


_IMMUTABLE = 1 << 8
"""Flag of types that cannot be changed."""
_MOVING = frozenset({"_", "__abstractmethods__", "__signature__"})
"""Names that Python and libraries set on first use."""


@dataclass
class SharedCode:
    """Records the modules that are loaded now, and their classes, each with its functions."""

    modules: dict[str, Any] = field(default_factory=lambda: dict(sys.modules))
    _held: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list[tuple[str, Any, dict[str, Any]]])

    def __post_init__(self) -> None:
        classes: dict[type, str] = {}
        for name, module in sorted(self.modules.items()):  # a package before its submodules: users import from the package
            if isinstance(module, ModuleType):
                self._held.append((name, module, _callables(module)))
                found = [value for value in vars(module).values() if isinstance(value, type)]
                own = [each for each in found if str(each.__module__).startswith(name) and not each.__flags__ & _IMMUTABLE]
                classes = {**{each: f"{name}.{each.__qualname__}" for each in own}, **classes}
        self._held += [(name, each, _callables(each)) for each, name in classes.items()]

    def changes(self) -> Iterator[str]:
        """Yield what was replaced since. The builtins are restored first, because the comparison needs them too."""
        held, now = next((held, vars(module)) for _, module, held in self._held if module is builtins)
        replaced = [name for name, value in held.items() if now.get(name) is not value]
        now.update((name, held[name]) for name in replaced)
        yield from (f"builtins.{name}" for name in replaced)
        yield from (f"sys.modules[{name!r}]" for name, module in self.modules.items() if sys.modules.get(name) is not module)
        planted = [name for name, module in sys.modules.items() if module is None and name not in self.modules]
        yield from (f"sys.modules[{name!r}]" for name in planted)
        for name, where, held in self._held:
            now = vars(where)
            lost = [each for each, value in held.items() if now.get(each) is not value]
            if isinstance(where, type):  # a new method that overrides an inherited one
                new = _callables(where).keys() - held.keys()
                lost += sorted(each for each in new if any(each in vars(base) for base in where.__mro__[1:]))
            if lost:
                yield f"{name}.{lost[0]}" if len(lost) == 1 else f"{name} ({', '.join(lost[:3])})"
        yield from self._planted()

    def _planted(self) -> Iterator[str]:
        """Yield the functions of a plugin in modules of the host and of Python that were not loaded before."""
        for name, module in list(sys.modules.items()):
            if name in self.modules or not isinstance(module, ModuleType) or name.partition(".")[0] not in _SHARED:
                continue
            own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
            for where in (module, *own):
                place = name if where is module else f"{name}.{where.__name__}"
                yield from (f"{place}.{each}" for each, value in _callables(where).items() if _is_of_plugin(value))


_SHARED = frozenset({"moryflow", "moryflow_sdk", "moryflow_builtins"}) | sys.stdlib_module_names


def _is_of_plugin(value: Any) -> bool:
    return str(getattr(getattr(value, "fget", value), "__module__", "")).startswith("moryflow_plugins.")


def _callables(where: Any) -> dict[str, Any]:
    """Return the functions and classes of a module, or the methods and properties of a class, by name."""
    if isinstance(where, ModuleType):
        kinds: tuple[type, ...] = (FunctionType, BuiltinFunctionType, type)
    else:
        kinds = (FunctionType, BuiltinFunctionType, classmethod, staticmethod, property)
    return {name: value for name, value in vars(where).items() if isinstance(value, kinds) and name not in _MOVING}

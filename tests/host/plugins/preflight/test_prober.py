"""The probe: what code that was never seen before does to a process of its own, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from moryflow import open_host
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.preflight.policy import AdmissionPolicy, probe, probe_all
from moryflow.plugins.preflight.prober import Prober, ProbeVerdict
from moryflow.plugins.preflight.shared_state import process_state

HELLO = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def hello() -> str:
    "Say hello."
    return "hello"

@hookimpl
def tools():
    return [hello]
"""
LATE = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    {body}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "plugins").mkdir(parents=True, mode=0o700)
    return folder


def written(home: Path, source: str, name: str = "mine") -> Candidate:
    file = home / "plugins" / f"{name}.py"
    file.write_text(source)
    file.chmod(0o600)
    return Candidate(name, "user", str(file), str(file), file=str(file))


ENOUGH = 60.0
"""Seconds for code that ends, on the slowest machine."""


async def probed(home: Path, source: str, seconds: float = ENOUGH) -> ProbeVerdict:
    return await probe(written(home, source), home=home, seconds=seconds)


def probed_until(home: Path, source: str, done: Callable[[ProbeVerdict], bool]) -> ProbeVerdict:
    """Return the verdict on code that may hang: a slow machine, where it has not come so far in a second, gets more time."""
    for seconds in (1.0, 4.0, 16.0):
        [verdict] = probe_all([written(home, source)], home=home, config={}, seconds=seconds)
        if done(verdict):
            break
    return verdict


@pytest.mark.parametrize("reading", ["import sys; sys.stdin.read()", "input()", "import os; os.read(0, 1)"])
async def test_an_import_that_reads_the_terminal_is_refused(home, reading):
    """In the host it would wait for what a person types, for ever, and take that from the conversation (SECURITY §3)."""
    verdict = await probed(home, f"{reading}\n{HELLO}")
    assert (verdict.ok, verdict.fatal, verdict.line) == (False, True, 1)
    assert "standard input" in verdict.hint
    assert (await probed(home, f"import sys; sys.stdin.isatty()\n{HELLO}")).ok


async def test_good_code_passes_with_what_it_brings(home):
    """Import, registration, contribute hooks (ARCHITECTURE §4, probe)."""
    verdict = await probed(home, HELLO)
    assert (verdict.ok, verdict.stage, verdict.hooks, verdict.tools) == (True, "contribute", ("tools",), ("hello",))


@pytest.mark.parametrize(
    ("source", "stage", "line", "error"),
    [
        ("x = 1\ndef broken(:\n", "import", 2, "SyntaxError"),
        ("import not_there\n", "import", 1, "ModuleNotFoundError"),
        ("x = 1\n1 / 0\n", "import", 2, "ZeroDivisionError"),
        ("raise KeyboardInterrupt\n", "import", 1, "KeyboardInterrupt"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n", "import", 3, "its text cannot be shown"),
        ("from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_gat(): ...\n", "register", 2, "unknown hook"),
        ("from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_gate(cal): ...\n", "register", 2, "unknown argument cal"),
    ],
)
async def test_code_that_raises_is_named_and_harmless(home, source, stage, line, error):
    """With stage, file and line; the host survives it, so it may try again when the world has changed (invariant 5)."""
    verdict = await probed(home, source)
    assert (verdict.ok, verdict.fatal, verdict.stage, verdict.line) == (False, False, stage, line)
    assert error in verdict.error and verdict.file.endswith("mine.py")


@pytest.mark.parametrize(
    ("source", "stage", "line", "error"),
    [
        ("x = 1\nwhile True: pass\n", "import", 2, "it did not finish in "),
        ("import time\ntime.sleep(60)\n", "import", 2, "it did not finish"),
        ("def __getattr__(name):\n    while True: pass\n", "register", 2, "it did not finish"),
        (LATE.format(body="while True: pass"), "contribute", 4, "it did not finish"),
        ("import os\nos._exit(3)\n", "import", 2, "exit code 3"),
        (LATE.format(body="import os; os._exit(0)"), "contribute", 4, "ended the process"),
        ("import os\nos.abort()\n", "import", 2, "SIGABRT"),
        ("import ctypes\nctypes.string_at(0)\n", "import", 0, "SIGSEGV"),
        ("x = bytearray(10**12)\n", "import", 1, "MemoryError"),
        ("try:\n    x = bytearray(10**12)\nexcept MemoryError:\n    raise ValueError('no')\n", "import", 4, "ValueError: no"),
        ("class Mine(MemoryError): ...\nraise Mine('none')\n", "import", 2, "Mine: none"),
        (LATE.format(body="raise MemoryError"), "contribute", 4, "MemoryError"),
        ("def f(): return f()\nf()\n", "import", 1, "RecursionError"),
        ("def __getattr__(name): return __getattr__(name)\n", "register", 1, "RecursionError"),
        (LATE.format(body="return tools()"), "contribute", 4, "RecursionError"),
        ("import sys\nsys.exit(3)\n", "import", 2, "it called sys.exit(3)"),
        (LATE.format(body="raise SystemExit(3)"), "contribute", 4, "SystemExit"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "import", 0, "SIGKILL"),
        ("import os\nos.closerange(3, 4096)\n", "import", 0, "ended the process"),
    ],
)
async def test_code_that_the_host_would_not_survive_costs_the_probe(home, source, stage, line, error):
    """An endless loop, ``os._exit``, a crash or a memory bomb: named, with the line where it is known (ARCHITECTURE §4)."""

    def is_as_expected(verdict: ProbeVerdict) -> bool:
        return verdict.stage == stage and error in verdict.error and line in (0, verdict.line)

    verdict = probed_until(home, source, is_as_expected)
    assert is_as_expected(verdict), verdict
    assert (verdict.ok, verdict.fatal, verdict.stands) == (False, True, False)
    assert verdict.file.endswith("mine.py")


async def test_a_person_is_told_how_code_gets_more_time(home):
    """Where it had the usual time, and no more (STYLE, errors)."""
    verdict = await probed(home, "import time\ntime.sleep(60)\n", 1.0)
    assert verdict.error == "it did not finish in 1 s" and "gives it more time" in verdict.hint


@pytest.mark.parametrize(
    ("source", "stage", "line"),
    [
        ("x = 1\ny = b'x' * (6 << 30)\n", "import", 2),
        ("x = []\nwhile True:\n    x.append(b'x' * 10**7)\n", "import", 3),
        ("x = []\ntry:\n    while True:\n        x.append(b'x' * 10**7)\nexcept MemoryError: pass\n", "import", 4),
        (LATE.format(body="return [b'x' * (6 << 30)]"), "contribute", 4),
    ],
)
async def test_code_that_fills_memory_is_ended_far_below_what_the_machine_has(home, source, stage, line):
    """Whatever it does about a MemoryError; it is not probed again and never imported (ARCHITECTURE §4, invariant 5)."""
    verdict = await probed(home, source)
    assert (verdict.ok, verdict.fatal, verdict.stands, verdict.stage) == (False, True, False, stage)
    assert "it fills more than 512 MB of memory" in verdict.error and verdict.line in (0, line)
    known = AdmissionPolicy(home).cached(written(home, source))
    assert known is not None and known.fatal and not known.stands
    async with await open_host(home, environ={}) as host:
        (record,) = [record for record in host.plugin_set.records if record.name == "mine"]
    assert (record.status, record.error) == ("failed", verdict.error)


STRAY = """
import os, time
if os.fork() == 0:
    {begin}
    open({note!r}, "a").write(f"{{os.getpid()}} ")
    os.closerange(0, 64)
    time.sleep(60)
    os._exit(0)
while not os.path.exists({note!r}): time.sleep(0.01)
{end}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process can be found whose parent has ended")
@pytest.mark.parametrize("begin", ["pass", "os.setsid()", "os.setsid()\n    if os.fork(): os._exit(0)"])
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "while True: pass"])
async def test_what_a_probe_began_ends_with_it(home, tmp_path, begin, end):
    """In its group or out of it, whether the probe ends well, alone or at its deadline (ARCHITECTURE §4)."""
    note = tmp_path / "pids"
    source = STRAY.format(begin=begin, end=end, note=str(note))
    if "fork()" in begin:  # a daemon may be ended before its first word, for which the code waits
        await probed(home, source, 1.0)
    else:
        probed_until(home, source, lambda _: note.exists())
        assert note.exists()
    pids = note.read_text().split() if note.exists() else []
    for _ in range(10_000):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            break
        await asyncio.sleep(0.01)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(sys.platform != "linux", reason="only there the processes that one began can be found")
async def test_memory_that_its_own_processes_fill_counts(home):
    """A fork that fills memory is as bad as the code itself (ARCHITECTURE §4)."""
    source = "import os, time\nif os.fork() == 0:\n    x = b'x' * (600 << 20)\n    time.sleep(60)\nos.wait()\n"
    verdict = await probed(home, source)
    assert (verdict.ok, verdict.fatal) == (False, True) and "MB of memory" in verdict.error


async def test_memory_that_was_given_back_counts_too(home):
    """The host would have had to find it, at each start (ARCHITECTURE §4)."""
    verdict = await probed(home, "x = b'x' * (1100 << 20)\ndel x\n")
    assert (verdict.ok, verdict.fatal) == (False, True) and "MB of memory" in verdict.error


async def test_code_that_needs_some_memory_passes(home):
    """A library with tables of 100 MB is not a bomb (ARCHITECTURE §4)."""
    assert (await probed(home, "x = b'x' * (100 << 20)\n" + HELLO)).ok


async def test_who_gave_it_more_time_is_not_told_to(home):
    """A hint is something that helps (STYLE, errors)."""
    verdict = await probed(home, "while True: pass\n", 2.5)
    assert (verdict.timeout, verdict.line) == (True, 1) and "more time" not in verdict.hint


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import json\n\njson.loads = None\n", 3),
        ("from pathlib import Path\ndef exists(self): return True\nPath.exists = exists\n", 3),
        ("import os\nx = 1\nos.chdir('/')\n", 3),
        ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n", 2),
        ("import sys\nsys.modules['httpx'] = None\n", 2),
    ],
)
async def test_the_line_that_changes_what_belongs_to_everyone_is_named(home, source, line):
    """File and line wherever they can be told (STYLE, errors)."""
    assert (await probed(home, source)).line == line


async def test_probes_are_forked_from_one_warm_helper_two_at_a_time(home):
    """One parent, that is not the host, for all; never three at once (ARCHITECTURE §4, probe)."""
    source = """
        import os, time
        from pathlib import Path
        begun = time.monotonic()
        time.sleep(0.2)
        Path(__file__).with_suffix(".txt").write_text(f"{os.getpid()} {os.getppid()} {begun} {time.monotonic()}")
    """
    items = [written(home, dedent(source), f"plugin_{number}") for number in range(5)]
    verdicts = await asyncio.gather(*(probe(item, home=home, seconds=ENOUGH) for item in items))
    assert all(verdict.ok for verdict in verdicts)
    rows = [Path(item.target).with_suffix(".txt").read_text().split() for item in items]
    assert len({row[0] for row in rows}) == 5
    assert len({row[1] for row in rows}) == 1 and rows[0][1] != str(os.getpid())
    times = [(float(begun), float(ended)) for _, _, begun, ended in rows]
    assert max(sum(begun <= moment < ended for begun, ended in times) for moment, _ in times) == 2


def test_verdicts_are_of_one_python_and_of_what_is_installed(home, tmp_path, monkeypatch):
    """Another version of a dependency, or of Python, and code is probed again (ARCHITECTURE §4, probe)."""
    item = written(home, HELLO)
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def install(version: str) -> None:
        shutil.rmtree(site, ignore_errors=True)
        folder = site / f"needed-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: needed\nVersion: {version}\n")

    install("1.0")
    [verdict] = probe_all([item], home=home, config={}, seconds=ENOUGH)
    assert verdict.fresh
    assert AdmissionPolicy(home).cached(item) is not None
    install("2.0")
    assert AdmissionPolicy(home).cached(item) is None
    install("1.0")
    assert AdmissionPolicy(home).cached(item) is not None
    monkeypatch.setattr(sys, "version", "4.0")
    shutil.rmtree(home / "cache" / "entry_points", ignore_errors=True)
    for kept in (home / "cache").iterdir():
        if kept.name != "probes.json":
            kept.unlink()
    assert AdmissionPolicy(home).cached(item) is None


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import builtins\nbuiltins.open = None\n", "builtins.open"),
        ("import json\njson.loads = lambda text: {}\n", "json.loads"),
        ("import sys\nsys.stdout = None\n", "sys.stdout"),
        ("import sys\nsys.path.clear()\n", "sys.path"),
        ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n", "SIGTERM"),
        ("import socket\nsocket.socket = None\n", "socket.socket"),
        ("import ssl\nssl.create_default_context = None\n", "ssl.create_default_context"),
        ("import asyncio\nasyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())\n", "event loop policy"),
        ("import moryflow_sdk\nmoryflow_sdk.Deny = moryflow_sdk.Allow\n", "moryflow_sdk.Deny"),
        ("import warnings\nwarnings.simplefilter('error')\n", "warnings"),
        ("import os\nos.chdir('/')\n", "the current folder"),
        ("import os\nos.umask(0)\n", "the umask"),
        ("import sys\nsys.setrecursionlimit(60)\n", "recursion"),
        ("import gc\ngc.disable()\n", "garbage"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n", "is not a daemon"),
        ("import sys\nsys.stdout.close()\n", "the standard streams"),
        ("import sqlite3\nsqlite3.connect = None\n", "sqlite3.connect"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))\n", "the limits"),
        ("import signal\nsignal.alarm(60)\n", "the alarm"),
        ("import os\nif os.fork() == 0:\n    os._exit(0)\n", "it forks"),
        ("import sys\ndef no(event, args):\n    if event == 'open': raise RuntimeError\nsys.addaudithook(no)\n", "open()"),
        ("import pydantic\npydantic.BaseModel.model_validate = classmethod(lambda *a: 1)\n", "BaseModel.model_validate"),
        ("import pathlib\npathlib.Path.exists = lambda self: True\n", "pathlib.Path.exists"),
        ("import pathlib\npathlib.PosixPath.exists = lambda self: True\n", "pathlib.PosixPath.exists"),
        ("import uuid\ndel uuid.uuid4\n", "uuid.uuid4"),
        ("import sys\nsys.modules['httpx'] = None\n", "sys.modules['httpx']"),
        ("import sys\nsys.modules.pop('moryflow.hooks.plugin_set')\n", "sys.modules['moryflow.hooks.plugin_set']"),
        ("import asyncio\nasyncio.BaseEventLoop.create_task = None\n", "BaseEventLoop.create_task"),
        ("import builtins\nbuiltins.sorted = builtins.list = None\n", "builtins."),
        ("import sys\nsys.stdout.write = lambda text: 0\n", "sys.stdout"),
        ("import os\nos.dup2(2, 1)\n", "the files behind the standard streams"),
        ("import os\nos.close(2)\n", "the files behind the standard streams"),
        ("import os\nos.environ.clear()\n", "os.environ"),
        ("import os\nos.environ = {}\n", "os.environ"),
        ("import os\nos.environ['MORYFLOW_HOME'] = '/nowhere'\n", "os.environ (MORYFLOW_HOME)"),
        ("import sys\nsys.settrace(lambda *a: None)\n", "the tracing"),
        ("import threading\nthreading.setprofile(lambda *a: None)\n", "the tracing"),
        ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n", "signals that are blocked"),
        ("import signal\nsignal.setitimer(signal.ITIMER_VIRTUAL, 60)\n", "the alarm"),
        ("import sys\nsys.path_hooks.clear()\n", "sys.path_hooks"),
        ("import sys\nsys.argv[:] = ['other']\n", "what sys says"),
        ("import gc\ngc.set_threshold(0)\n", "garbage"),
        pytest.param(
            "import os\nos.nice(5)\n",
            "the priority",
            marks=pytest.mark.skipif(os.nice(0) > 14, reason="these tests run with the lowest priority already"),
        ),
        ("import atexit\natexit._clear()\n", "atexit"),
        ("import socket\nsocket.setdefaulttimeout(0.001)\n", "default timeout of sockets"),
        ("import logging\nlogging.disable()\n", "what is logged"),
        ("import warnings\nwarnings.simplefilter('error', DeprecationWarning)\n", "warnings"),
        ("import sqlite3\nsqlite3.register_adapter(str, lambda text: 'x')\n", "how SQLite stores"),
        ("import sys\nsys.set_asyncgen_hooks(firstiter=lambda made: 1 / 0)\n", "settings of the interpreter"),
        ("import sys\nsys.setswitchinterval(1000)\n", "settings of the interpreter"),
        ("import codecs\ncodecs.register_error('strict', lambda error: ('', error.end))\n", "bytes that are not text"),
        ("import codecs\ncodecs.register(lambda name: 1 / 0)\n", "codecs.register()"),
        (
            "import moryflow_builtins.permission.verdict as gate\ngate.decide = lambda policy, call: None\n",
            "moryflow_builtins.permission.verdict.decide",
        ),
        (
            "from moryflow_builtins.permission.policy import Policy\nPolicy.by_text = lambda *given: None\n",
            "moryflow_builtins.permission.policy.Policy.by_text",
        ),
    ],
)
async def test_code_that_changes_what_belongs_to_everyone_is_refused(home, source, what):
    """What the helper had loaded is compared after import and contributions (ARCHITECTURE §4, probe)."""
    verdict = await probed(home, source)
    assert (verdict.ok, verdict.fatal) == (False, True)
    assert what in verdict.error and "plugin_start" in verdict.hint


@pytest.mark.filterwarnings("error")
def test_looking_at_what_belongs_to_everyone_is_no_reason_for_a_warning():
    """Nothing is asked for by a name that a later Python gives up, and each question has an answer (SECURITY §3)."""
    state = process_state()
    assert [value for value in (*state.harmful, *state.impolite) if str(value).endswith(("Error", "Warning"))] == []


@pytest.mark.parametrize(
    ("source", "remark"),
    [
        ("import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\n", "os.environ (TOKENIZERS_PARALLELISM)"),
        ("import warnings\nwarnings.simplefilter('ignore')\n", "the warnings filter"),
        ("import logging\nlogging.basicConfig(level=10)\n", "the root logger"),
        ("import sys\nsys.path.insert(0, '/nowhere')\n", "the beginning of sys.path"),
        ("import sys\nsys.setrecursionlimit(20000)\n", "the recursion limit"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n", "its thread"),
        ("print('hello')\n", "standard output: it prints 'hello'"),
        ("import os\nos.write(1, b'raw')\n", "standard output: it prints 'raw'"),
    ],
)
async def test_bad_manners_are_told_and_no_reason_to_refuse(home, source, remark):
    """What others can live with is remarked, also what is printed (ARCHITECTURE §4, probe)."""
    verdict = await probed(home, source + HELLO)
    assert verdict.ok
    assert any(remark in each for each in verdict.changed), verdict.changed


async def test_good_code_that_uses_much_has_changed_nothing(home):
    """What libraries do while they are imported is no harm: half of Python's own, and ours, imported (ARCHITECTURE §4)."""
    modules = "httpx, yaml, json5, rich.console, prompt_toolkit, watchdog.observers, click, pathspec, frontmatter"
    python = "unittest.mock, multiprocessing, http.server, xml.etree.ElementTree, email, decimal, ctypes, concurrent.futures"
    ours = "moryflow.testing, moryflow.runtime.host, moryflow.cli, moryflow_builtins.files, moryflow_builtins.permission"
    use = (
        "import typing\nclass P(typing.Protocol):\n    def f(self): ...\nclass Q(P): pass\nQ()\n"
        "class M(pydantic.BaseModel):\n    a: int = 1\nM(a=2).model_dump_json()\n"
    )
    verdict = await probed(home, f"import pydantic, {modules}, {python}, {ours}\n{use}{HELLO}")
    assert (verdict.ok, verdict.error, verdict.changed) == (True, "", ())


async def test_a_plugin_may_do_what_it_likes_with_libraries_of_its_own(home, tmp_path):
    """Guarded is what the host relies on (ARCHITECTURE §4, probe)."""
    package = home / "plugins" / "mine"
    package.mkdir(mode=0o700)
    for name, text in {
        "__init__.py": "from . import helper\nhelper.word = lambda: 2\n" + HELLO,
        "helper.py": "def word(): return 1\n",
    }.items():
        (package / name).write_text(text)
        (package / name).chmod(0o600)
    found = Candidate("mine", "user", str(package), str(package), file=str(package / "__init__.py"))
    assert (await probe(found, home=home, seconds=ENOUGH)).ok


@pytest.mark.parametrize(
    ("body", "error"),
    [("os._exit(9)", "without a message (exit code 9)"), ("time.sleep(60)", "did not finish")],
)
async def test_code_that_keeps_the_host_from_ending_is_refused(home, body, error):
    """What it registers to run at the end runs in the probe too (ARCHITECTURE §4, probe)."""
    source = f"import atexit, os, time\natexit.register(lambda: {body})\n"
    verdict = probed_until(home, source, lambda verdict: verdict.stage == "atexit")
    assert (verdict.ok, verdict.stage) == (False, "atexit") and error in verdict.error


async def test_bad_manners_are_noted_and_forgiven(home):
    """Libraries set variables of the environment; that is no reason to refuse a plugin."""
    verdict = await probed(home, "import os\nos.environ['SOME_SETTING'] = '1'\n")
    assert verdict.ok and verdict.changed == ("os.environ (SOME_SETTING)",)
    assert "SOME_SETTING" not in os.environ


async def test_what_a_probe_leaves_running_ends_with_it(home):
    """Each probe has a process group of its own, which is killed whole (ARCHITECTURE §4)."""
    pids = home / "pids"
    source = f"""
import subprocess
child = subprocess.Popen(["sleep", "60"])
with open({str(pids)!r}, "w") as file:
    file.write(str(child.pid))
"""
    assert (await probed(home, source)).ok
    child = int(pids.read_text())
    for _ in range(500):
        if not _runs(child):
            break
        await asyncio.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


async def test_two_probes_run_at_a_time(home):
    """More of them wait for their turn, and each has its own time (ARCHITECTURE §4)."""
    admission = AdmissionPolicy(home)
    await probe(written(home, HELLO), home=home, seconds=ENOUGH)
    slow = [written(home, f"import time\ntime.sleep(0.3)\nx = {number}\n", f"slow{number}") for number in range(4)]
    started = time.monotonic()
    for item in slow:
        admission.ask(item, {}, seconds=ENOUGH)
    await admission.examine(slow, {}, wait=300)
    assert all(admission.cached(item).ok for item in slow)
    assert time.monotonic() - started > 0.55


async def test_a_verdict_is_kept_by_content_and_surroundings(home):
    """Known code costs a look-up; another content, Python or dependency is probed again (ARCHITECTURE §4)."""
    item = written(home, HELLO)
    assert AdmissionPolicy(home).cached(item) is None
    assert (await probe(item, home=home, seconds=ENOUGH)).fresh
    known = AdmissionPolicy(home).cached(item)
    assert known is not None and known.ok and not known.fresh
    written(home, HELLO + "\n# changed")
    assert AdmissionPolicy(home).cached(item) is None
    written(home, HELLO)
    assert AdmissionPolicy(home).cached(item) == known
    file = home / "cache" / "probes.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "surroundings": [content["surroundings"][0], "other"]}))
    assert AdmissionPolicy(home).cached(item) is None


def test_verdicts_that_are_not_used_make_room(home, monkeypatch):
    """A day of saves must not grow the cache, nor drop what is in use."""
    monkeypatch.setattr("moryflow.plugins.preflight.prober._KEPT", 10)
    cache = AdmissionPolicy(home).cache
    cache.put(ProbeVerdict(ok=True, hash="in use"))
    for number in range(30):
        cache.put(ProbeVerdict(ok=True, hash=f"save {number}"))
        assert cache.get("in use") is not None
        cache.save()
    kept = json.loads((home / "cache" / "probes.json").read_bytes())["verdicts"]
    assert len(kept) == 10 and {"in use", "save 29"} <= kept.keys()


async def test_code_that_took_too_long_is_given_another_try_later(home):
    """A machine may have been busy; a crash stays a crash."""
    admission = AdmissionPolicy(home)
    admission.cache.put(ProbeVerdict(ok=False, fatal=True, timeout=True, hash="slow"))
    admission.cache.put(ProbeVerdict(ok=False, fatal=True, hash="crash"))
    assert admission.cache.get("slow") is not None
    for verdict in admission.cache._verdicts.values():
        object.__setattr__(verdict, "at", time.time() - 4000)
    assert admission.cache.get("slow") is None and admission.cache.get("crash") is not None


def test_a_file_with_tools_is_imported_and_no_more(home):
    """Such a file is not a plugin: what it may hold is for ``external_tools`` to say (D57)."""
    file = home / "tools.py"
    file.write_text("def tool_gat(): ...\n")
    file.chmod(0o600)
    assert [verdict.ok for verdict in probe_all([file], home=home, config={}, seconds=ENOUGH)] == [True]
    file.write_text("x = 1\n1 / 0\n")
    assert [(verdict.line, verdict.ok) for verdict in probe_all([file], home=home, config={}, seconds=ENOUGH)] == [(2, False)]


def test_a_helper_that_is_killed_is_replaced(home):
    """Whoever kills it twice is to blame; the others are answered (ARCHITECTURE §4)."""
    prober = Prober()
    admission = AdmissionPolicy(home, prober=prober)
    try:
        killer = admission.ask(written(home, "import os\nos.kill(os.getppid(), 9)\n", "killer"), {}, seconds=ENOUGH)
        other = admission.ask(written(home, HELLO, "other"), {}, seconds=ENOUGH)
        assert "ended the process that probed it" in killer.result(300).error
        assert admission.ask(written(home, HELLO, "third"), {}, seconds=ENOUGH).result(300).ok
        assert other.result(300).ok
    finally:
        prober.close()


async def test_files_that_others_may_write_are_not_even_probed(home):
    """Group- or world-writable files give no code (R17)."""
    item = written(home, HELLO)
    Path(item.target).chmod(0o666)
    admission = AdmissionPolicy(home)
    assert admission.unknown([item]) == [] and admission.cached(item) is None


async def test_a_probe_that_cannot_be_made_is_said_and_not_remembered(home, monkeypatch):
    """No process, no descriptor: the plugin waits for better times, and the next start tries again (SECURITY §3)."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    item = written(home, HELLO)
    admission = AdmissionPolicy(home, prober=Prober())
    monkeypatch.setattr("moryflow.plugins.preflight.prober.subprocess.Popen", refuse)
    await admission.examine([item], {}, wait=5)
    verdict = admission.cached(item)
    assert verdict is not None and not verdict.stands and "Too many open files" in verdict.error
    assert AdmissionPolicy(home).cached(item) is None

"""The probe: what code that was never seen before does to a process of its own, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow import open_host
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.preflight.policy import AdmissionPolicy, probe_all
from moryflow.plugins.preflight.prober import Prober, ProbeVerdict

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
    [verdict] = await asyncio.to_thread(probe_all, [written(home, source)], home=home, config={}, seconds=seconds)
    return verdict


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
        ("x = 1\nwhile True: pass\n", "import", 0, "it did not finish in "),
        ("import time\ntime.sleep(60)\n", "import", 0, "it did not finish"),
        ("def __getattr__(name):\n    while True: pass\n", "register", 0, "it did not finish"),
        (LATE.format(body="while True: pass"), "contribute", 0, "it did not finish"),
        ("import os\nos._exit(3)\n", "import", 0, "exit code 3"),
        (LATE.format(body="import os; os._exit(0)"), "contribute", 0, "ended the process"),
        ("import os\nos.abort()\n", "import", 0, "SIGABRT"),
        ("import ctypes\nctypes.string_at(0)\n", "import", 0, "SIGSEGV"),
        ("x = bytearray(10**12)\n", "import", 1, "MemoryError"),
        ("try:\n    x = bytearray(10**12)\nexcept MemoryError:\n    raise ValueError('no')\n", "import", 4, "ValueError: no"),
        ("class Mine(MemoryError): ...\nraise Mine('none')\n", "import", 2, "Mine: none"),
        ("def f(): return f()\nf()\n", "import", 1, "RecursionError"),
        ("def __getattr__(name): return __getattr__(name)\n", "register", 1, "RecursionError"),
        ("import sys\nsys.exit(3)\n", "import", 2, "it called sys.exit(3)"),
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
    ("source", "line"),
    [("x = 1\ny = b'x' * (6 << 30)\n", 2), ("x = []\nwhile True:\n    x.append(b'x' * 10**7)\n", 3)],
)
async def test_code_that_fills_memory_is_ended_far_below_what_the_machine_has(home, source, line):
    """It is not probed again and never imported (ARCHITECTURE §4, invariant 5)."""
    verdict = await probed(home, source)
    assert (verdict.ok, verdict.fatal, verdict.stands, verdict.stage) == (False, True, False, "import")
    assert "MemoryError" in verdict.error and verdict.line == line
    known = AdmissionPolicy(home).cached(written(home, source))
    assert known is not None and known.fatal and not known.stands
    async with await open_host(home, environ={}) as host:
        (record,) = [record for record in host.plugin_set.records if record.name == "mine"]
    assert (record.status, record.error) == ("failed", verdict.error)


async def test_code_that_needs_some_memory_passes(home):
    """A library with tables of 100 MB is not a bomb (ARCHITECTURE §4)."""
    assert (await probed(home, "x = b'x' * (100 << 20)\n" + HELLO)).ok


async def test_who_gave_it_more_time_is_not_told_to(home):
    """A hint is something that helps (STYLE, errors)."""
    verdict = await probed(home, "while True: pass\n", 2.5)
    assert verdict.timeout and "more time" not in verdict.hint


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


@pytest.mark.parametrize("end", ["", "os._exit(0)", "while True: pass"])
def test_what_a_probe_leaves_running_ends_with_it(home, end):
    """Each probe has a process group of its own, which is killed whole (ARCHITECTURE §4)."""
    pids = home / "pids"
    source = f"""
import os, subprocess
child = subprocess.Popen(["sleep", "60"])
with open({str(pids)!r}, "w") as file:
    file.write(str(child.pid))
{end}
"""
    probed_until(home, source, lambda _: pids.exists())
    child = int(pids.read_text())
    for _ in range(500):
        if not _runs(child):
            break
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


async def test_a_verdict_is_kept_by_content_and_surroundings(home):
    """Known code costs a look-up; another content, Python or dependency is probed again (ARCHITECTURE §4)."""
    item = written(home, HELLO)
    assert AdmissionPolicy(home).cached(item) is None
    assert (await probed(home, HELLO)).fresh
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


def test_old_verdicts_make_room(home, monkeypatch):
    """A day of saves must not grow the cache."""
    monkeypatch.setattr("moryflow.plugins.preflight.prober._KEPT", 10)
    cache = AdmissionPolicy(home).cache
    for number in range(30):
        cache.put(ProbeVerdict(ok=True, hash=f"save {number}"))
    cache.save()
    kept = json.loads((home / "cache" / "probes.json").read_bytes())["verdicts"]
    assert kept.keys() == {f"save {number}" for number in range(20, 30)}


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


def test_closing_ends_what_runs_and_blames_nobody(home):
    """A host that ends in the middle of a probe must not remember the plugin as one that crashes (ARCHITECTURE §4)."""
    prober = Prober()
    admission = AdmissionPolicy(home, prober=prober)
    asked = [admission.ask(written(home, f"while True: {number}\n", f"m{number}"), {}, seconds=ENOUGH) for number in range(3)]
    while len(prober._running) < 2:
        time.sleep(0.01)
    prober.close()
    assert all(future.result(300).lost for future in asked)
    admission.cache.save()
    assert AdmissionPolicy(home).cached(written(home, "while True: 0\n", "m0")) is None


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

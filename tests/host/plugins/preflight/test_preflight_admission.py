"""A host and code it has not seen before: it answers while the probe goes on, and the code joins when it has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moryflow import open_host
from moryflow.cli.commands.doctor import _plugins
from moryflow.cli.open_host import warn
from moryflow.cli.options import Flags
from moryflow.plugins.discovery import discover
from moryflow.plugins.preflight import policy
from moryflow.runtime.generation import promising_first
from moryflow.runtime.selection import refuse_failed
from moryflow_sdk import PluginError

HELLO = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def {name}() -> str:
    "Say hello."
    return "hello"

@hookimpl
def tools():
    return [{name}]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "plugins").mkdir(parents=True, mode=0o700)
    (folder / "vault").mkdir()
    return folder


def write(home: Path, name: str, source: str) -> None:
    file = home / "plugins" / f"{name}.py"
    file.write_text(source)
    file.chmod(0o600)


WAITS = """
import os, time
until = time.monotonic() + {seconds}
while time.monotonic() < until and not os.path.exists({go!r}):
    time.sleep(0.02)
"""
Write = Callable[..., None]


@pytest.fixture
def write_waiting(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write plugins whose probe waits for :func:`go`, however long a slow host takes until it looks."""
    monkeypatch.setitem(policy.AdmissionPolicy.ask.__kwdefaults__, "seconds", 300.0)

    def write_it(name: str, source: str = "", *, seconds: float = 200.0) -> None:
        write(home, name, WAITS.format(go=str(home / "go"), seconds=seconds) + (source or HELLO.format(name=name)))

    yield write_it
    go(home)


def go(home: Path) -> None:
    (home / "go").touch()


def records(host) -> dict:
    return {record.name: record for record in host.plugin_set.records}


async def test_a_host_answers_while_probing_goes_on_and_takes_the_rest_at_the_next_turn(home, write_waiting):
    """What is not probed yet is ``pending``, with its file; a later turn has it (ARCHITECTURE §4)."""
    write(home, "quick", HELLO.format(name="quick"))
    for number in range(3):
        write_waiting(f"slow{number}")
    script = home / "script.json"
    script.write_text('["done", "done"]')
    async with await open_host(home, environ={}, wait=0.1) as host:
        session = await host.new_session(home / "vault", model=f"script:{script}")
        waiting = records(host)["slow2"]
        assert (waiting.status, waiting.stage) == ("pending", "probe") and waiting.file.endswith("slow2.py")
        await session.prompt("hi")
        go(home)
        async with asyncio.timeout(300):
            while not {"slow0", "slow1", "slow2"} <= host.tools.keys():
                await asyncio.sleep(0.05)
                await host.refresh_if_changed()
        assert records(host)["slow2"].status == "loaded"


async def test_a_command_says_in_one_line_what_is_left_out_for_now(home, write_waiting, capsys):
    """Names, the reason and the next command, on standard error (ARCHITECTURE §4)."""
    for number in range(5):
        write_waiting(f"slow{number}")
    async with await open_host(home, environ={}, wait=0.01) as host:
        warn(host, Flags())
        expected = "moryflow: 5 plugins are not loaded yet (slow0, slow1, slow2 and 2 more), "
        said = capsys.readouterr().err
        assert said.startswith(expected) and said.endswith("moryflow plugin check tries all of them now\n")
        assert said.count("\n") == 1
        [found] = [item for item in _plugins(host) if item.name == "plugin"]
        assert (found.state, found.next_step) == ("warning", "moryflow plugin check") and "5 plugins" in found.text


async def test_strict_waits_for_the_probe_and_goes_on_without_none(home, write_waiting):
    """What was asked for is there, or the turn is refused: nothing is left out of a run in CI (S0.94, CONTRACT §1)."""
    write(home, "slow", f"import time\ntime.sleep(0.3)\n{HELLO.format(name='slow')}")
    async with await open_host(home, environ={"MORYFLOW_STRICT": "1"}, wait=0.01) as host:
        assert records(host)["slow"].status == "loaded"
    async with await open_host(home, environ={}, wait=0.01) as host:
        write_waiting("late")
        await host.refresh()
        assert records(host)["late"].status == "pending"
        with pytest.raises(PluginError, match="'late' is not there yet"):
            refuse_failed(host.plugin_set)


async def test_a_turn_does_not_wait_again_for_a_probe_that_the_start_has_waited_for(home):
    """A one-shot command waits once (NF: up with 100 broken plugins within 5 s)."""
    write(home, "quick", HELLO.format(name="quick"))
    write(home, "endless", "while True: pass")
    async with await open_host(home, environ={}, wait=0.01) as host:
        async with asyncio.timeout(300):
            while "quick" not in host.tools:
                await host.refresh_if_changed()
                await asyncio.sleep(0.02)
        assert records(host)["endless"].status == "pending"


async def test_code_that_is_known_is_not_probed_again(home, monkeypatch):
    """Its start costs a look-up (ARCHITECTURE §4)."""
    write(home, "mine", HELLO.format(name="mine"))
    async with await open_host(home, environ={}) as host:
        assert records(host)["mine"].status == "loaded"

    def refuse(*_: object) -> None:
        raise AssertionError("it was probed again")

    monkeypatch.setattr("moryflow.plugins.preflight.prober.Prober.ask", refuse)
    async with await open_host(home, environ={}) as host:
        assert records(host)["mine"].status == "loaded"


async def test_disabled_plugins_and_safe_mode_probe_nothing(home, monkeypatch):
    """What is not wanted does not run, not even there."""
    write(home, "mine", "x = 1\n")
    (home / "config.jsonc").write_text('{"disabledPlugins": ["mine"]}')
    monkeypatch.setattr("moryflow.plugins.preflight.prober.Prober.ask", None)
    async with await open_host(home, environ={}) as host:
        assert records(host)["mine"].status == "skipped"
    (home / "config.jsonc").write_text("{}")
    for options in ({"safe_mode": True}, {"plugins": []}):
        async with await open_host(home, environ={}, **options) as host:
            assert records(host)["mine"].status == "skipped"


async def test_a_gate_that_waits_for_the_probe_raises_the_floor(home, write_waiting):
    """A missing gate is not an allow, also for the moment (invariant 4)."""
    write_waiting("gate", "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_gate(call): ...\n")
    async with await open_host(home, environ={}, wait=0.05) as host:
        assert host.plugin_set.missing_gates == ("gate",)


async def test_a_failure_that_the_host_survives_is_tried_again_at_the_next_start(home):
    """A missing file or variable may be there now, and the code is the same (invariant 5)."""
    needed = home / "needed.txt"
    write(home, "mine", f"open({str(needed)!r}).read()\n{HELLO.format(name='mine')}")
    async with await open_host(home, environ={}) as host:
        assert records(host)["mine"].status == "failed" and records(host)["mine"].line == 1
    needed.write_text("")
    async with await open_host(home, environ={}) as host:
        assert records(host)["mine"].status == "loaded"


async def test_many_broken_plugins_do_not_keep_a_host_from_answering(home):
    """Loops, crashes and mistakes beside three good ones: up, three work, each is named in the end (SECURITY §4)."""
    bad = ["while True: pass\n", "import os\nos._exit(1)\n", "def (\n", "1/0\n", "import os\nos.abort()\n", "import nope\n"]
    for number in range(18):
        write(home, f"bad{number}", bad[0] if number == 0 else bad[1 + number % 5])
    for number in range(3):
        write(home, f"good{number}", HELLO.format(name=f"good{number}"))
    async with await open_host(home, environ={}, wait=1.0) as host:
        assert records(host)["bad0"].status == "pending", "the start has waited for the endless one"
        async with asyncio.timeout(300):
            while any(record.status == "pending" for record in host.plugin_set.records):
                await asyncio.sleep(0.05)
                await host.refresh_if_changed()
        assert {"good0", "good1", "good2"} <= host.tools.keys()
        failed = [record for record in host.plugin_set.records if record.name.startswith("bad")]
        assert all(
            record.status == "failed" and record.error and record.file.endswith(f"{record.name}.py") for record in failed
        )


def crowd(write_waiting: Write, size: int, *, seconds: float = 200.0) -> None:
    """Write broken plugins whose probe takes a while, and whose names come first."""
    for number in range(size):
        write_waiting(f"aa{number}", f"raise ValueError({number})\n", seconds=seconds)


async def until(host, tool: str) -> None:
    async with asyncio.timeout(300):
        while tool not in host.tools:
            await asyncio.sleep(0.02)
            await host.refresh_if_changed()


async def test_what_loaded_before_is_not_behind_what_never_did(home, write_waiting):
    """Also after an installation, when all is tried out anew (SECURITY §4, broken plugins)."""
    write(home, "zz", HELLO.format(name="zz"))
    async with await open_host(home, environ={}, wait=60):
        pass
    crowd(write_waiting, 12)
    (home / "cache" / "probes.json").unlink()
    async with await open_host(home, environ={}, wait=0.01) as host:
        await until(host, "zz")
        assert sum(record.status == "pending" for record in host.plugin_set.records) >= 8
        go(home)
    async with await open_host(home, environ={}, wait=60):
        pass
    write(home, "ab_new", HELLO.format(name="ab_new"))
    order = [item.name for item in promising_first(list(discover(home, ())), home)]
    assert order[:2] == ["zz", "ab_new"] and order[2:] == sorted(f"aa{number}" for number in range(12))


async def test_a_model_is_told_that_a_tool_may_come_later(home, write_waiting):
    """It knows of one from an instruction, or from what was said before (CONTRACT §1)."""
    crowd(write_waiting, 1)
    script = home / "script.json"
    script.write_text('[{"calls": [{"name": "late", "arguments": {}}]}, {"text": "as you say"}]')
    async with await open_host(home, environ={}, wait=0.01) as host:
        told = []
        host.bus.subscribe(told.append)
        session = await host.new_session(home / "vault", model=f"script:{script}")
        await session.prompt("call late")
    [result] = [event.data for event in told if event.type == "tool.result"]
    assert "unknown tool 'late'; it may be in a plugin that is still being tried out; the tools are: " in str(result)

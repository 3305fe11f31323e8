"""What a person sees of a bad plugin, and that none of them ends the program or keeps it from ending (invariant 5)."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

SAYING_HELLO = "from moryflow_sdk import hookimpl\n@hookimpl\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise KeyboardInterrupt\n", "bad.py:1): KeyboardInterrupt"),
        ("import sys\nsys.exit(3)\n", "bad.py:2): it called sys.exit(3) while it was imported"),
        (f"{SAYING_HELLO}def tool_gat(call): ...\n", "unknown hook 'tool_gat'; did you mean 'tool_gate'?"),
        (f"{SAYING_HELLO}def tools(): raise ValueError('no')\n", "plugin bad has a problem"),
    ],
)
def test_a_bad_plugin_is_named_and_the_turn_runs(cli: Any, source: str, said: str) -> None:
    """With file, line and what helps; a Ctrl-C that nobody pressed is a failure like any other (invariant 5, R9)."""
    cli.plugin("bad", source)
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert said in done.stderr
    assert ":0)" not in done.stderr


def test_a_folder_that_is_no_package_is_named(cli: Any) -> None:
    """``plugins/x.py/`` is a folder without ``__init__.py``: a sentence, not a KeyError (invariant 5)."""
    folder = cli.home / "plugins" / "folder.py"
    folder.mkdir(mode=0o700)
    assert "a folder without __init__.py is no plugin" in cli("tool", "list").stderr


@pytest.mark.parametrize(
    "how",
    [
        "raise KeyboardInterrupt",
        "raise SystemExit(3)",
        "raise BaseException('x')",
        "import asyncio; raise asyncio.CancelledError",
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hook_cannot_end_the_program(cli: Any, kind: str, how: str) -> None:
    """Neither by sys.exit() nor by an interrupt that nobody asked for (invariant 3)."""
    cli.plugin("bad", f"{SAYING_HELLO}{kind} chat_params(params):\n    {how}\n")
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "plugin bad failed in chat_params" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_signal_ends_a_program_whose_loop_is_blocked(cli: Any, number: signal.Signals) -> None:
    """A plugin that never gives the loop back cannot keep a person from leaving (ARCHITECTURE §4, watchdog)."""
    body = "    import time\n    from pathlib import Path\n    Path('blocked').touch()\n    time.sleep(60)\n"
    cli.plugin("bad", f"{SAYING_HELLO}async def chat_params(params):\n{body}")
    process = cli.start("run", "-m", cli.script("fine"), "hi")
    deadline = time.monotonic() + 20
    while not (cli.vault / "blocked").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(timeout=20) == 130
    process.communicate()


@pytest.mark.parametrize(
    "how",
    [
        "raise KeyboardInterrupt",
        "raise SystemExit(3)",
        "raise BaseException('x')",
        "import asyncio; raise asyncio.CancelledError",
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_tool_cannot_end_the_program(cli: Any, kind: str, how: str) -> None:
    """Its call failed, the model is told, and the turn goes on (invariant 3)."""
    body = f"{kind} leave() -> str:\n    'Leave.'\n    {how}\n"
    cli.plugin("bad", f"from moryflow_sdk import *\n@tool(domain='read')\n{body}\n@hookimpl\ndef tools(): return [leave]\n")
    done = cli("run", "-m", cli.script(cli.calls("leave"), "still here"), "go")
    assert (done.returncode, done.stdout) == (0, "still here\n")
    assert "[leave] error: leave (plugin bad) failed" in cli("session", "show").stdout

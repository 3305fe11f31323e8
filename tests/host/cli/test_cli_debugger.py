"""A breakpoint in a tool or a hook, at a real terminal: who has it, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Begin = Callable[..., Any]

BREAKS = """
from moryflow_sdk import *
import asyncio, sys, time

@tool(domain="read", timeout=0.5)
def plain(number: int) -> str:
    "Look at NUMBER."
    breakpoint()
    time.sleep(0.6)
    return f"it was {number}"

@tool(domain="read", timeout=2)
async def waiting(number: int) -> str:
    "Look at NUMBER on the loop."
    breakpoint()
    return f"it was {number}"

@hookimpl(timeout=0.2)
def tool_after(call, result):
    if call.tool == "hello":
        breakpoint()
        return result.replace(output=result.output + " (seen)")

@hookimpl
def tools():
    return [plain, waiting]
"""
SLOW = """
from moryflow_sdk import *
import time

@tool(domain="read", timeout=0.1)
def late() -> str:
    "Take longer than it may."
    time.sleep(0.5)
    return "late"

@hookimpl(timeout=0.1)
def tool_after(call, result):
    time.sleep(0.5)
    return result.replace(output=result.output + ", and looked at")

@hookimpl
def tools():
    return [late]
"""


@pytest.fixture
def breaks(cli: Any) -> Any:
    """The command line with a plugin that has breakpoints."""
    cli.plugin("breaks", BREAKS)
    return cli


@pytest.mark.parametrize("name", ["plain", "waiting"])
def test_a_tool_stops_where_it_says_and_no_deadline_passes(breaks: Any, at_terminal: Begin, name: str) -> None:
    """Under --debug, on its own thread and on the loop."""
    terminal = at_terminal("tool", "run", name, "--number", "7", "--debug")
    terminal.expect("(Pdb) ")
    terminal.type("p number * 6\n")
    terminal.expect("42\n(Pdb) ")
    terminal.rest(2.5)  # longer than either may run
    terminal.type("number = 8\n")
    terminal.expect("(Pdb) ")
    terminal.type("c\n")
    terminal.expect("it was 8")
    assert terminal.end() == 0


def test_a_hook_stops_in_a_turn_and_the_spinner_leaves_the_line(breaks: Any, at_terminal: Begin) -> None:
    """The spinner turns after a second of silence; here there is none of it."""
    terminal = at_terminal("run", "--debug", "-m", breaks.script(breaks.calls("hello", name="Ada"), "done"), "greet Ada")
    terminal.expect("(Pdb) ")
    since = len(terminal.text)
    terminal.rest(1.5)
    assert terminal.text[since:] == ""
    terminal.type("p result.output\n")
    terminal.expect("'Hello, Ada! '")
    terminal.type("c\n")
    terminal.expect("done")
    assert terminal.end() == 0
    assert "failed" not in terminal.text
    assert "kept the whole host" not in terminal.text


def test_a_breakpoint_is_passed_over_where_there_is_no_terminal(breaks: Any) -> None:
    """In a script, or behind a pipe, nobody could answer the debugger; without --debug the deadlines apply."""
    breaks.plugin("breaks", BREAKS.replace("timeout=0.5", "timeout=60").replace("time.sleep(0.6)", "pass"))
    done = breaks("tool", "run", "plain", "--number", "7")
    assert (done.returncode, done.stdout) == (0, "it was 7\n")
    assert "breakpoint() is passed over" in done.stderr
    breaks.plugin("breaks", BREAKS.replace("sleep(0.6)", "sleep(60)"))
    assert "plain took longer than 0.5 s" in breaks("tool", "run", "plain", "--number", "7").stderr


def test_debug_lifts_every_deadline(cli: Any) -> None:
    """For a debugger that is not ours: neither tool nor hook is given up (the flag stands anywhere)."""
    cli.plugin("slow_ones", SLOW)
    late = cli("tool", "run", "late")
    assert "took longer than 0.1 s" in late.stderr
    done = cli("tool", "run", "late", "--debug")
    assert (done.returncode, done.stdout) == (0, "late, and looked at\n"), done.stderr

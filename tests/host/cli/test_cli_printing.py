"""What plugins print is no part of an answer: it goes to standard error (invariant 5, ARCHITECTURE §4)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

NOISY = """
import os, subprocess
from moryflow_sdk import hookimpl, tool

print("at import")
os.write(1, b"raw at import\\n")
subprocess.run(["echo", "a program at import"])

@tool(domain="read")
def noisy() -> str:
    "Print."
    print("in a tool")
    return "done"

@tool(domain="read")
async def anoisy() -> str:
    "Print."
    print("in an asynchronous tool")
    return "done"

@hookimpl
def tools():
    print("in tools()")
    return [noisy, anoisy]

@hookimpl
def plugin_start(ctx):
    print("in plugin_start")
    return lambda: print("at the end")

@hookimpl
def chat_params(params):
    print("in a hook")
"""
RAW = """
import ctypes, os, subprocess
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def raw() -> str:
    "Write."
    os.write(1, b"raw in a tool\\n")
    subprocess.run(["echo", "a program in a tool"])
    library = ctypes.CDLL(None)
    library.puts(b"a library in a tool")
    library.fflush(None)
    return "done"

@hookimpl
def tools():
    return [raw]

@hookimpl
def chat_params(params):
    os.write(1, b"raw in a hook\\n")
"""
LIBRARIES = """
import json, logging, pprint, sys
import click
from moryflow_sdk import hookimpl

log = logging.getLogger("chatty")
log.addHandler(logging.StreamHandler(sys.stdout))

@hookimpl
async def chat_params(params):
    pprint.pprint("by pprint")
    json.dump("by json", sys.stdout)
    click.secho("by click")
    log.warning("by logging")
"""
SPOILS = """
import io, sys
from moryflow_sdk import hookimpl, tool

def spoil():
    {how}

@tool(domain="read")
def spoils() -> str:
    "Spoil the streams and fail."
    spoil()
    raise ValueError("no luck")

@hookimpl
def tools():
    return [spoils]

@hookimpl
def plugin_start():
    spoil() if {early} else None

@hookimpl
def chat_params():
    spoil()
"""
WAYS = {
    "close": "sys.stdout.close(); sys.stderr.close()",
    "none": "sys.stdout = sys.stderr = None",
    "other": "sys.stdout = sys.stderr = io.StringIO()",
    "one": "sys.stderr = sys.stdout",
}
"""What a plugin may do to the standard streams."""
COMMAND = """
import os, subprocess
import click
from moryflow_sdk import Command, hookimpl

print("at import")

@click.command
def shout():
    "Shout."
    print("the answer", flush=True)
    os.write(1, b"raw\\n")
    subprocess.run(["echo", "a program"])

@hookimpl
def commands():
    return [Command("shout", "Shout.", cli=lambda: shout)]
"""
ALWAYS = ("at import", "raw at import", "a program at import", "in tools()", "in plugin_start", "at the end")


def test_json_of_a_tool_is_json_whatever_its_plugin_prints(cli: Any) -> None:
    """At import, raw or by another program, at the start, in a tool and at the end (ARCHITECTURE §4; CONTRACT §1)."""
    cli.plugin("noisy", NOISY)
    for tool, said in (("noisy", "in a tool"), ("anoisy", "in an asynchronous tool")):
        done = cli("tool", "run", tool, "--output", "json")
        assert json.loads(done.stdout)["output"] == "done"
        assert all(text in done.stderr for text in (*ALWAYS, said))


def test_events_of_a_run_are_events_whatever_a_plugin_prints(cli: Any) -> None:
    """``--output stream-json``: every line is an object (CONTRACT §1)."""
    cli.plugin("noisy", NOISY)
    done = cli("run", "-m", cli.script(cli.calls("noisy"), "fine"), "hi", "--output", "stream-json")
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()][-1] == "result"
    assert all(text in done.stderr for text in (*ALWAYS, "in a hook", "in a tool"))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("how", WAYS)
def test_the_answer_is_written_whatever_a_plugin_puts_in_place_of_the_streams(cli: Any, how: str, early: bool) -> None:
    """At the start or in a hook; an error has its sentence, and the exit code is the same (invariant 5; CONTRACT §1)."""
    cli.plugin("spoils", SPOILS.format(how=WAYS[how], early=early))
    model = cli.script("fine")
    assert cli("run", "-m", model, "hi").stdout == "fine\n"
    assert json.loads(cli("run", "-m", model, "hi", "--json").stdout)["text"] == "fine"
    assert any(tool["name"] == "spoils" for tool in json.loads(cli("tool", "list", "--json").stdout))
    failed = cli("tool", "run", "spoils")
    assert (failed.returncode, failed.stdout) == (1, "") and "no luck" in failed.stderr


def test_what_a_plugin_prints_through_a_library_is_no_answer(cli: Any) -> None:
    """Any module may write for it, on the host's own thread (CONTRACT §1)."""
    cli.plugin("chatty", LIBRARIES)
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert done.stdout == "fine\n"
    assert all(f"by {name}" in done.stderr for name in ("pprint", "json", "click", "logging")), done.stderr


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_what_goes_around_python_is_no_answer_either(cli: Any, output: str) -> None:
    """Written to descriptor 1, by a C library, by a program that has it from us (CONTRACT §1; invariant 5)."""
    cli.plugin("raw", RAW)
    done = cli("run", "-m", cli.script(cli.calls("raw"), "fine"), "hi", "--output", output)
    if output == "text":
        assert done.stdout == "fine\n"
    else:
        assert [json.loads(line)["type"] for line in done.stdout.splitlines()][-1] == "result"
    for said in ("raw in a hook", "raw in a tool", "a program in a tool", "a library in a tool"):
        assert said in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "| head -1"])
def test_descriptors_that_nobody_reads_are_not_given_to_others(cli: Any, closed: str) -> None:
    """A plugin that writes to them fails nowhere, and writes into no file of ours (CONTRACT §1)."""
    cli.plugin("raw", RAW)
    command = f"{sys.executable} -m moryflow run -m {cli.script(cli.calls('raw'), 'fine')} hi --output json {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=cli.vault, env=cli.env, capture_output=True, text=True)
    assert "failed" not in done.stderr and "Traceback" not in done.stderr
    if closed[0] != ">":
        assert json.loads(done.stdout)["text"] == "fine"


def test_an_editor_has_standard_output(cli: Any) -> None:
    """A program that a person works in is not a plugin (S0-h)."""
    editor = cli.home / "editor"
    editor.write_text('#!/bin/sh\necho "the screen"\necho "You are brief." > "$1"\n')
    editor.chmod(0o700)
    cli.environ |= {"EDITOR": str(editor), "VISUAL": str(editor)}
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "moryflow", "config", "prompt", "edit"]
    done = subprocess.run(command, cwd=cli.vault, env=cli.env, stdin=its, capture_output=True, text=True)
    os.close(ours)
    os.close(its)
    assert done.stdout.startswith("the screen\nthe prompt is yours now"), done.stderr


def test_what_a_command_of_a_plugin_prints_is_its_answer(cli: Any) -> None:
    """Only its import is none (CONTRACT §1)."""
    cli.plugin("shouting", COMMAND)
    done = cli("shout")
    assert (done.returncode, done.stdout) == (0, "the answer\nraw\na program\n"), done.stderr
    assert "at import" in done.stderr

"""What plugins print is no part of an answer: it goes to standard error (invariant 5, ARCHITECTURE §4)."""

from __future__ import annotations

import json
from typing import Any

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
COMMAND = """
import click
from moryflow_sdk import Command, hookimpl

print("at import")

@click.command
def shout():
    "Shout."
    print("the answer")

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


def test_a_tool_file_that_prints_at_import_breaks_no_document(cli: Any) -> None:
    """External tools are imported like plugins (ARCHITECTURE §4, D57)."""
    cli.config(agents={"runtime": {"tools": {"external": {"enabled": True}}}})
    folder = cli.home / "tools"
    folder.mkdir(mode=0o700)
    (folder / "loud.py").write_text('print("at import")\ndef loud() -> str:\n    "Say."\n    return "x"\ntools = [loud]\n')
    (folder / "loud.py").chmod(0o600)
    done = cli("tool", "list", "--json")
    assert any(tool["name"] == "loud" for tool in json.loads(done.stdout)), done.stderr
    assert "at import" in done.stderr


def test_what_a_command_of_a_plugin_prints_is_its_answer(cli: Any) -> None:
    """Only its import is none (CONTRACT §1)."""
    cli.plugin("shouting", COMMAND)
    done = cli("shout")
    assert (done.returncode, done.stdout) == (0, "the answer\n"), done.stderr
    assert "at import" in done.stderr

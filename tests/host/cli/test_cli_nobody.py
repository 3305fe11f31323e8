"""A question that nobody is there to answer is a denial, whatever was asked for (CONTRACT §1)."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

ASKS = {"calls": [{"name": "danger", "arguments": {"what": str(number)}} for number in range(2)]}


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_a_question_at_the_end_of_standard_input_is_a_denial(cli: Any, output: str) -> None:
    """The model is told, the turn goes on, exit code 4; later questions are denied without being put (D27)."""
    done = cli("run", "-m", cli.script(ASKS, "done"), "--on-ask", "prompt", "--output", output, "hi")
    assert done.returncode == 4
    if output == "text":
        assert done.stdout == "done\n" and done.stderr.count("wants to") == 1
        assert "2 calls were denied because nobody could be asked" in done.stderr
        return
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["end_reason"], result["exit_code"]) == ("completed", 4)
    assert [each["cause"] for each in result["denied"]] == ["headless", "headless"]


def test_a_later_turn_of_piped_input_does_not_hide_a_denial(cli: Any) -> None:
    """``chat`` without a person ends as ``run`` would (CONTRACT §1)."""
    done = cli("chat", "-m", cli.script(ASKS, "done", "well"), stdin="hi\nho\n")
    assert (done.returncode, done.stdout) == (4, "done\nwell\n")
    assert cli("chat", "-m", cli.script("done", "well"), stdin="hi\nho\n").returncode == 0


def test_the_rules_that_are_named_let_the_calls_run(cli: Any) -> None:
    """The next command can be typed as it stands, for every call that was denied; programs find the same (CONTRACT §1, §2)."""
    done = cli("run", "-m", cli.script(ASKS, "done"), "hi")
    shown = done.stderr.partition("allow them (")[2].partition("), or")[0]
    commands = [shlex.split(each)[1:] for each in shown.split(" && ")]
    assert [words[:2] for words in commands] == [["permission", "allow"]]
    told = json.loads(cli("run", "-m", cli.script(ASKS, "done"), "--output", "json", "hi").stdout)["denied"]
    assert [[rule["domain"], rule["pattern"]] for each in told for rule in each["rules"]] == [commands[0][2:]] * 2
    assert cli(*commands[0]).returncode == 0
    assert cli("run", "-m", cli.script(ASKS, "done"), "hi").returncode == 0


ASKING = """
from moryflow_sdk import Ask, Denied, ToolContext, hookimpl, tool

@tool(domain="read")
async def choose(ctx: ToolContext) -> str:
    "Choose."
    try:
        await ctx.ask(Ask("which?"))
    except Denied:
        return "neither"
    return "one"

@hookimpl
def tools():
    return [choose]
"""


def test_exit_code_4_is_explained_when_no_call_was_denied(cli: Any) -> None:
    """A tool may go on without an answer, and an MCP server's question is declined so (CONTRACT §1)."""
    cli.plugin("choose", ASKING)
    done = cli("run", "-m", cli.script(cli.calls("choose"), "done"), "hi")
    assert (done.returncode, done.stdout) == (4, "done\n"), done.stderr
    assert "without an answer to its question, because nobody could be asked\n  next: run it at a terminal" in done.stderr
    assert "nobody" not in cli("run", "-q", "-m", cli.script(cli.calls("choose"), "done"), "hi").stderr


FAILS = "from moryflow_sdk import hookimpl\n@hookimpl\ndef {hook}(): raise ValueError('no')\n"


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("chat_params", ("run", "-m", "SCRIPT", "hi")),
        ("tool_after", ("tool", "run", "hello", "--name", "x")),
        ("tool_before", ("hook", "fire", "tool.before", "{}")),
    ],
)
def test_strict_makes_a_failing_hook_an_error_wherever_it_is_called(cli: Any, hook: str, words: tuple[str, ...]) -> None:
    """In a turn's last step, in a call without a model, when fired; without --strict it is a notice (invariant 5)."""
    cli.plugin("bad", FAILS.format(hook=hook))
    command = [cli.script("done") if word == "SCRIPT" else word for word in words]
    assert cli(*command).returncode == 0
    assert cli(*command, "--strict").returncode == 6
    cli.plugin("bad", "x = (\n")
    refused = cli(*command, "--strict")
    assert refused.returncode == 6 and refused.stdout == "" and "bad.py:1: plugin 'bad' failed" in refused.stderr

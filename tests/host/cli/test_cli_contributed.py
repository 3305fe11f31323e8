"""Commands that plugins bring take the common flags wherever they stand."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

ALLOW = {"agents": {"runtime": {"permission": {"rules": [{"domain": "bash", "pattern": "ls *", "decision": "allow"}]}}}}


@pytest.mark.parametrize("shape", [("--config", "{}"), ("--config={}",)])
def test_an_inline_layer_counts_before_and_after_the_verb(cli: Any, shape: tuple[str, ...]) -> None:
    """`permission explain … --config JSON` asks with that layer, as every other command does (CONTRACT §1)."""
    flag = [part.replace("{}", json.dumps(ALLOW)) for part in shape]
    words = ["permission", "explain", "bash", "ls -la", "--json"]
    assert json.loads(cli(*words).stdout)["decision"] == "ask"
    for arguments in ([*words, *flag], [*flag, *words]):
        assert json.loads(cli(*arguments).stdout)["decision"] == "allow"


def test_safe_mode_strict_and_profile_count_after_the_verb(cli: Any) -> None:
    """They are known before the host is opened (CONTRACT §1)."""
    cli.plugin("broken", "raise RuntimeError('no')")
    assert "plugin broken failed" in cli("audit").stderr
    done = cli("audit", "--safe-mode")
    assert (done.returncode, "plugin broken failed" in done.stderr) == (0, False)
    assert cli("audit", "--profile", "nonsense").returncode == 2
    assert "--safe-mode" in cli("audit", "--help").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("audit",),
        ("audit", "tail"),
        ("permission", "rules"),
        ("permission", "lint"),
        ("permission", "preset"),
        ("permission", "preset", "develop"),
        ("permission", "allow", "bash", "ls"),
        ("permission", "explain", "read", "a.md"),
        ("output", "list"),
        ("skill", "list"),
        ("instructions",),
        ("memory-bank", "check"),
    ],
    ids=" ".join,
)
def test_json_is_one_thing_however_and_wherever_it_is_asked_for(cli: Any, words: tuple[str, ...]) -> None:
    """--json before the verb and --output json behind it print documents and nothing else (CONTRACT §1)."""
    cli("tool", "run", "hello", "--name", "Ada")
    printed = [cli(*arguments).stdout for arguments in (("--json", "-y", *words), (*words, "--output", "json", "-y"))]
    for text in printed:
        assert [json.loads(line) for line in text.splitlines()]


def test_verbs_and_nouns_of_plugins_are_understood_like_those_of_the_host(cli: Any) -> None:
    """Plural nouns, `ls`, a verb that is nearly right, and every verb with its whole sentence (CONTRACT §1)."""
    assert cli("skills", "ls").returncode == cli("outputs", "ls").returncode == 0
    assert cli("memory-banks", "check").returncode == 3
    wrong = cli("permissions", "explan")
    assert wrong.returncode == 2 and "there is no command 'permission explan'. Did you mean 'explain'?" in wrong.stderr
    shown = re.sub(r"\n +", " ", cli("permission", "--help").stdout)
    assert "allow Let calls whose target matches PATTERN run unasked; of commands, what a wildcard covers." in re.sub(
        r" +", " ", shown
    )


OWN_GROUP = """
import click
from moryflow_sdk import Command, hookimpl

class Own(click.Group):
    def resolve_command(self, ctx, args):
        return "plain", self.commands["plain"], args

@click.group(cls=Own)
def own(): pass

@own.command()
@click.argument("word")
def plain(word):
    '''Say it.'''
    click.echo(f"ran {word}")

@hookimpl
def commands():
    return [Command(name="own", help="Own", cli=lambda: own)]
"""


COUNTING = """
from moryflow_sdk import Command, hookimpl

@hookimpl
def tool_after(turn):
    turn.session_state["calls"] = turn.session_state.get("calls", 0) + 1

@hookimpl
def commands():
    def made():
        import click

        @click.command()
        @click.argument("session", required=False)
        @click.pass_obj
        def counted(obj, session):
            async def work(turn):
                turn.session_state["seen"] = True
                return turn.session_state.get("calls", 0)
            obj.print(obj.run(work, session=session))
        return counted
    return [Command(name="counted", help="Say how many calls a session had.", cli=made)]
"""


def test_a_command_reads_the_state_that_its_plugin_keeps_in_a_session(cli: Any) -> None:
    """`run(work, session=ID)` sees ``session_state`` as the hooks stored it, and changes nothing of it."""
    cli.plugin("counting", COUNTING)
    (cli.vault / "answers.json").write_text('[{"calls": [{"name": "ls", "arguments": {}}]}, "done"]', encoding="utf-8")
    assert cli("run", "-m", "script:answers.json", "look").returncode == 0
    session = json.loads(cli("session", "list", "--json").stdout)[0]["id"]
    assert [cli("counted", *words).stdout for words in ((session[:6],), (session,), ())] == ["1\n", "1\n", "0\n"]

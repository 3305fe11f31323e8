"""``moryflow tool`` and ``moryflow hook``: one tool, one chain, no model."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from moryflow.cli.commands.tool import _parameters

PERSON = {
    "type": "object",
    "properties": {
        "friends": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
        "kind": {"enum": ["a", "b"]},
    },
}
NESTED: dict[str, Any] = {
    "required": ["person"],
    "properties": {"person": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]}},
    "$defs": {"Person": PERSON},
}


def test_list_and_show(cli: Any) -> None:
    """Name, domain, plugin; then the parameters."""
    rows = {row["name"]: row for row in json.loads(cli("tool", "list", "--json").stdout)}
    assert rows["hello"]["domain"] == "read"
    assert rows["hello"]["plugin"] == "demo"
    assert "hello" in cli("tool", "ls").stdout
    shown = cli("tool", "show", "hello").stdout
    assert "--name" in shown and "required" in shown and "Say hello to NAME." in shown
    document = json.loads(cli("tool", "show", "hello", "--json").stdout)
    assert document["parameters"]["required"] == ["name"]


def test_show_sets_in_the_fields_of_nested_objects() -> None:
    """What a model is told about an argument that is an object, a user can read too (CONTRACT §1)."""
    rows = {row[0]: row for row in _parameters(NESTED, NESTED["$defs"], "  --")}
    assert rows["  --person"] == ("  --person", "object/null", "required", "")
    assert rows["      friends"][1] == "list of object" and rows["      kind"][1] == "a/b"
    assert [len(name) - len(name.lstrip()) for name in rows] == [2, 6, 8, 10, 10, 8, 6]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--name", "Ann"], "Hello, Ann! "),
        (["--name=Ann", "--times", "2"], "Hello, Ann! Hello, Ann! "),
        (["--name", "Ann", "--loud"], "HELLO, ANN! "),
        (["--name", "Ann", "--no-loud"], "Hello, Ann! "),
        (["--loud", "false", "--name", "12"], "Hello, 12! "),
        (["--name", "Ann", "--tags", "a", "--tags", "b"], "Hello, Ann! a,b"),
        (["--name", "Ann", "--tags", '["a", "b"]'], "Hello, Ann! a,b"),
        (["--args", '{"name": "Ann", "times": 2}', "--times", "1"], "Hello, Ann! "),
        (["--json", '{"name": "Ann", "times": 2}', "--times", "1"], "Hello, Ann! "),
    ],
)
def test_arguments_one_by_one_and_as_json(cli: Any, words: list[str], output: str) -> None:
    """`--arg value` per parameter, typed by the schema, or `--args`, once spelled `--json` (CONTRACT §1)."""
    done = cli("tool", "run", "hello", *words)
    assert (done.returncode, done.stdout) == (0, output + "\n")


@pytest.mark.parametrize("words", [["--json"], ["--output=json"]])
def test_the_result_as_json_is_asked_for_as_everywhere(cli: Any, words: list[str]) -> None:
    """`--json` alone means output here too; the words may stand before the tool's name."""
    for given in (["hello", "--name", "Ann", *words], [*words, "hello", "--name", "Ann"]):
        done = cli("tool", "run", *given)
        assert (json.loads(done.stdout)["output"], done.stderr) == ("Hello, Ann! ", "")
    fired = cli("hook", "fire", *words, "chat.params", '{"temperature": 0.5}')
    assert json.loads(fired.stdout)["value"] == {"temperature": 0.5}


def test_arguments_from_standard_input(cli: Any) -> None:
    """`--json -` reads the object from a pipe."""
    assert cli("tool", "run", "hello", "--json", "-", stdin='{"name": "Bo"}').stdout == "Hello, Bo! \n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["helo"], "there is no tool 'helo'; did you mean 'hello'?"),
        (["hello", "--nam", "x"], "hello takes no --nam; did you mean --name?"),
        (["hello", "--name"], "--name needs a value"),
        (["hello", "Ann"], "unexpected argument 'Ann'"),
        (["hello"], "name"),
        (["hello", "--name", "x", "--times", "many"], "times"),
        (["hello", "--json", "{"], "--args is not JSON"),
        (["hello", "--json", "[1]"], "--args must be an object"),
    ],
)
def test_wrong_arguments_are_usage_errors(cli: Any, words: list[str], sentence: str) -> None:
    """Exit code 2, a sentence, nothing on standard output."""
    done = cli("tool", "run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_whole_chain_is_shown(cli: Any) -> None:
    """`--output json` is the tool.result object with every hook that was called (CONTRACT §2, invariant 1)."""
    cli.plugin(
        "polite",
        """
        from moryflow_sdk import *

        @hookimpl
        def tool_before(call):
            return call.replace(args={**call.args, "name": "dear " + call.args["name"]})

        @hookimpl
        def tool_after(result):
            return result.replace(output=result.output + "Bye.")
        """,
    )
    event = json.loads(cli("tool", "run", "hello", "--name", "Ann", "--output", "json").stdout)
    assert (event["v"], event["type"], event["tool"], event["status"]) == (1, "tool.result", "hello", "ok")
    assert event["output"] == "Hello, dear Ann! Bye."
    chain = [(step["hook"], step["plugin"]) for step in event["chain"]]
    assert ("tool_before", "polite") in chain
    assert ("tool_gate", "permission") in chain
    assert chain.index(("tool_before", "polite")) < chain.index(("tool_gate", "permission"))
    assert chain.index(("tool_gate", "permission")) < chain.index(("tool_after", "polite"))
    assert chain[-1] == ("tool_after", "truncation")
    assert {"hook", "plugin", "outcome", "us"} <= event["chain"][0].keys()


def test_the_rule_that_is_named_lets_the_call_run(cli: Any) -> None:
    """The next command can be typed as it stands; no words to be filled in (CONTRACT §1)."""
    done = cli("tool", "run", "danger", "--what", "it")
    words = shlex.split(done.stderr.rpartition("; or: moryflow ")[2])
    assert words[:2] == ["permission", "allow"]
    assert cli(*words).returncode == 0
    assert cli("tool", "run", "danger", "--what", "it").stdout == "did it\n"


def test_a_tool_is_judged_like_any_call(cli: Any) -> None:
    """Asked about: nobody there, exit code 4. Denied by a rule: exit code 0 as CONTRACT §1 says. Full access: -y (S0.69)."""
    done = cli("tool", "run", "danger", "--what", "it")
    assert (done.returncode, done.stdout) == (4, "")
    assert "nobody could be asked" in done.stderr
    assert "next: the same at a terminal, where it asks" in done.stderr
    done = cli("tool", "run", "danger", "--what", "it", "--mode", "full_access", "-y")
    assert (done.returncode, done.stdout) == (0, "did it\n")
    cli.rules(("bash", "*", "deny"))
    done = cli("tool", "run", "danger", "--what", "it")
    assert (done.returncode, done.stdout) == (0, "")
    assert "danger" in done.stderr


def test_a_question_at_a_terminal(cli: Any, at_terminal: Any) -> None:
    """The same question as in a turn."""
    terminal = at_terminal("tool", "run", "danger", "--what", "it")
    terminal.expect("[o]nce")
    terminal.type("o\n")
    terminal.expect("did it")
    assert terminal.end() == 0


def test_direct_calls_are_not_sessions_to_go_on_with(cli: Any) -> None:
    """They live in hidden sessions of purpose direct."""
    cli("tool", "run", "hello", "--name", "Ann")
    assert json.loads(cli("session", "list", "--json").stdout) == []
    assert [row["purpose"] for row in json.loads(cli("session", "list", "--all", "--json").stdout)] == ["direct"]


def test_hook_list_names_implementations_in_order(cli: Any) -> None:
    """The hook table with who implements each (issue 2, CLI)."""
    rows = {row["name"]: row for row in json.loads(cli("hook", "list", "--json").stdout)}
    assert rows["tool.gate"]["kind"] == "gate"
    assert "permission" in [item["plugin"] for item in rows["tool.gate"]["plugins"]]
    assert "chat.params" in cli("hook", "list").stdout


@pytest.mark.parametrize("spelled", ["chat.params", "chat_params"])
def test_hook_fire_takes_either_spelling(cli: Any, spelled: str) -> None:
    """One chain with a given input, from the argument, --json or standard input (CONTRACT §1)."""
    cli.plugin(
        "cool",
        """
        from moryflow_sdk import *

        @hookimpl
        def chat_params(params):
            return params.replace(temperature=0.0)
        """,
    )
    given = '{"params": {"temperature": 0.7, "max_tokens": 9}}'
    assert json.loads(cli("hook", "fire", spelled, given).stdout) == {"temperature": 0.0, "max_tokens": 9}
    done = json.loads(cli("hook", "fire", spelled, "--json", "-", "--output", "json", stdin=given).stdout)
    assert done["value"]["temperature"] == 0.0
    chain = [(step["plugin"], step["outcome"]) for step in done["chain"] if step["plugin"] != "config_hooks"]
    assert chain == [("cool", "changed")]

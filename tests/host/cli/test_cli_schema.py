"""``run --schema``: an answer for a program (CONTRACT 1 and 2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_the_value_is_printed_and_stands_in_the_result(cli: Any) -> None:
    """A fence of code around it is taken off; the model has read the schema behind the prompt."""
    model = cli.script('```json\n{"name": "Ada"}\n```')
    assert json.loads(cli("run", "-m", model, "who?", "--schema", json.dumps(PERSON)).stdout) == {"name": "Ada"}
    (cli.vault / "person.json").write_text(json.dumps(PERSON))
    result = json.loads(cli("run", "-m", model, "who?", "--schema", "person.json", "--json").stdout)
    assert (result["value"], result["exit_code"], result["status"]) == ({"name": "Ada"}, 0, "completed")
    sent = json.loads(cli("session", "context", "--json").stdout)["messages"]
    assert [json.dumps(PERSON) in message["text"] for message in sent if message["role"] == "user"] == [True]


def test_an_answer_that_does_not_fit_is_asked_for_again(cli: Any) -> None:
    """With what it lacks; everything is counted together, and nothing but the value is printed."""
    model = cli.script("Her name is Ada.", '{"name": 5}', '{"name": "Ada"}')
    done = cli("run", "-m", model, "who?", "--schema", json.dumps(PERSON), "--json")
    result = json.loads(done.stdout)
    assert (result["value"], result["steps"], done.returncode) == ({"name": "Ada"}, 3, 0)
    sent = json.loads(cli("session", "context", "--json").stdout)["messages"]
    told = [message["text"] for message in sent if message["role"] == "user"][1:]
    assert "it is not JSON" in told[0]
    assert "name: 5 is not of type 'string'" in told[1]


def test_an_answer_that_never_fits_fails_the_command(cli: Any) -> None:
    """Exit code 1, a sentence, and no value; the limits of the turn hold for all attempts."""
    model = cli.script(*["no"] * 4)
    done = cli("run", "-m", model, "who?", "--schema", json.dumps(PERSON))
    assert (done.returncode, done.stdout) == (1, "")
    assert "the answer does not fit the schema" in done.stderr
    result = json.loads(cli("run", "-m", model, "who?", "--schema", json.dumps(PERSON), "--json", "--max-steps", "2").stdout)
    assert (result["steps"], result["exit_code"], result["status"], "value" in result) == (2, 1, "failed", False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "--schema: this is not a JSON Schema: line 1 Unexpected end"),
        ("[]", "[]: this is not a JSON Schema"),
        ("nowhere.json", "No such file"),
        ('{"type": "nothing"}', "type: not a JSON Schema"),
        ('{"a":' * 4000, "--schema: this is not a JSON Schema: maximum recursion"),
        ("latin", "latin: this is not a JSON Schema: 'utf-8'"),
    ],
    ids=["broken", "no object", "missing", "no type", "deep", "not text"],
)
def test_what_is_no_schema_is_refused_before_the_model_is_asked(cli: Any, given: str, said: str) -> None:
    """With a sentence, where it stands, and exit code 2."""
    (cli.vault / "latin").write_bytes(b'{"title": "\xe9"}')
    done = cli("run", "-m", cli.script("never"), "who?", "--schema", given)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "next:" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_service_is_told_the_schema_in_its_own_mode_first(cli: Any) -> None:
    """If it refuses the mode, the words that the prompt has always had are enough (S0.79)."""
    refusal = replies.failure(400, "This response_format type is unavailable now")
    answer = replies.text('{"name": "Ada"}')
    with LoopbackServer(answer, refusal, answer) as server:
        cli.environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-test"}
        for _ in range(2):
            done = cli("run", "-m", "openai/gpt-5", "who?", "--schema", json.dumps(PERSON))
            assert json.loads(done.stdout) == {"name": "Ada"}, done.stderr
    first, second, third = (request.body for request in server.requests)
    assert first["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}}
    assert "response_format" in second and "response_format" not in third
    assert json.dumps(PERSON) in third["messages"][-1]["content"] and "openai refuses response_format" in done.stderr

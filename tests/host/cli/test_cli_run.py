"""``moryflow run``: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import json
import resource
import signal
from typing import Any

import pytest


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def prompts(cli: Any) -> list[str]:
    """What the model was sent as user messages in the last session."""
    messages = json.loads(cli("session", "context", "--json").stdout)["messages"]
    return [message["text"] for message in messages if message["role"] == "user"]


def test_standard_output_is_the_answer_and_nothing_else(cli: Any) -> None:
    """Tools, notices and the like go to standard error (CONTRACT §1)."""
    model = cli.script(cli.calls("hello", name="Ann"), "The answer.\n\nAll of it.")
    done = cli("run", "-m", model, "hi")
    assert (done.returncode, done.stdout) == (0, "The answer.\n\nAll of it.\n")


def test_the_prompt_comes_from_argument_pipe_and_files(cli: Any) -> None:
    """An argument and what is piped in belong together; -f attaches (CONTRACT §1, S2.5)."""
    model = cli.script("ok")
    (cli.vault / "notes.md").write_text("the notes")
    assert cli("run", "-m", model, "what is this?", "-f", "notes.md", stdin="piped text").returncode == 0
    [prompt] = prompts(cli)
    assert prompt.endswith("what is this?\n\npiped text")
    assert '<file path="notes.md">\nthe notes\n</file>' in prompt
    assert cli("run", "-m", model, stdin="only piped").returncode == 0
    assert prompts(cli) == ["only piped"]


def test_a_slash_command_reaches_no_model(cli: Any) -> None:
    """What it says is the answer; a word that is no command begins no session; a path is a prompt (D86)."""
    done = cli("run", "-m", cli.script(), "/mode")
    assert (done.returncode, done.stdout) == (0, "mode: agent\n")
    unknown, full = cli("run", "-m", cli.script(), "/hlep me"), cli("run", "-m", cli.script(), "-c", "/mode full_access")
    assert (unknown.returncode, unknown.stdout, full.returncode, full.stdout) == (2, "", 2, "")
    assert "there is no command /hlep; did you mean /help?" in unknown.stderr
    assert cli("run", "-m", cli.script(), "-c", "/mode full_access", "-y").stdout == "mode: full_access\n"
    [session] = json.loads(cli("session", "list", "--json").stdout)
    assert json.loads(cli("run", "-m", cli.script(), "-c", "--json", "/mode").stdout)["session"] == session["id"]
    assert cli("run", "-m", cli.script("read"), "/etc/passwd explain").stdout == "read\n"
    commands = cli.home / "commands"
    commands.mkdir()
    (commands / "review.md").write_text("Review $ARGUMENTS.")
    assert cli("run", "-m", cli.script("done"), "/review", stdin="a.py").stdout == "done\n"
    assert prompts(cli) == ["Review a.py."]


@pytest.mark.parametrize(
    ("words", "stdin", "sentence"),
    [
        (["run"], None, "there is no prompt"),
        (["run", "hi"], b"\xff\xfe\x00binary", "standard input: this is not text"),
        (["run", "hi"], b"nul \0 byte", "standard input: this is binary"),
        (["run", "hi", "-f", "none.md"], None, "none.md: cannot read the file: No such file"),
        (["run", "hi", "-f", "."], None, "cannot read the file: Is a directory"),
        (["run", "hi", "--vault", "nowhere"], None, "nowhere: the vault does not exist"),
        (["run", "hi", "--vault", "file"], None, "file: the vault is not a folder"),
        (["run", "hi", "--agent", "biuld"], None, "unknown agent 'biuld'; did you mean 'build'?"),
        (["run", "hi", "-m", "nope"], None, "unknown model 'nope'"),
        (["run", "hi", "--config", "{nope"], None, "--config:1:2: the inline configuration is not JSON"),
        (["run", "hi", "--config", "none.jsonc"], None, "none.jsonc: there is no such file"),
        (["run", "hi", "-c"], None, "to continue"),
        (["run", "hi", "-r", "zzz"], None, "there is no session 'zzz'"),
        (["run", "hi", "--mode", "full_access"], None, "full_access was not confirmed"),
        (["run", "hi", "--max-steps", "0"], None, "--max-steps"),
    ],
)
def test_bad_input_gets_a_sentence_and_a_next_step(cli: Any, words: list[str], stdin: bytes | None, sentence: str) -> None:
    """Exit code 2, nothing on standard output, no traceback, no session made (issue 2, bad input)."""
    (cli.vault / "file").write_text("")
    if "-m" not in words:
        words = [*words, "-m", cli.script("never said")]
    done = cli(*words, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "next: " in done.stderr or "--config:" in sentence
    assert "Traceback" not in done.stderr
    assert cli("session", "list", "--json").stdout.strip() == "[]"


def test_no_model_says_what_would_help(cli: Any) -> None:
    """Three ways out, exit code 2 (ARCHITECTURE §8)."""
    done = cli("run", "hi")
    assert done.returncode == 2
    for way in ("moryflow model install", "OPENAI_API_KEY", "moryflow model list"):
        assert way in done.stderr


def test_output_json_is_the_result_object(cli: Any) -> None:
    """Its fields are those of CONTRACT §2; --json means the same."""
    model = cli.script("Hello.")
    result = json.loads(cli("run", "-m", model, "hi", "--output", "json").stdout)
    assert result.pop("session") and result.pop("ts")
    assert result.pop("usage").keys() == {"input", "output", "cached"}
    expected = {"v": 1, "type": "result", "status": "completed", "end_reason": "completed", "exit_code": 0, "text": "Hello."}
    assert result == {**expected, "finish": "stop", "cost": 0.0, "steps": 1, "denied": []}
    assert json.loads(cli("run", "-m", model, "hi", "--json").stdout)["text"] == "Hello."


def test_stream_json_is_one_event_a_line_and_ends_with_the_result(cli: Any) -> None:
    """`init` first; pieces of the text; two parallel calls with start and result each; `result` last (S2.10, CONTRACT §2)."""
    model = cli.script(cli.calls("hello", "hello", name="Ann"), "done")
    events = lines(cli("run", "-m", model, "hi", "--output", "stream-json").stdout)
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("init", "result")
    assert {event["v"] for event in events} == {1}
    assert {"session", "vault", "agent", "model", "mode", "plugin_set", "plugins"} <= events[0].keys()
    assert "demo" in [plugin["name"] for plugin in events[0]["plugins"]]
    results = [event for event in events if event["type"] == "tool.result"]
    assert [(event["status"], event["state"]) for event in results] == [("ok", "completed")] * 2
    assert "".join(event["text"] for event in events if event["type"] == "text.delta") == events[-1]["text"] == "done"
    durable = [event["seq"] for event in events if "seq" in event]
    assert durable == sorted(durable)


@pytest.mark.parametrize(("reply", "status", "code"), [("once", "ok", 0), ("reject", "denied", 0), ("stop", None, 130)])
def test_stream_json_takes_answers_on_standard_input(cli: Any, reply: str, status: str | None, code: int) -> None:
    """A question is asked as an event and answered as a line (CONTRACT §2, D24)."""
    model = cli.script(cli.calls("danger", what="it"), "done")
    running = cli.start("run", "-m", model, "hi", "--output", "stream-json", "--on-ask", "prompt")
    events: list[dict[str, Any]] = []
    for line in running.stdout:
        events.append(json.loads(line))
        if events[-1]["type"] == "permission.asked":
            asked = events[-1]
            assert asked["reason"] and asked["targets"]
            answer = {"type": "permission.reply", "approval_id": asked["approval_id"], "reply": reply}
            running.stdin.write("not json\n" + json.dumps(answer) + "\n")
            running.stdin.flush()
    running.communicate()
    statuses = [event["status"] for event in events if event["type"] == "tool.result"]
    assert statuses == [status] if status else statuses in ([], ["denied"])
    assert running.returncode == code
    assert [event["code"] for event in events if event["type"] == "error"] != []
    assert events[-1]["type"] == "result"


BAD_ANSWERS = (
    "not json",
    "5",
    "null",
    "[1]",
    '"once"',
    "[" * 5000,
    "{}",
    '{"type": "closed"}',
    '{"type": "permission.reply", "approval_id": {"a": 1}, "reply": ["once"]}',
    '{"type": "permission.reply", "approval_id": {"a": 1}, "reply": "once"}',
)


def test_a_line_that_is_no_answer_is_an_error_event_and_the_question_stays(cli: Any) -> None:
    """Whatever JSON it is: one event each, no traceback, and the right answer still counts (CONTRACT §2)."""
    model = cli.script(cli.calls("danger", what="it"), "done")
    running = cli.start("run", "-m", model, "hi", "--output", "stream-json", "--on-ask", "prompt")
    events: list[dict[str, Any]] = []
    for line in running.stdout:
        events.append(json.loads(line))
        if events[-1]["type"] == "permission.asked":
            answer = {"type": "permission.reply", "approval_id": events[-1]["approval_id"], "reply": "once"}
            running.stdin.write("\n".join([*BAD_ANSWERS, json.dumps(answer)]) + "\n")
            running.stdin.flush()
    _, said = running.communicate()
    errors = [event for event in events if event["type"] == "error"]
    assert len(errors) == len(BAD_ANSWERS) and all(event["ts"] for event in errors)
    assert running.returncode == 0 and "Traceback" not in (said or "")


def test_a_question_nobody_can_answer_is_a_no_and_exit_code_4(cli: Any) -> None:
    """The model is told and the turn goes on (D27, CONTRACT §1)."""
    done = cli("run", "-m", cli.script(cli.calls("danger", what="it"), "went on"), "hi")
    assert (done.returncode, done.stdout) == (4, "went on\n")
    assert "nobody could be asked" in done.stderr
    assert "next: " in done.stderr


def test_a_rule_that_denies_is_not_a_failure(cli: Any) -> None:
    """Completed, exit code 0 (CONTRACT §1)."""
    cli.rules(("read", "*", "deny"))
    done = cli("run", "-m", cli.script(cli.calls("hello", name="Ann"), "went on"), "hi")
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_question_can_be_answered_later_from_a_shell(cli: Any) -> None:
    """--on-ask fail stores it, `approval reply` answers it, `run -c` goes on (D65, S0.45)."""
    model = cli.script(cli.calls("danger", what="it"), "done it")
    done = cli("run", "-m", model, "hi", "--on-ask", "fail")
    assert done.returncode == 4
    assert "moryflow approval list" in done.stderr
    [question] = json.loads(cli("approval", "list", "--json").stdout)
    assert (question["request"]["tool"], question["state"]) == ("danger", "pending")
    assert "once" in cli("approval", "reply", question["id"], "once").stdout
    assert "the first answer stands" in cli("approval", "reply", question["id"], "stop").stdout
    assert json.loads(cli("approval", "list", "--json").stdout) == []
    done = cli("run", "-c", "-m", cli.script("done it"), "--output", "stream-json")
    results = [event["output"] for event in lines(done.stdout) if event["type"] == "tool.result"]
    assert results == ["did it"]


def test_a_conversation_goes_on(cli: Any) -> None:
    """-c and a bare -r take the last session of the vault, -r ID one by the beginning of its id (CONTRACT §1)."""
    model = cli.script("ok")
    first = json.loads(cli("run", "-m", model, "one", "--json").stdout)["session"]
    cli("run", "-m", model, "two", "-c")
    assert prompts(cli) == ["one", "two"]
    cli("run", "-m", model, "other")
    cli("run", "-m", model, "three", "-r", first[:8])
    assert prompts(cli) == ["one", "two", "three"]
    cli("run", "-m", model, "four", "-r")
    assert prompts(cli) == ["one", "two", "three", "four"]


@pytest.mark.parametrize(
    ("turns", "words", "code", "reason"),
    [
        (
            [{"calls": [{"name": "hello", "arguments": {"name": str(n)}}]} for n in range(9)],
            ["--max-steps", "2"],
            5,
            "max_steps",
        ),
        ([{"error": "auth"}], [], 7, "model_error"),
        ([{"error": "context"}], [], 5, "prompt_too_long"),
    ],
)
def test_end_reasons_have_their_exit_codes(cli: Any, turns: list[Any], words: list[str], code: int, reason: str) -> None:
    """As CONTRACT §1 lists them, with the reason in the result."""
    done = cli("run", "-m", cli.script(*turns), "hi", "--output", "json", *words)
    assert (done.returncode, json.loads(done.stdout)["end_reason"]) == (code, reason)


def test_full_access_is_confirmed_with_y(cli: Any) -> None:
    """-y answers the command's own question; the mode holds for the session (S0.69)."""
    model = cli.script(cli.calls("danger", what="it"), "done")
    done = cli("run", "-m", model, "hi", "--mode", "full_access", "-y", "--output", "stream-json")
    events = lines(done.stdout)
    assert (done.returncode, events[0]["mode"]) == (0, "full_access")
    assert [event["output"] for event in events if event["type"] == "tool.result"] == ["did it"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_turn_and_keeps_what_it_has(cli: Any, number: int) -> None:
    """Exit code 130; the call that ran has an interrupted result, and the session goes on (CONTRACT §1)."""
    running = cli.start("run", "-m", cli.script(cli.calls("slow", seconds=300)), "hi", "--output", "stream-json")
    for line in running.stdout:
        if '"state": "running"' in line:
            running.send_signal(number)
            break
    out, err = running.communicate()
    assert running.returncode == 130
    assert lines(out)[-1]["end_reason"] == "stopped"
    assert "Traceback" not in err
    assert cli("run", "-c", "-m", cli.script("again"), "go on").stdout == "again\n"


def test_a_full_disk_is_a_sentence(cli: Any) -> None:
    """The store cannot grow: exit code 1, the file is named, no traceback, and the session before is there (issue 2)."""
    cli("run", "-m", cli.script("ok"), "one")
    size = (cli.home / "sessions.db").stat().st_size

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = cli("run", "-m", cli.script("x" * 400_000), "two", "-c", preexec_fn=no_room)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "next: " in done.stderr
    assert prompts(cli)[0] == "one"


def test_a_malformed_configuration_is_named_and_the_run_goes_on(cli: Any) -> None:
    """A sentence with file and line; a lost deny is said also under -q (D26, SECURITY §4)."""
    rule = {"domain": "bash", "pattern": "rm *", "decision": "dney"}
    file = cli.config(agents={"runtime": {"permission": {"rules": [rule]}}}, modle="x")
    done = cli("-q", "run", "-m", cli.script("fine"), "hi")
    assert done.stdout == "fine\n"
    assert f"{file}:" in done.stderr
    assert '"dney" is not a decision; meanwhile every call of its domain is asked about (did you mean "deny"?)' in done.stderr
    assert "modle" not in done.stderr
    assert 'unknown key "modle"' in cli("run", "-m", cli.script("fine"), "hi").stderr


def test_images_are_attached_as_images(cli: Any) -> None:
    """A PNG goes as an image, another binary file is refused."""
    (cli.vault / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (cli.vault / "a.bin").write_bytes(bytes(range(256)))
    assert cli("run", "-m", cli.script("nice"), "look", "-f", "a.png").returncode == 0
    done = cli("run", "-m", cli.script("nice"), "look", "-f", "a.bin")
    assert done.returncode == 2
    assert "a.bin: this is not text" in done.stderr


def test_a_trace_follows_the_answer_where_it_is_asked_for(cli: Any) -> None:
    """``MORYFLOW_TRACE`` shows what the hooks did on standard error; standard output stays the answer (CONTRACT §1)."""
    cli.environ = {"MORYFLOW_TRACE": "1"}
    cli.plugin(
        "cool", "from moryflow_sdk import *\n@hookimpl\ndef chat_params(params):\n    return params.replace(temperature=0.5)\n"
    )
    done = cli("run", "-m", cli.script("hello"), "hi")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "turn 1  'hi'  completed" in done.stderr and "chat.params" in done.stderr and "cool" in done.stderr
    assert "turn 1" not in cli("run", "-q", "-m", cli.script("hello"), "hi").stderr

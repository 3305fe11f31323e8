"""What bad input gets: a sentence, the next command, the right exit code, no traceback, nothing lost (issue 2)."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


def shell(cli: Any, tail: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command line with redirections, as a person types it; ``$M`` is moryflow."""
    words = shlex.join([sys.executable, "-m", "moryflow", *arguments])
    return subprocess.run(
        ["bash", "-c", f"{words} {tail}; exit ${{PIPESTATUS[0]}}"],
        cwd=cli.vault,
        env={**cli.env, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(cli: Any, closed: str) -> None:
    """A service manager starts us without some of them; the turn runs all the same (issue 2, bad input)."""
    done = shell(cli, closed, "run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fine" in cli("session", "show").stdout


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("plugin", "list"), ("--help",), ("plgin",)])
def test_a_reader_that_has_gone_ends_it_without_a_word(cli: Any, arguments: tuple[str, ...], buffered: str) -> None:
    """`| head` closes the pipe: exit code 141 as everywhere, nothing on standard error (issue 2, closed pipe)."""
    done = shell(cli, "2>&1 | sleep 0", *arguments, PYTHONUNBUFFERED=buffered)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_stream_that_nobody_reads_stops_the_turn_and_keeps_it(cli: Any) -> None:
    """`--output stream-json | head -1`: the turn is stopped and resumable; no traceback (issue 2, closed pipe)."""
    model = cli.script(cli.calls("slow", seconds=20), "done")
    done = shell(cli, "| head -1", "run", "-m", model, "--output", "stream-json", "go")
    assert done.returncode == 141
    assert json.loads(done.stdout)["type"] == "init"
    assert done.stderr == ""
    turn = json.loads(cli("session", "show", "--json").stdout)["turns"][0]
    assert turn["end_reason"] == "stopped"


def test_an_encoding_that_cannot_show_the_answer_escapes_it(cli: Any) -> None:
    """A C locale, and half a surrogate pair from a model: escaped, never a crash (issue 2, bad input)."""
    model = cli.script("héllo → \ud800")
    done = shell(cli, "", "run", "-m", model, "hi", **ASCII)
    assert (done.returncode, done.stdout) == (0, "h\\xe9llo \\u2192 \\ud800\n")
    done = shell(cli, "", "run", "-m", model, "hi")
    assert (done.returncode, done.stdout) == (0, "héllo → \\ud800\n")


@pytest.mark.parametrize("environ", [ASCII, {}])
@pytest.mark.parametrize("output", ["json", "stream-json"])
def test_json_stays_json_in_any_encoding(cli: Any, output: str, environ: dict[str, str]) -> None:
    """What the encoding cannot take is a JSON escape, so that nothing of the answer is lost (CONTRACT §2)."""
    done = shell(cli, "", "run", "-m", cli.script("héllo → \ud800"), "--output", output, "hi", **environ)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["text"]) == (0, "héllo → \ud800")


def test_the_error_that_ends_a_turn_is_said_once(cli: Any) -> None:
    """Not once as an event and again as the result (CONTRACT §1)."""
    done = cli("run", "-m", cli.script({"error": {"code": "bad_request", "message": "the model is ill"}}), "hi")
    assert done.returncode == 7
    assert done.stderr.count("the model is ill") == 1
    assert "next: ask again, or choose another model with -m\n" in done.stderr  # the doctor could find nothing


def test_blank_input_is_no_prompt(cli: Any) -> None:
    """White space asks nothing, and a model is not paid for it (issue 2, bad input)."""
    for given in (cli("run", stdin="  \n"), cli("run", "  ")):
        assert given.returncode == 2
        assert "there is no prompt" in given.stderr


@pytest.mark.parametrize("words", [("run", "hi"), ("session", "list"), ("doctor",), ("config", "path"), ("plugin", "list")])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file", "made: there is a file with its name"),
        ("file/home", "reached: Not a directory"),
        ("x" * 300, "reached: File name too long"),
    ],
)
def test_a_home_that_is_none_is_said_once(cli: Any, words: tuple[str, ...], name: str, why: str) -> None:
    """Which folder, why, and what to set; not one line for each thing that is not found in it (issue 2, bad input)."""
    (cli.vault.parent / "file").write_text("x")
    cli.environ["MORYFLOW_HOME"] = home = f"{cli.vault.parent}/{name}"
    done = cli(*words, *(["-m", cli.script("x")] if words[0] == "run" else []))
    step = "set MORYFLOW_HOME to a folder that you may write to"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"moryflow: {home}: Moryflow's own folder cannot be {why}\n  next: {step}\n"


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (("tool", "run", "hello"), "moryflow tool show hello"),
        (("run", "--config", "{bad", "hi"), "moryflow config check"),
        (("run", "--config", "[1]", "hi"), "moryflow config check"),
        (("run", "-m", "script:nowhere", "hi"), "check the path after script:"),
    ],
)
def test_every_error_names_a_next_command(cli: Any, words: tuple[str, ...], next_step: str) -> None:
    """Also where the error itself knows none (CONTRACT §1)."""
    assert f"next: {next_step}" in cli(*words).stderr


@pytest.mark.parametrize("words", [("run", "-m", "SCRIPT", "hi"), ("session", "list"), ("doctor",)])
@pytest.mark.parametrize("damage", ["whole", "part"])
def test_a_damaged_database_is_named_by_the_command_that_met_it(cli: Any, words: tuple[str, ...], damage: str) -> None:
    """Moved aside is not enough: the person hears of it, once (issue 2, sessions)."""
    model = cli.script("fine")
    cli("run", "-m", model, "hi")
    file = Path(cli.env["MORYFLOW_HOME"]) / "sessions.db"
    content = bytearray(file.read_bytes())
    spoiled = slice(None) if damage == "whole" else slice(5000, 9000)
    content[spoiled] = b"garbage!" * (len(content[spoiled]) // 8)
    file.write_bytes(content)
    done = cli(*(model if word == "SCRIPT" else word for word in words))
    told = done.stdout + done.stderr
    assert told.count("sessions.db was damaged") == 1, told
    assert "was damaged" not in cli("session", "list").stderr


@pytest.mark.parametrize("given", ["nan", "inf", "0", "-1", "much"])
def test_a_limit_on_the_cost_that_no_cost_reaches_is_refused(cli: Any, given: str) -> None:
    """No cost is greater than `nan`, so that such a limit would be none (CONTRACT §1)."""
    done = cli("run", "-m", cli.script("hello"), "--max-cost", given, "hi")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--max-cost" in done.stderr

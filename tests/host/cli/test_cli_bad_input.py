"""What bad input gets: a sentence, the next command, the right exit code, no traceback, nothing lost (issue 2)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
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


def test_a_prompt_is_kept_where_nobody_reads_even_the_first_line(cli: Any) -> None:
    """`--output stream-json | true`: what was asked is in the session, to go on with (issue 2, closed pipe)."""
    done = shell(cli, "| sleep 0", "run", "-m", cli.script("done"), "--output", "stream-json", "what I asked")
    assert (done.returncode, done.stderr) == (141, "")
    turn = json.loads(cli("session", "show", "--json").stdout)["turns"][0]
    assert turn["end_reason"] == "stopped"
    assert "you: what I asked" in cli("session", "show").stdout


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_a_full_disk_behind_standard_output_is_said_once(cli: Any, output: str, buffered: str) -> None:
    """Exit code 1 and a sentence, also when Python would try again at exit (issue 2, full disk)."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = shell(cli, "> /dev/full", "run", "-m", cli.script("fine"), "--output", output, "hi", PYTHONUNBUFFERED=buffered)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "moryflow: standard output: could not be written: No space left on device",
        "  next: free some space, or send the output elsewhere; what was done is kept: moryflow session show",
    ]
    # Events come first of all, so that nothing is begun which nobody can follow.
    assert cli("session", "show").stdout.endswith("you: hi\n" if output == "stream-json" else "agent: fine\n")


def test_the_exit_code_tells_where_standard_error_is_full(cli: Any) -> None:
    """A mistake stays a mistake, and is not taken for a reader who has gone (CONTRACT §1)."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    assert shell(cli, "2> /dev/full", "nosuch").returncode == 2
    assert shell(cli, "> /dev/full 2>&1", "session", "list").returncode == 1


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


@pytest.mark.parametrize("words", ["session list", "run hi", "doctor"])
def test_a_user_that_the_system_does_not_know_learns_what_to_set(cli: Any, words: str, tmp_path: Path) -> None:
    """As in a container with a number for a user; Moryflow's own folder alone is not enough (issue 2, bad input)."""
    nameless = "import os, pwd; pwd.getpwuid = lambda _: {}['unknown']; os.environ.pop('HOME', None)\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(nameless)
    cli.environ = {"PYTHONPATH": str(tmp_path / "site")}
    done = cli(*words.split())
    assert (done.returncode, done.stderr) == (2, "moryflow: this user has no home folder\n  next: export HOME=DIR\n")


def test_a_home_that_may_not_be_looked_into_is_said_once() -> None:
    """Its owner learns how to change that; and `doctor` does not promise one that cannot be made (issue 2, bad input)."""
    source = """
        import os, sys
        from pathlib import Path
        from moryflow_sdk import MoryflowError
        from moryflow.cli.commands.doctor import _home
        from moryflow.base.paths import home_folder
        if os.geteuid() == 0:
            os.setgid(65534); os.setuid(65534)
        home = Path(sys.argv[1])
        home.chmod(0o500)
        print([(found.state, found.text) for found in _home(home / "new")])
        home.chmod(0o700)
        (home / "data/mine").mkdir(parents=True)
        for shut in ("data/mine", "locks"):
            (home / shut).mkdir(0, exist_ok=True)
            (home / shut).chmod(0)
        print(next((found.state, found.text, found.next_step) for found in _home(home)))
        home.chmod(0)
        try:
            home_folder(home, {})
        except MoryflowError as error:
            print(error.message, error.next_step)
    """
    with tempfile.TemporaryDirectory(prefix="moryflow-closed-") as home:
        if os.geteuid() == 0:
            os.chown(home, 65534, 65534)
        command = [sys.executable, "-c", dedent(source), home]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        Path(home).chmod(0o700)
    finding, shut, error, *rest = [*done.stdout.splitlines(), done.stderr, ""]
    assert finding == f"[('bad', '{home}/new cannot be made, because {home} cannot be written')]", rest
    closed = f"this user may not read and write locks, data/mine in {home}"
    assert shut == str(("bad", closed, f"chmod -R u+rwX {home}")), rest
    assert error.startswith("Moryflow's own folder cannot be read: Permission denied chmod u+rwx it, or set MORYFLOW_HOME")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_cannot_be_made_is_named(cli: Any) -> None:
    """The same for a folder that may not be written to (issue 2, bad input)."""
    closed = cli.vault.parent / "closed"
    closed.mkdir(mode=0o500)
    cli.environ["MORYFLOW_HOME"] = str(closed / "home")
    done = cli("session", "list")
    assert done.returncode == 1
    assert "cannot be made: Permission denied" in done.stderr


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


def test_help_shows_whole_sentences_and_the_command_s_own_flags_first(cli: Any) -> None:
    """No verb is cut off with dots, no requirement number is shown (CONTRACT §1)."""
    for noun in ("session", "config", "tool", "plugin", "approval", "model", "hook", "agent"):
        shown = cli(noun, "--help").stdout
        assert "..." not in shown.partition("Commands:")[2]
        assert "(S" not in shown
    shown = cli("run", "--help").stdout
    assert shown.index("--model") < shown.index("--vault")


def test_a_hook_that_is_nearly_right_gets_a_hint(cli: Any) -> None:
    """Did you mean, for the names of hooks too (CONTRACT §1)."""
    assert "did you mean 'chat.params'?" in cli("hook", "fire", "chat_prams").stderr


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


def test_a_vault_that_cannot_be_looked_into_is_a_sentence(cli: Any) -> None:
    """What is wrong with it and what to do, and not the manual of the command (issue 2, bad input)."""
    done = cli("run", "--vault", f"/{'x' * 300}", "-m", cli.script("x"), "hi")
    assert done.returncode == 2
    assert "the vault cannot be read: File name too long\n  next: give a folder with --vault DIR\n" in done.stderr


def test_a_line_end_in_a_name_is_no_other_finding(cli: Any) -> None:
    """Each finding is one line, whatever a folder is called (CONTRACT §1)."""
    cli.environ["MORYFLOW_HOME"] = f"{cli.vault.parent}/a\nok    model: x"
    lines = cli("doctor").stdout.splitlines()
    assert all(line.startswith(("ok  ", "warn", "BAD ", "      next: ")) for line in lines)
    assert "ok    model: x" not in " ".join(line[:14] for line in lines)

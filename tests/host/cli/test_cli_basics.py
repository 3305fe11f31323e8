"""The command line itself: help, names, flags, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("pydantic", "moryflow_builtins", "moryflow.kernel", "httpx", "rich", "prompt_toolkit", "litellm", "asyncio")


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(cli: Any, flag: str) -> None:
    """No plugin, no pydantic, no event loop (issue 2, speed)."""
    code = f"import sys; from moryflow.cli import main; main([{flag!r}]); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=cli.env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_a_key_a_person_is_offered_the_local_model(cli: Any, at_terminal: Any) -> None:
    """Size and place are said first; whoever says no is told which variables hold a key (issue 17, first minutes)."""
    cli.config(disabledPlugins=[])
    terminal = at_terminal("chat")
    terminal.expect("No key was found.")
    terminal.expect(" MB to download, into")
    terminal.expect("Install it now? [Y/n]:")
    terminal.type("n\n")
    terminal.expect("ANTHROPIC_API_KEY")
    assert terminal.end() == 2
    assert "No key was found." not in cli("run", "hi").stderr


def test_verbs_of_sessions_are_listed_in_one_place_and_work_in_both(cli: Any) -> None:
    """`moryflow undo` is an older spelling of `moryflow session undo`."""
    for verb in ("undo", "redo", "summary"):
        assert f"\n  {verb} " not in cli("--help").stdout
        assert f"\n  {verb} " in cli("session", "--help").stdout
        assert cli(verb, "--help").stdout.partition("\n")[2] == cli("session", verb, "--help").stdout.partition("\n")[2]


def test_help_names_every_command_also_those_of_plugins(cli: Any) -> None:
    """The table of CONTRACT §1, contributed ones included, without loading a plugin."""
    cli.plugin("broken", "raise RuntimeError('must not be loaded')")
    done = cli("--help")
    for name in ("run", "chat", "tool", "hook", "session", "approval", "agent", "model", "plugin", "config", "doctor", "audit"):
        assert f"\n  {name} " in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plugn", "list"], "'plugin'"),
        (["tool", "shw", "x"], "'show'"),
        (["audt"], "'audit'"),
        (["run", "--modle", "x"], "--model"),
    ],
)
def test_a_name_that_is_nearly_right_gets_a_hint(cli: Any, words: list[str], hint: str) -> None:
    """Did you mean: exit code 2, one sentence, the next command (CONTRACT §1)."""
    done = cli("-q", *words)
    assert done.returncode == 2
    assert "Did you mean" in done.stderr
    assert hint in done.stderr
    assert "next: moryflow" in done.stderr
    assert done.stdout == ""


def test_plural_nouns_and_short_verbs(cli: Any) -> None:
    """`plugins ls` is `plugin list` (CONTRACT §1)."""
    assert cli("plugins", "ls").stdout == cli("plugin", "list").stdout != ""


def test_flags_may_stand_before_or_after_the_verb(cli: Any) -> None:
    """`moryflow --json plugin list`, `plugin --json list`, `plugin list --json` are the same."""
    answers = {
        cli(*words).stdout for words in (["--json", "tool", "list"], ["tool", "--json", "list"], ["tool", "list", "--json"])
    }
    assert len(answers) == 1
    assert answers.pop().startswith("[")


def test_an_error_has_no_traceback_but_with_v(cli: Any) -> None:
    """A sentence, the next command, exit code 2; `-v` adds where it happened (issue 2)."""
    done = cli("session", "show", "nowhere")
    assert done.returncode == 2
    assert "there is no session 'nowhere'" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in cli("-v", "session", "show", "nowhere").stderr
    assert "Traceback" not in cli("session", "show", "--", "nowhere", "--verbose").stderr  # a word of another program


def test_a_noun_without_a_verb_shows_its_verbs(cli: Any) -> None:
    """The help goes to standard error, exit code 2."""
    done = cli("tool")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


def test_a_broken_plugin_is_named_and_the_rest_works(cli: Any) -> None:
    """It fails with file and line; other plugins and commands go on (invariant 5)."""
    file = cli.plugin("broken", "\n\nraise RuntimeError('no luck')\n")
    done = cli("tool", "list")
    assert done.returncode == 0
    assert "hello" in done.stdout
    assert f"plugin broken failed ({file}:3): RuntimeError: no luck" in done.stderr


def test_a_full_standard_output_is_an_error(cli: Any) -> None:
    """What was promised on standard output and could not be written is not a success."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "moryflow", "config", "path"]
        done = subprocess.run(command, env=cli.env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "moryflow: standard output: could not be written: No space left on device",
        "  next: free some space, or send the output elsewhere",
    ]


def test_completion_answers_from_the_table(cli: Any) -> None:
    """Completing a name loads no plugin; verbs are completed too."""
    cli.plugin("broken", "raise RuntimeError('must not be loaded')")
    cli.environ = {"_MORYFLOW_COMPLETE": "bash_complete", "COMP_WORDS": "moryflow a", "COMP_CWORD": "1"}
    done = cli()
    assert done.stdout.split() == ["plain,acp", "plain,approval", "plain,agent", "plain,audit"]
    assert done.stderr == ""
    cli.environ |= {"COMP_WORDS": "moryflow session ex", "COMP_CWORD": "2"}
    assert cli().stdout.split() == ["plain,export"]


def test_output_json_is_json_wherever_a_document_is_printed(cli: Any) -> None:
    """The two spellings are the same on every list and show (CONTRACT §1)."""
    for words in (["tool", "list"], ["hook", "list"], ["agent", "list"], ["config", "show"], ["model", "list"]):
        assert json.loads(cli(*words, "--output", "json").stdout) == json.loads(cli(*words, "--json").stdout)


def test_help_is_a_word_too(cli: Any) -> None:
    """`moryflow help NOUN VERB`, as with git and uv (CONTRACT §1)."""
    assert cli("help").stdout == cli("--help").stdout
    assert cli("help", "plugin", "install").stdout == cli("plugin", "install", "--help").stdout
    assert cli("help", "plugn").returncode == 2


@pytest.mark.parametrize("words", [("run", "-m"), ("dev", "--run"), ("tool", "run", "hello", "--args"), ("audit", "-n")])
def test_a_flag_without_its_value_names_the_help_of_its_command(cli: Any, words: tuple[str, ...]) -> None:
    """The next command is that of the verb, not of the whole program (CONTRACT §1)."""
    done = cli(*words)
    verb = " ".join(words[:2] if words[0] == "tool" else words[:1])
    assert done.returncode == 2 and f"next: moryflow {verb} --help\n" in done.stderr


def test_chat_refuses_json(cli: Any) -> None:
    """It took --json, before and after the verb, and printed text all the same (CONTRACT §1)."""
    for words in (("chat", "--json"), ("--json", "chat")):
        done = cli(*words, stdin="hello\n")
        assert (done.returncode, done.stdout) == (2, "") and "run --output stream-json" in done.stderr
    assert "--json" not in cli("chat", "--help").stdout


ENTRY = """
import sys
sys.argv = ["moryflow", {flag!r}]
from moryflow.__main__ import start
start()
print([n for n in ("moryflow.cli", "click", "typing", "signal") if n in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("flag", ["--help", "-h", "--version", "-V"])
def test_the_prepared_page_is_what_the_command_line_prints(cli: Any, flag: str) -> None:
    """``moryflow --help`` is read from ``cli/help.txt``, unless the terminal is narrow: both must say the same."""
    env = {name: value for name, value in cli.env.items() if name != "COLUMNS"}
    computed, prepared = (
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        for code in (f"from moryflow.cli import main; main([{flag!r}])", ENTRY.format(flag=flag))
    )
    assert (prepared.stdout, prepared.stderr) == (computed.stdout, "[]\n")


def test_flags_of_a_turn_may_stand_before_the_verb(cli: Any) -> None:
    """``moryflow -m MODEL --output json run hi`` is ``moryflow run -m MODEL --output json hi`` (CONTRACT §1)."""
    done = cli("-q", "-m", cli.script("hello"), "--output=json", "--max-steps", "3", "run", "hi")
    assert done.returncode == 0 and json.loads(done.stdout)["text"] == "hello"
    done = cli("-c", "-m", cli.script("again"), "run", "hi")
    assert (done.returncode, done.stdout) == (0, "again\n")
    assert len(json.loads(cli("session", "list", "--all", "--output", "json").stdout)) == 1
    assert cli("--output", "json", "session", "list").stdout.startswith("[")
    assert cli("-m", "x").returncode == 2

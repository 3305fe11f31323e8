"""The command line itself: help, names, flags, errors."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from moryflow.cli.commands.model import ProgressBar
from moryflow.cli.terminal import folded
from moryflow.cli.terminal.stdin import folded_question

HEAVY = ("pydantic", "moryflow_builtins", "moryflow.kernel", "httpx", "rich", "prompt_toolkit", "litellm", "asyncio")


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(cli: Any, flag: str) -> None:
    """No plugin, no pydantic, no event loop (issue 2, speed)."""
    code = f"import sys; from moryflow.cli import main; main([{flag!r}]); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=cli.env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_alone_it_says_what_to_do_next(cli: Any) -> None:
    """`moryflow` without anything is a beginning, not an error (issue 2, CLI)."""
    done = cli()
    assert done.returncode == 0
    for command in ("moryflow run", "moryflow chat", "moryflow doctor", "moryflow --help"):
        assert command in done.stdout


@pytest.mark.parametrize(("older", "word"), [("ask", "agent"), ("full_access", "full_access")])
def test_the_older_name_of_a_mode_is_understood_and_not_offered(cli: Any, older: str, word: str) -> None:
    """`ask` was never a mode of its own (D1)."""
    cli("run", "-y", "-m", cli.script("done"), "--mode", older, "--on-ask", "reject", "hi")
    assert json.loads(cli("session", "list", "--json").stdout)[0]["mode"] == word
    assert "ask" not in cli("tool", "run", "--help").stdout.partition("--mode")[2].partition("]")[0]


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


@pytest.mark.parametrize("columns", [30, 60, 200])
def test_the_bar_of_a_download_stays_on_one_line(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """A line that is wrapped cannot be taken away: at 60 columns one stood below the other (issue 17)."""
    drawn = io.StringIO()
    monkeypatch.setattr("sys.stderr", drawn)
    monkeypatch.setattr("moryflow.cli.commands.model.terminal_width", lambda: columns)
    for done in (0, 60_000_000, 127_000_000):
        ProgressBar().show("downloading the runtime", done, 127_000_000)
    lines = drawn.getvalue().split("\r\x1b[K")[1:]
    assert len(lines) == 3 and all(len(line) < columns for line in lines)
    assert all(" 47% 60 of 127 MB" in line for line in lines[1:2]) and lines[2].startswith("████")


def test_a_question_and_its_answers_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What click puts behind a question stands behind its last word."""
    monkeypatch.setattr("moryflow.cli.terminal.terminal_width", lambda: 40)
    monkeypatch.setenv("COLUMNS", "40")
    assert folded_question("It is forty columns wide. Install it?") == "It is forty columns wide. Install\nit?"


def test_a_next_command_is_left_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a command that is copied would run (CONTRACT §1)."""
    monkeypatch.setattr("moryflow.cli.terminal.terminal_width", lambda: 40)
    monkeypatch.setenv("COLUMNS", "40")
    step = "  next: moryflow permission allow bash 'echo x'"
    assert folded(f"one call was denied because nobody could be asked\n{step}").split("\n")[-2:] == ["be asked", step]


@pytest.mark.parametrize("words", [("--help",), ("session", "--help"), ("permission", "--help"), ("tool",)])
def test_commands_stand_before_flags_in_help(cli: Any, words: tuple[str, ...]) -> None:
    """Whoever asks a noun for help looks for its verbs; a page of flags stood before them."""
    done = cli(*words)
    shown = done.stdout or done.stderr
    assert 0 < shown.index("\nCommands:\n") < shown.index("\nOptions:\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("agent", "show"), "moryflow: missing argument 'NAME'."),
        (("completion",), "choose from: bash, fish, zsh"),
        (("session", "show"), 'next: moryflow run "your question" begins one'),
        (("session", "list", "nobody"), "moryflow: got unexpected extra argument (nobody)"),
    ],
)
def test_mistakes_are_said_in_one_line_and_one_voice(cli: Any, words: tuple[str, ...], sentence: str) -> None:
    """What click says reads like what Moryflow says, on one line, with the next command (CONTRACT §1)."""
    done = cli(*words)
    assert done.returncode == 2 and sentence.casefold() in done.stderr.casefold()
    assert done.stderr.startswith("moryflow: ") and done.stderr.count("\n") == 2


def test_verbs_of_sessions_are_listed_in_one_place_and_work_in_both(cli: Any) -> None:
    """`moryflow undo` is an older spelling of `moryflow session undo`."""
    for verb in ("undo", "redo", "summary"):
        assert f"\n  {verb} " not in cli("--help").stdout
        assert f"\n  {verb} " in cli("session", "--help").stdout
        assert cli(verb, "--help").stdout.partition("\n")[2] == cli("session", verb, "--help").stdout.partition("\n")[2]


def test_doctor_names_a_library_that_is_outside_what_moryflow_is_made_for(monkeypatch: Any) -> None:
    """An installer that was given other bounds put another release there (issue 17)."""
    from importlib import metadata

    from moryflow.cli.commands.doctor import _libraries

    assert [item.state for item in _libraries()] == ["ok"]
    monkeypatch.setattr(metadata, "requires", lambda _: ["pluggy>=99", "nowhere-at-all>=1", "absent; extra == 'more'"])
    found = {item.text.partition(" ")[0]: (item.state, item.next_step) for item in _libraries()}
    assert found["pluggy"] == ("warning", "python3 -m pip install 'pluggy>=99'")
    assert found["nowhere-at-all"] == ("bad", "python3 -m pip install 'nowhere-at-all>=1'")
    assert len(found) == 2


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


def test_flags_before_a_contributed_command_reach_it(cli: Any) -> None:
    """A plugin's command knows --json and -q wherever they stand."""
    assert cli("--json", "audit").stdout.strip() == cli("audit", "--json").stdout.strip() == "[]"
    cli.plugin("broken", "raise RuntimeError('no')")
    assert "broken" in cli("audit").stderr
    assert cli("-q", "audit").stderr == ""


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


def test_a_closed_pipe_is_quiet(cli: Any) -> None:
    """`| head` gets no traceback and no error (issue 2)."""
    command = f"{sys.executable} -m moryflow config schema | head -c 1; echo; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=cli.env, cwd=cli.vault, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "141")


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: Any, shell: str) -> None:
    """Each shell gets a script that calls back with its own variable."""
    assert "_MORYFLOW_COMPLETE" in cli("completion", shell).stdout


def test_completion_answers_from_the_table(cli: Any) -> None:
    """Completing a name loads no plugin; verbs are completed too."""
    cli.plugin("broken", "raise RuntimeError('must not be loaded')")
    cli.environ = {"_MORYFLOW_COMPLETE": "bash_complete", "COMP_WORDS": "moryflow a", "COMP_CWORD": "1"}
    done = cli()
    assert done.stdout.split() == ["plain,acp", "plain,approval", "plain,agent", "plain,audit"]
    assert done.stderr == ""
    cli.environ |= {"COMP_WORDS": "moryflow session ex", "COMP_CWORD": "2"}
    assert cli().stdout.split() == ["plain,export"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("audit t", ["plain,tail"]),
        ("session und", ["plain,undo", "plain,undo-compaction"]),
        ("nowhere xy", []),
        ("tool no x", []),
        ("nowhere ", []),
        ("nowhere -", []),
        ("session nowhere ", []),
    ],
)
def test_the_tab_key_writes_nothing_into_the_prompt(cli: Any, words: str, answer: list[str]) -> None:
    """Neither of a plugin that is broken nor of a word that is not a command (CONTRACT §1)."""
    cli.plugin("broken", "raise RuntimeError('no')")
    number = str(len(words.split()) + words.endswith(" "))
    cli.environ = {"_MORYFLOW_COMPLETE": "bash_complete", "COMP_WORDS": f"moryflow {words}", "COMP_CWORD": number}
    done = cli()
    assert (done.stdout.split(), done.stderr, done.returncode) == (answer, "", 0)


def offered(cli: Any, words: str) -> list[str]:
    """What bash is offered for `words` when Tab is pressed behind them; nothing may be written beside it."""
    number = len(words.split()) + words.endswith(" ")
    cli.environ = {"_MORYFLOW_COMPLETE": "bash_complete", "COMP_WORDS": f"moryflow {words}", "COMP_CWORD": str(number)}
    done = cli()
    cli.environ = {}
    assert (done.stderr, done.returncode) == ("", 0)
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_names_are_completed_from_what_the_last_start_remembered(cli: Any) -> None:
    """Sessions, models, tools, agents, plugins, settings and hooks; no plugin is loaded for them (CONTRACT §1)."""
    (cli.home / "agents").mkdir(mode=0o700)
    (cli.home / "agents" / "poet.md").write_text("---\ndescription: Writes.\n---\nWrite.\n")
    model = cli.script("hello", "hello")
    cli("run", "-m", model, "hi")
    cli("run", "-m", model, "hi")
    sessions = [row["id"] for row in json.loads(cli("session", "list", "--json").stdout)]
    cli.plugin("demo", "raise RuntimeError('must not be loaded')")
    assert offered(cli, "session show ") == offered(cli, "run -r ") == offered(cli, "session switch ") == sessions
    assert offered(cli, f"session delete {sessions[0]} {sessions[1][:3]}") == [sessions[1]]
    assert offered(cli, f"chat -m {model[:8]}") == [model]
    assert offered(cli, "tool run d") == ["danger"] and offered(cli, "plugin info dem") == ["demo"]
    assert {"build", "poet"} <= {*offered(cli, "run --agent ")} == {*offered(cli, "agent show ")}
    assert offered(cli, "config get limits.") == ["limits.maxSteps", "limits.maxCost"]
    assert offered(cli, "hook fire tool.g") == ["tool.gate"]
    assert offered(cli, "new tool ") == []


def test_the_tab_key_says_nothing_of_a_broken_home_and_makes_none(cli: Any) -> None:
    """And a name that a shell would read otherwise is not offered: a session may come from elsewhere (R13)."""
    cli("run", "-m", cli.script("hello"), "hi")
    with closing(sqlite3.connect(cli.home / "sessions.db")) as store, store:
        store.execute("UPDATE sessions SET model = '$(touch x)', title = char(27) || ']0;x'")
    assert offered(cli, "run -m ") == [] and len(offered(cli, "session show ")) == 1
    for broken in (cli.home / "sessions.db", cli.home / "cache" / "plugins.json", cli.home / "config.jsonc"):
        broken.write_text("{ broken")
    for words in ("session show ", "run -m ", "tool run ", "agent show "):
        assert offered(cli, words) == []
    cli.home = cli.home / "none"
    assert offered(cli, "session show ") == [] and not cli.home.exists()
    cli.home = Path("/dev/null/none")
    assert offered(cli, "session und") == ["undo", "undo-compaction"] and offered(cli, "permission r") == []


def test_flags_of_a_turn_may_stand_before_the_verb(cli: Any) -> None:
    """``moryflow -m MODEL --output json run hi`` is ``moryflow run -m MODEL --output json hi`` (CONTRACT §1)."""
    done = cli("-q", "-m", cli.script("hello"), "--output=json", "--max-steps", "3", "run", "hi")
    assert done.returncode == 0 and json.loads(done.stdout)["text"] == "hello"
    done = cli("-c", "-m", cli.script("again"), "run", "hi")
    assert (done.returncode, done.stdout) == (0, "again\n")
    assert len(json.loads(cli("session", "list", "--all", "--output", "json").stdout)) == 1
    assert cli("--output", "json", "session", "list").stdout.startswith("[")
    assert cli("-m", "x").returncode == 2


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


def test_models_are_listed_by_the_service_that_people_know(cli: Any) -> None:
    """`model list --provider local`, not only the name of the plugin that speaks to it (issue 2)."""
    cli.config(disabledPlugins=[])
    for provider, models in (("local", ["local"]), ("local_model", ["local", "local-135m"])):
        assert [row["id"] for row in json.loads(cli("model", "list", "--provider", provider, "--json").stdout)] == models
    assert "of 'nobody'; moryflow model list" in cli("model", "list", "--provider", "nobody").stdout


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


def test_help_in_a_narrow_terminal_is_wrapped_to_it(cli: Any) -> None:
    """The prepared page is for 80 columns; a narrower one is computed."""
    command, env = [sys.executable, "-m", "moryflow", "--help"], {**cli.env, "COLUMNS": "60"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: moryflow")
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_lists_fit_the_terminal_and_break_between_words(cli: Any, at_terminal: Callable[..., Any]) -> None:
    """One long value padded every row of `config show --all`; where nobody looks a row stays a line (CONTRACT §1)."""
    document = {
        "agents": {"runtime": {"permission": {"rules": [{"domain": "bash", "pattern": "ls *", "decision": "allow"}] * 3}}}
    }
    (cli.home / "config.jsonc").write_text(json.dumps(document))
    for command in ("agent list", "tool list", "config show --all"):
        rows = cli(*command.split()).stdout.splitlines()
        terminal = at_terminal(*command.split(), columns=60)
        assert terminal.end() == 0
        lines = terminal.text.splitlines()
        assert all(lines)
        assert all(len(line) <= 60 or " " not in line.strip() for line in lines)
        assert terminal.text.split() == " ".join(rows).split()


def test_a_mistake_is_told_in_whole_words_and_its_next_command_in_one_line(cli: Any, at_terminal: Callable[..., Any]) -> None:
    """Half of a command that is copied would run (CONTRACT §1)."""
    terminal = at_terminal("session", "show", columns=40)
    assert terminal.end() == 2
    message, _, step = terminal.text.partition("\n  next: ")
    assert message.split("\n")[0] == "moryflow: there is no session of"
    assert step.startswith('moryflow run "your question" begins one; moryflow session list shows')


def test_help_that_cannot_be_written_is_an_error(cli: Any) -> None:
    """The prepared page leaves errors to the command line, which says what to do."""
    command = [sys.executable, "-m", "moryflow", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=cli.env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "standard output: could not be written" in done.stderr

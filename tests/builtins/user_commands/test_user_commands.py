"""Commands as Markdown files: words in their places, mistakes named."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins.user_commands import command_in, fill_in
from moryflow_sdk import Command, Diagnostic


@pytest.mark.parametrize(
    ("body", "rest", "prompt"),
    [
        ("Review $ARGUMENTS.", "a b", "Review a b."),
        ("From $1 to $2", "'x y' z", "From x y to z"),
        ("From $1 to $2", "x", "From x to "),
        ("Costs $100 or $1", "x", "Costs $100 or x"),
        ("Plain.", "more words", "Plain.\n\nmore words"),
        ("Plain.", "", "Plain."),
        ("Say $1", "it's", "Say it's"),
    ],
)
def test_words_take_their_places(body: str, rest: str, prompt: str) -> None:
    """All of them, one each, or at the end (issue 6, commands)."""
    assert fill_in(body, rest) == prompt


@given(st.text(), st.text())
def test_words_are_never_taken_for_places(body: str, rest: str) -> None:
    """What a person types is put in once and not looked at again (issue 6, commands)."""
    assert fill_in("<$ARGUMENTS>", rest) == f"<{rest}>"
    fill_in(body, rest)


def test_a_file_is_a_command(tmp_path: Path) -> None:
    """With or without frontmatter; the first line is its help where nothing else is (issue 6, commands)."""
    (tmp_path / "a.md").write_text("---\ndescription: Look it over\n---\nReview $ARGUMENTS")
    (tmp_path / "b.md").write_text("# Tidy up\n\nRemove what is not used.")
    for name, help_line in (("a", "Look it over"), ("b", "Tidy up")):
        (command,) = command_in(tmp_path / f"{name}.md")
        assert isinstance(command, Command) and (command.name, command.help) == (name, help_line)
        assert command.slash is not None
        assert asyncio.run(command.slash("x", None)).prompt  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("Bad Name.md", b"x", "command_name"),
        ("empty.md", b"", "command_body"),
        ("open.md", b"---\ndescription: x\n", "command_frontmatter"),
        ("latin.md", b"caf\xe9", "command_encoding"),
        ("huge.md", b"x" * (1024 * 1024 + 1), "command_size"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    """With file and reason (issue 6, commands)."""
    (tmp_path / name).write_bytes(content)
    (found,) = command_in(tmp_path / name)
    assert isinstance(found, Diagnostic) and found.code == code


def test_it_is_used_in_chat(tmp_path: Path) -> None:
    """``/name words`` sends the text; ``/help`` lists it; the host's own names stay the host's (issue 6, commands)."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    (home / "commands").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    vault.mkdir()
    (home / "commands/review.md").write_text("Review this: $ARGUMENTS")
    for name in ("chat", "help", "plan", "stop"):
        (home / f"commands/{name}.md").write_text("mine")
    (tmp_path / "script.json").write_text(json.dumps(["fine"]))
    done = subprocess.run(
        [sys.executable, "-m", "moryflow", "chat", "-m", f"script:{tmp_path / 'script.json'}"],
        cwd=vault, env={**os.environ, "MORYFLOW_HOME": str(home)}, input="/help\n/review a.py\n", text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert "/review" in done.stderr and "mine" not in done.stderr
    for name in ("chat", "help", "plan", "stop"):
        assert f"{home / f'commands/{name}.md'}: the name '{name}' is taken by the host" in done.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "moryflow", "session", "show"],
        cwd=vault, env={**os.environ, "MORYFLOW_HOME": str(home)}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert "you: Review this: a.py" in shown.stdout


def test_every_word_of_chat_is_reserved() -> None:
    """A command that a file or a plugin brings can hide none of them (issue 6, commands)."""
    from moryflow.base.builtins import RESERVED
    from moryflow.cli.chat.slash import Slash

    class Talk:
        host = None

    assert set(Slash(Talk())._own) <= RESERVED["slash"]  # type: ignore[arg-type]


def test_a_file_larger_than_the_memory_costs_itself(tmp_path: Path) -> None:
    """It is read no further than a command may be long: all commands were lost with it (invariant 5)."""
    file = tmp_path / "huge.md"
    file.touch()
    os.truncate(file, 1 << 40)
    (problem,) = command_in(file)
    assert isinstance(problem, Diagnostic)
    assert (problem.message, problem.next_step) == ("it is larger than 1024 KiB", "change huge.md, then moryflow doctor")


@pytest.mark.parametrize("body", [b"a\nb\nc\xe9", b"a\nb\nc\0"])
def test_the_line_is_the_one_in_the_file(tmp_path: Path, body: bytes) -> None:
    """Also of a file without frontmatter (issue 6, commands)."""
    (tmp_path / "odd.md").write_bytes(body)
    (problem,) = command_in(tmp_path / "odd.md")
    assert isinstance(problem, Diagnostic) and problem.line == 3


def test_fields_that_nobody_heeds_are_named(tmp_path: Path) -> None:
    """Each with its line, and what was meant; the command is there (issue 6, commands)."""
    (tmp_path / "odd.md").write_text("---\ndescripton: x\nmodel: big\ndescription: [1]\n---\nBody")
    command, *problems = command_in(tmp_path / "odd.md")
    assert isinstance(command, Command)
    assert [(each.line, each.message) for each in problems if isinstance(each, Diagnostic)] == [
        (2, "the field 'descripton' is not known and is ignored; did you mean 'description'?"),
        (3, "the field 'model' is not known and is ignored"),
        (4, "description must be text; it is ignored"),
    ]


def test_files_of_other_systems_are_commands(tmp_path: Path) -> None:
    """A hint in brackets, a colon, ``NAME.prompt.md``, a name with a dot; what only describes is not spoken of (issue 6)."""
    head = "---\ndescription: Tidy up: branches\nargument-hint: [--dry-run] | [--force]\nallowed-tools: Bash(git:*)\n---\nGo $1"
    for file, name in (("clean.prompt.md", "clean"), ("v1.2-notes.md", "v1.2-notes")):
        (tmp_path / file).write_text(head)
        (command,) = command_in(tmp_path / file)
        assert isinstance(command, Command) and (command.name, command.help) == (name, "Tidy up: branches")
    (tmp_path / "less.md").write_text("---\ndescription: d\ndisallowed-tools: Bash\n---\nGo")
    _, said = command_in(tmp_path / "less.md")
    assert isinstance(said, Diagnostic) and "'disallowed-tools' is not known and is ignored" in said.message

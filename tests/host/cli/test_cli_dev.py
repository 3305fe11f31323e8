"""``moryflow dev`` as somebody who writes a plugin sees it: a save, what it changed, the command again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def greet(name: str{more}) -> str:
    "Say hello."
    return f"{word}, {{name}}"

@hookimpl
def tools():
    return [greet]
"""


class Terminal:
    """A ``moryflow dev`` that runs, and what it has said so far."""

    def __init__(self, cli: Any, *arguments: str) -> None:
        self.file = cli.home.parent / "dev.log"
        with self.file.open("wb") as sink:
            options = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
            self.process = cli.start("dev", *arguments, **options)
        self._until = 0

    def wait(self, text: str, *, seconds: float = 200.0) -> str:
        """Return what was said up to and including `text`, from where the last call ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said = self.file.read_text("utf-8", errors="replace")[self._until :]
            if text in said:
                end = said.index(text) + len(text)
                self._until += end
                return said[:end]
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not said: {self.file.read_text('utf-8')}")

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(200)


def save(path: Path, word: str, more: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(SOURCE.format(word=word, more=more))
    path.chmod(0o600)


@pytest.mark.parametrize("place", ["home", "elsewhere"])
def test_each_save_is_shown_and_the_command_is_run_again(cli: Any, tmp_path: Path, place: str) -> None:
    """The inner loop: save, see what changed, see the effect; a broken save says where and runs nothing (S0-i)."""
    file = cli.home / "plugins" / "mine.py" if place == "home" else tmp_path / "work" / "mine.py"
    save(file, "one")
    paths = [] if place == "home" else [str(file)]
    dev = Terminal(cli, *paths, "--run", "tool run greet --name you")
    try:
        assert ", mine)" in dev.wait("one, you")
        dev.wait("exit code 0")
        save(file, "two", ", times: int = 1")
        assert "plugin mine: code · tool greet: parameters" in dev.wait("two, you")
        dev.wait("exit code 0")
        file.write_text("def broken(:\n")
        assert f"kept the previous version: {file}:1: SyntaxError" in dev.wait("(column 12)")
        save(file, "three")
        assert dev.wait("three, you").count("$ moryflow tool run greet") == 1
        dev.wait("exit code 0")
        assert dev.end() == 0
    finally:
        dev.process.kill()


def test_the_command_is_moryflows_whatever_lies_in_the_folder(cli: Any) -> None:
    """A file of the vault is never imported (R13)."""
    save(file := cli.home / "plugins" / "mine.py", "one")
    dev = Terminal(cli, "--run", "tool run greet --name you")
    try:
        dev.wait("exit code 0")
        (cli.vault / "moryflow.py").write_text("print('from the vault')")
        save(file, "two")
        assert "two, you" in dev.wait("exit code 0")
        assert dev.end() == 0
    finally:
        dev.process.kill()


@pytest.mark.parametrize("answer", ["y\n", ""])
def test_new_code_is_asked_about_and_ctrl_c_ends_at_the_question_too(cli: Any, at_terminal: Any, answer: str) -> None:
    """A question in dev on a terminal; nothing of it holds up the end (ARCHITECTURE §7, R18)."""
    terminal = at_terminal("dev")
    terminal.expect("Ctrl-C ends")
    save(cli.home / "plugins" / "fresh.py", "one")
    terminal.expect("may it run?")
    if answer:
        terminal.type(answer)
        terminal.expect("plugin fresh: loaded")
    terminal.interrupt()
    assert terminal.end() == 0
    assert ("greet" in cli("tool", "list", "-q").stdout) == bool(answer)


UNDECLARED = SOURCE.replace('(domain="read")', "")


def test_the_command_asks_at_the_terminal_of_dev(cli: Any, at_terminal: Any) -> None:
    """A tool that says nothing of what it touches is asked about; *always* holds for the saves after it (S0-i, S0.9)."""
    file = cli.home / "plugins" / "mine.py"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    file.write_text(UNDECLARED.format(word="one", more=""))
    file.chmod(0o600)
    terminal = at_terminal("dev", "--run", "tool run greet --name you")
    terminal.expect("declares no domain")
    terminal.expect("[o]nce  [a]lways  [r]efuse  [s]top  or why not >")
    file.write_text(UNDECLARED.format(word="two", more=""))
    terminal.expect("ended: a file was saved")
    terminal.expect("[o]nce  [a]lways  [r]efuse  [s]top  or why not >")
    terminal.type("a\r")
    terminal.expect("two, you")
    terminal.expect("exit code 0")
    file.write_text(UNDECLARED.format(word="three", more=""))
    terminal.expect("three, you")
    terminal.interrupt()
    assert terminal.end() == 0


def test_without_a_terminal_the_help_says_what_lets_a_tool_run(cli: Any) -> None:
    """Nobody can be asked there (S0.69)."""
    cli.plugin("mine", UNDECLARED.format(word="one", more=""))
    dev = Terminal(cli, "--run", "tool run greet --name you")
    try:
        dev.wait("nobody could be asked")
        dev.wait("exit code 4")
    finally:
        dev.end()
    assert "--mode full_access -y" in " ".join(cli("dev", "--help").stdout.split())
    dev = Terminal(cli, "--run", "tool run greet --name you --mode full_access -y")
    try:
        dev.wait("one, you")
    finally:
        dev.end()

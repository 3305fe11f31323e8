"""What stands below a call: a few lines of what it gave, from the end that tells how it went (issue 17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moryflow.cli.terminal.render import GREEN, failed, output_lines
from moryflow_sdk.support.texts import columns_of

Begin = Callable[..., Any]


def lines(how: str = "Ctrl-O shows all", **result: Any) -> list[str]:
    """The lines at 40 columns, without their styles."""
    whole = {"tool": "bash", "status": "ok", "truncated": False, **result}
    return [line for line, _ in output_lines(whole, 40, how).lines]


def test_a_command_that_failed_shows_its_end() -> None:
    """The reason stands there; it is marked, though the call itself went well (the model reads the exit code)."""
    output = "\n".join([*(f"line {number}" for number in range(50)), "E: no such file", "[exit code 2]"])
    assert lines(output=output, title="exit code 2") == [
        "  +48 lines before · Ctrl-O shows all",
        "  line 48",
        "  line 49",
        "  E: no such file",
        "  [exit code 2]",
    ]
    hidden = lines(output=f"{output}\n[hidden in the sandbox: .env]", title="exit code 2")
    assert hidden[-3:] == ["  E: no such file", "  [exit code 2]", "  [hidden in the sandbox: .env]"]
    assert failed({"status": "ok", "title": "exit code 2"}) and not failed({"status": "ok", "title": "exit code 0"})


def test_a_command_that_was_stopped_shows_what_it_had_said() -> None:
    """Its first line says nothing of why it was stopped."""
    output = "begins\n[stopped after 5 s]"
    assert lines(output=output, status="error", title="stopped after 5 s") == ["  begins", "  [stopped after 5 s]"]


def test_an_error_is_shown_whole_where_it_fits() -> None:
    """No word is cut; a long one shows its beginning and how to see all."""
    said = "error: " + " ".join(f"word{number}" for number in range(20))
    shown = lines(output=said, status="error", tool="edit")
    assert " ".join(line.strip() for line in shown) == said and shown[0].startswith("  error: word0")
    shown = lines(output="\n".join(f"line {number}" for number in range(40)), status="error", tool="edit")
    assert shown[0] == "  error: line 0" and shown[-1] == "  +32 lines · Ctrl-O shows all"


def test_an_error_and_a_hint_are_measured_in_columns() -> None:
    """East Asian characters take two, and a row that is wider than the terminal would be two rows there."""
    shown = lines(output="文件不存在" * 20, status="error", tool="edit")
    assert "".join(line.strip() for line in shown) == "error: " + "文件不存在" * 20
    shown += lines(how="按 Ctrl-O 显示全部内容" * 3, output="x\n" * 40, title="exit code 0")
    assert len(shown) > 8 and max(map(columns_of, shown)) <= 42


def test_a_long_line_of_a_diff_keeps_its_words_and_its_colour() -> None:
    """What goes on below is a part of the line that was added."""
    diff = "vault:/a.md: +1 -1 lines\n-It prints.\n+It prints the weather of today, and of tomorrow."
    found = output_lines({"tool": "edit", "status": "ok", "diff": diff}, 40, "")
    assert found.lines[2:] == [("  │ +It prints the weather of today, and ", GREEN), ("  ┊ of tomorrow.", GREEN)]


def test_all_of_an_output_that_was_too_long_for_the_model_is_shown(cli: Any, at_prompt: Begin) -> None:
    """Ctrl-O reads it where it is stored, not what the model was given of it."""
    cli.tool("counter", r'return "\n".join(f"number {number}" for number in range(5000))')
    terminal = at_prompt("-m", cli.script(cli.calls("counter"), "counted"))
    terminal.type("count\r")
    terminal.expect("truncated · Ctrl-O shows all")
    terminal.expect("counted")
    terminal.expect("\n>")
    terminal.type("\x0f")
    terminal.expect("number 4321\n")
    terminal.expect("number 4999\n")
    assert terminal.quit() == 0

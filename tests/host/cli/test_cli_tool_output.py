"""What stands below a call: a few lines of what it gave, from the end that tells how it went (issue 17)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from moryflow.cli.terminal.diffs import numbered, painted
from moryflow.cli.terminal.spinner import Awaited
from moryflow.cli.terminal.tool_output import failed, output_lines
from moryflow_sdk import Event
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


def test_a_diff_has_line_numbers_and_its_syntax() -> None:
    """Only the signs have a colour: words are readable anywhere; what goes on below belongs to its line (issue 41)."""
    diff = (
        "vault:/a.py: +1 -1 lines\n@@ -9,3 +9,3 @@\n def f():\n-    return 'some text that is long enough'\n+    return 2\n x"
    )
    assert numbered(diff).split("\n")[1:] == [
        " 9   def f():",
        "10 -     return 'some text that is long enough'",
        "10 +     return 2",
        "11   x",
    ]
    rows = lines(tool="edit", diff=diff)
    assert rows[0] == "  │ a.py: +1 -1 lines" and max(map(len, rows)) <= 42
    styled = list(painted(rows))
    assert ("def", "\x1b[1m") in styled[1] and ("f", "\x1b[1m") in styled[1]
    assert ("- ", "\x1b[1;31m") in styled[2] and styled[3] == [("  ┊ long enough'", "")]
    coloured = {text for row in styled for text, style in row if re.search(r"3\dm", style.removeprefix("\x1b[3m"))}
    assert coloured == {"- ", "+ "}


def test_progress_is_the_last_line_in_its_place() -> None:
    """Each text of a tool is a line of its own; of a command the last lines, and of a bar what it wrote last (issue 41)."""
    awaited = Awaited()

    def told(domain: str, *pieces: str) -> list[str]:
        data = {"call_id": domain, "tool": "t", "args": {}, "state": "running", "domain": domain}
        awaited.note(Event(type="tool.start", session="s", ts="", data=data))
        for piece in pieces:
            awaited.note(Event(type="tool.delta", session="s", ts="", data={"call_id": domain, "text": piece}))
        shown = awaited.printed()
        awaited.note(Event(type="tool.result", session="s", ts="", data={"call_id": domain, "status": "ok"}))
        return shown

    assert told("read", "1/6 Intro", "2/6 Mid") == ["  2/6 Mid"]
    assert told("bash", "one\ntw", "o\n 10 %\r 50 %\r") == ["  one", "  two", "   50 %"]


def test_reasoning_is_folded_and_one_key_shows_it(cli: Any, at_prompt: Begin) -> None:
    """A dim line stands in its place, and Ctrl-O shows all of it (issue 41)."""
    terminal = at_prompt("-m", cli.script({"reasoning": "first this\nthen that", "text": "so it is"}))
    terminal.type("why\r")
    terminal.expect("∴ thought for 1 s · Ctrl-O shows it")
    terminal.expect("so it is")
    assert "then that" not in terminal.text.partition("∴")[2]
    terminal.type("\x0f")
    terminal.expect("first this\nthen that")
    assert terminal.quit() == 0


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


def test_reasoning_streams_above_the_input(monkeypatch: Any) -> None:
    """Its last lines, dim there as all of what is live, until the answer begins (issue 41)."""
    from moryflow.cli.terminal.render import TerminalView

    view = TerminalView(chat=True)
    monkeypatch.setattr(view, "_on_terminal", True)
    for piece in ("first ", "this\nthen", " that"):
        view(Event(type="reasoning.delta", session="s", ts="", data={"text": piece, "message_id": "m"}))
    assert view.live_lines(8)[:2] == ["  first this", "  then that"] and "thinking" in view.live_lines(8)[-1]
    view(Event(type="text.delta", session="s", ts="", data={"text": "so", "message_id": "m"}))
    assert "  first this" not in view.live_lines(8)

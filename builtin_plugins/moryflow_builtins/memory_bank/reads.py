"""What was read of the bank in this turn, noted when the result is known."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moryflow_sdk import Message, Target, ToolCall, ToolError, ToolResult, Turn

from .bank import Bank, MemoryBankSettings, as_text, name_in_bank

READER = "memory-reader"
MOST_OF_A_LINE = 500
FIRST_LINES = 40
"""So many lines from a file's beginning must stand in the output for it to count as read."""
SEARCHES = ("ls", "glob", "grep", "search_in_file")
"""Tools that read nothing in order, even where they show every line of a short file."""


def satisfied(turn: Turn, bank: Bank) -> bool:
    """Whether this turn has read what a risky write asks for: ``patterns.md``, or a package of the memory reader."""
    state = turn.state
    return bool(state.get("readerDone")) or bank.required() in state.get("readFiles", ())


def note_reads(call: ToolCall, result: ToolResult, turn: Turn) -> None:
    """Note the files of the bank that a successful call has shown."""
    if result.status != "ok" or call.tool in SEARCHES:
        return
    for target in call.targets:
        name = name_in_bank(target)
        if not name or target.domain != "read" or name in turn.state.get("readFiles", ()):
            continue
        lines = shown_lines(turn, target, result.output)
        if lines is not None:
            state = turn.state
            state["readFiles"] = [*state.get("readFiles", ()), name]
            state["linesRead"] = state.get("linesRead", 0) + lines
            bank = Bank(str(turn.vault))
            state["contextSatisfied"] = satisfied(turn, bank)


def shown_lines(turn: Any, target: Target, output: str) -> int | None:
    """Return how many lines the file has, if `output` shows it from its beginning; else ``None``."""
    try:
        data = turn.files.read(target, limit=4 * 1024 * 1024)
    except ToolError:
        return None
    text = as_text(data)
    lines = (data.decode("latin-1") if text is None else text).splitlines()
    first = [_telling(line, plain=text is None) for line in lines if line.strip()][:FIRST_LINES]
    return len(lines) if all(line in output for line in first) else None


def _telling(line: str, *, plain: bool) -> str:
    """Return what of a line must be in an output that shows it: not what is cut, nor what an encoding may spell otherwise."""
    pieces = re.split(r"[^\t\x20-\x7e]+", line) if plain else [line]
    return max(pieces, key=len).strip()[:MOST_OF_A_LINE]


def note_package(turn: Turn) -> None:
    """Note that the memory reader has given a package that holds what it must."""
    turn.state["readerDone"] = True
    turn.state["contextSatisfied"] = True


def forget_after_compaction(messages: Sequence[Message], turn: Turn) -> None:
    """Let the reads be made again once the conversation was shortened: the model does not see them any more."""
    head = messages[0] if messages else None
    summary = head.node if head is not None and head.role == "system" else ""
    state = turn.state
    if state.get("summary", "") == summary:
        return
    state["summary"] = summary
    for key in ("readFiles", "readerDone", "linesRead", "contextSatisfied", "hinted"):
        state.pop(key, None)


def escalation(turn: Turn, settings: MemoryBankSettings) -> str:
    """Return the one hint that more reading is the reader's work, or nothing. It never blocks.

    A sub-agent starts no agents, and the reader is one.
    """
    if turn.parent is not None:
        return ""
    state = turn.state
    files, lines = len(state.get("readFiles", ())), state.get("linesRead", 0)
    if state.get("hinted") or state.get("readerDone"):
        return ""
    if files <= settings.reader_files and lines <= settings.reader_lines:
        return ""
    state["hinted"] = True
    what = f"{files} files" if files > settings.reader_files else f"{lines} lines"
    return f"{what} of the memory bank were read directly in this turn. Next: start the task agent {READER} for the rest"


def add_file_dates(result: ToolResult, call: ToolCall) -> ToolResult:
    """Tell the reader when the files were changed that it has just seen; its evidence says so."""
    stamps = [f"{target.given} modified {day}" for target in call.targets if target.domain == "read" and (day := _day(target))]
    if result.status != "ok" or not stamps:
        return result
    return result.replace(output=f"{result.output}\n\n[{'; '.join(stamps)}]")


def _day(target: Target) -> str:
    path = Path(target.path or "")
    try:
        found = path.lstat()
    except OSError:
        return ""
    return time.strftime("%Y-%m-%d", time.gmtime(found.st_mtime)) if stat.S_ISREG(found.st_mode) else ""

"""Record every decision before the body runs, allowed ones too.

One JSON line each, in a file per session that outlives the session. What cannot be recorded is not freer than the
defaults: then ``full_access``, and rules of a person's own, fall back to asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moryflow_sdk import Ask, Command, Event, Ruling, ToolCall, Turn, Verdict, hookimpl

from .log import (
    append,
    deciding_rule,
    decision_record,
    encode,
    file_of,
    last_of_call,
    mode_record,
    refusal_record,
    stopped_record,
)

name = "audit"
services = ("emit",)
gate = True


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> Verdict | None:
    """Write the line of this decision; ask when it cannot be written and the defaults alone would not allow the call."""
    problem = _write(turn, decision_record(call, ruling, turn))
    if problem is None or ruling.decision != "allow" or ruling.by == "user":
        return None
    rule = deciding_rule(ruling)
    if ruling.mode != "full_access" and rule is not None and rule.source == "default":
        return None
    return Ask(reason=f"this call cannot be recorded: {problem}", cause="policy", bypass="never")


@hookimpl(events=("session.mode", "turn.start", "tool.result", "permission.replied"))
def event(event: Event, turn: Turn | None) -> None:
    """Record modes, calls that were refused after their line said that they were allowed, and questions left standing."""
    if turn is None:
        return
    match event.type:
        case "session.mode":
            data = event.data
            _write(turn, mode_record(turn, data.get("from"), str(data.get("to", "")), str(data.get("by", ""))))
        case "turn.start":
            _record_initial_mode(turn)
        case "tool.result" if event.data.get("status") == "denied":
            _record_late_refusal(event, turn)
        case "permission.replied" if event.data.get("by") in ("cancel", "interrupted"):
            _write(turn, stopped_record(turn, event))  # nothing is decided then, so that no other line tells of it
        case _:
            pass


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow audit``."""
    return [Command(name="audit", help="Show past decisions, with filters.", cli=_group)]


def _record_initial_mode(turn: Turn) -> None:
    """Record a session that begins in ``full_access``; it has no line yet."""
    if turn.mode == "full_access" and not file_of(turn.home, turn.session).exists():
        _write(turn, mode_record(turn, None, turn.mode, "start"))


def _record_late_refusal(event: Event, turn: Turn) -> None:
    known = last_of_call(file_of(turn.home, turn.session), str(event.data.get("call_id", "")))
    if known is not None and known.get("decision") == "allow":
        _write(turn, refusal_record(known, event))


def _write(turn: Turn, record: dict[str, Any]) -> str | None:
    """Append to the session's file and its parent's; return what went wrong, having told people once a turn."""
    line = encode(record)
    try:
        for session in (turn.session, turn.parent):
            if session:
                append(file_of(turn.home, session), line)
    except OSError as error:
        problem = f"{error.filename}: {error.strerror} (errno {error.errno})"
        if turn.state.get("told") != problem:
            turn.state["told"] = problem
            turn.emit("unwritable", path=str(error.filename), reason=error.strerror, errno=error.errno)
            turn.log.warning("the audit log cannot be written: %s", problem)
        return problem
    return None


def _group() -> Any:
    from .cli import audit

    return audit

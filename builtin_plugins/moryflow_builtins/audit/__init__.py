"""Record every decision about a call before its body runs, also those that allow it.

Each record is a JSON line in a file per session, which outlives the session. The eight fields that all records have in common
come first. A call that cannot be recorded gets no more than the default
rules allow: in ``full_access``, and under the user's own rules, it is asked about instead.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import Ask, Command, Event, Rule, Ruling, ToolCall, Turn, Verdict, hookimpl, redact

name = "audit"
services = ("emit",)
gate = True


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> Verdict | None:
    """Record this decision; if it cannot be written, ask, unless the default rules alone allow the call."""
    problem = _write(turn, decision_record(call, ruling, turn))
    if problem is None or ruling.decision != "allow" or ruling.by == "user":
        return None
    rule = deciding_rule(ruling)
    if ruling.mode != "full_access" and rule is not None and rule.source == "default":
        return None
    return Ask(reason=f"this call cannot be recorded: {problem}", cause="policy", bypass="never")


@hookimpl(events=("session.mode", "turn.start", "tool.result", "permission.replied", "permission.rule"))
def event(event: Event, turn: Turn | None) -> None:
    """Record modes, changes of rules, calls that were refused after their record said allow, and unanswered questions."""
    if turn is None:
        return
    match event.type:
        case "session.mode":
            data = event.data
            _write(turn, mode_record(turn, data.get("from"), str(data.get("to", "")), str(data.get("by", ""))))
        case "turn.start":
            if turn.mode == "full_access" and not file_of(turn.home, turn.session).exists():  # the session began in this mode
                _write(turn, mode_record(turn, None, turn.mode, "start"))
        case "tool.result" if event.data.get("status") == "denied":
            known = last_of_call(file_of(turn.home, turn.session), str(event.data.get("call_id", "")))
            if known is not None and known.get("decision") == "allow":
                _write(turn, refusal_record(known, event))
        case "permission.replied" if event.data.get("by") in ("cancel", "interrupted"):
            _write(turn, stopped_record(turn, event))  # there is no decision, and so no other record of it
        case "permission.rule":
            _write(turn, rule_record(turn, event))
        case _:
            pass


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow audit``."""
    return [Command(name="audit", help="Show past decisions, with filters.", cli=_group)]


def _write(turn: Turn, record: dict[str, Any]) -> str | None:
    """Append a record to the files of the session and its parent; return the problem, if any, after a warning once a turn."""
    line = encode(record)
    try:
        for session in (turn.session or NO_SESSION, turn.parent):
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


# ---------------------------------------------------------------- The file of a session


FOLDER = Path("logs") / "agent-audit"
# Names the file of what happens outside of a session, such as a rule that is added on the command line.
NO_SESSION = "no-session"
# The beginning of every line.
START = b'{"eventId":'
# How much of the end of a file is searched for a call that was refused after its record.
RECENT_BYTES = 1 << 18
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@lru_cache(maxsize=64)
def file_of(home: Path, session: str) -> Path:
    """Return the file of a session. Its name has the id in safe characters, and a hash so that different ids differ."""
    return home / FOLDER / f"{harmless(session)}-{sha256(session.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}.jsonl"


def harmless(session: str) -> str:
    """Return a session's id in the form for file names."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", session)[:64]


def append(file: Path, line: bytes) -> None:
    """Append a complete line; a new file is readable only by its owner.

    :raises OSError: the line cannot be written, or only in part; the error names the file.
    """
    try:
        _append(file, line)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error


def _append(file: Path, line: bytes) -> None:
    try:
        descriptor = os.open(file, _APPEND, 0o600)
    except FileNotFoundError:
        for folder in (file.parent.parent, file.parent):  # each of them closed, whatever the umask is
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, _APPEND, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, "only a part of the line could be written")
    finally:
        os.close(descriptor)


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; if a full disk cut the line off, the record that was later appended to it."""
    for text in (line, line[max(line.rfind(START), 0) :]):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None


def last_of_call(file: Path, call: str) -> dict[str, Any] | None:
    """Return the last record about a call that is near the end of the file."""
    needle = b'"callId":' + json.dumps(call).encode()
    try:
        with file.open("rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - RECENT_BYTES))
            lines = source.read().split(b"\n")
    except OSError:
        return None
    return next((parse(line) for line in reversed(lines) if needle in line), None)


# ---------------------------------------------------------------- Finding records


log = logging.getLogger(__name__)
# How far lines of a file may be out of order, because a clock was set or several processes wrote at the same time.
SLACK = timedelta(hours=1)


class Wanted(NamedTuple):
    """A filter for records: only refused calls (`denied`), only those at or after `since`, at most `limit` of the newest."""

    denied: bool = False
    since: datetime | None = None
    limit: int | None = None


def files(home: Path, session: str | None = None) -> list[Path]:
    """Return the audit files in `home`, the last written first; with `session`, an id or its beginning, only those."""
    folder = home / FOLDER
    if session is not None and file_of(home, session).is_file():
        return [file_of(home, session)]
    pattern = "*.jsonl" if session is None else f"{harmless(session)}*.jsonl"
    return sorted(folder.glob(pattern), key=_modified_at, reverse=True)


def select(found: list[Path], wanted: Wanted) -> list[dict[str, Any]]:
    """Return the wanted records in the files `found`, oldest first; a record that is in two files counts once.

    :param found: the files, the last written first; the others are read only while they may have newer records.
    """
    since, records = _iso(wanted.since) if wanted.since else "", dict[str, dict[str, Any]]()
    for file in found:
        changed = _iso(datetime.fromtimestamp(_modified_at(file), UTC) + SLACK)
        newest = sorted((str(record.get("timestamp", "")) for record in records.values()), reverse=True)
        if changed < since or (wanted.limit is not None and len(newest) >= wanted.limit and changed < newest[wanted.limit - 1]):
            break
        try:
            with file.open("rb") as lines:
                for record in filter(None, map(parse, lines)):
                    denied = record.get("decision") in ("deny", "stop")
                    if str(record.get("timestamp", "")) >= since and (denied or not wanted.denied):
                        records[str(record.get("eventId", ""))] = record
        except OSError as error:
            log.warning("%s cannot be read: %s", file, error.strerror)
    ordered = sorted(records.items(), key=lambda item: (str(item[1].get("timestamp", "")), item[0]))
    return [record for _, record in ordered[-wanted.limit if wanted.limit else 0 :]]


def _modified_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---------------------------------------------------------------- Making records


HASH_CHARACTERS = 16
REASON_CHARACTERS = 500


def decision_record(call: ToolCall, ruling: Ruling, turn: Turn) -> dict[str, Any]:
    rule = deciding_rule(ruling)
    targets = [target.text for target in call.targets]
    notes = {f"{plugin}: {verdict.reason}" for plugin, verdict in ruling.verdicts if verdict.reason not in ("", ruling.reason)}
    return {
        **_head(turn.session, ruling.mode, ruling.decision, call.domain, targets, rule.pattern if rule else None),
        "type": "decision",
        "tool": call.tool,
        "callId": call.id,
        "argsHash": call.hash,
        **_folder(call),
        "targetHashes": [sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARACTERS] for text in targets],
        "ruleSource": rule.source if rule else None,
        "ruleFile": rule.file if rule else None,
        "ruleLine": rule.line if rule else None,
        "cause": ruling.cause,
        "reason": _short(ruling.reason),
        "notes": sorted(map(_short, notes)),
        "by": ruling.by,
        "reply": ruling.reply or None,
        "latencyUs": ruling.gate_us,
        **_origin(turn),
    }


def _folder(call: ToolCall) -> dict[str, str]:
    folder = next((target.folder for target in call.targets if target.folder is not None), None)
    return {} if folder is None else {"folder": redact(folder.text)}


def deciding_rule(ruling: Ruling) -> Rule | None:
    """Return the rule behind `ruling`: its own, else that of a verdict with the same decision, else of a lifted verdict."""
    named = [verdict for _, verdict in ruling.verdicts if verdict.rule is not None]
    agreeing = [verdict for verdict in named if verdict.decision == ruling.decision]
    lifted = named if ruling.decision == "allow" else []
    return ruling.rule or next((verdict.rule for verdict in (*agreeing, *lifted)), None)


def refusal_record(allowed: Mapping[str, Any], event: Event) -> dict[str, Any]:
    """Return the record of a call that was refused after the record `allowed` was written."""
    cause, reason = event.data.get("code"), _short(str(event.data.get("output", "")))
    later = {"eventId": _new_id(), "decision": "deny", "timestamp": _now()}
    return {**allowed, **later, "cause": cause, "reason": reason, "by": "tool_decided"}


def stopped_record(turn: Turn, event: Event) -> dict[str, Any]:
    """Return the record of a question that was never answered, because its turn was stopped or broke off."""
    data = event.data
    why = {"cancel": "the turn was stopped at the question"}.get(str(data.get("by")), "the turn broke off at the question")
    return {
        **_head(turn.session, turn.mode, "stop", data.get("domain"), list(map(str, data.get("targets") or ())), None),
        "type": "decision",
        "tool": data.get("tool"),
        "callId": data.get("call_id"),
        "cause": "user",
        "reason": why,
        "by": data.get("by"),
        "approval": data.get("approval_id"),
        **_origin(turn),
    }


def mode_record(turn: Turn, before: str | None, after: str, by: str) -> dict[str, Any]:
    """Return the record of a change of the mode; a change to ``full_access`` is recorded as confirmed."""
    return {
        **_head(turn.session, after, "allow", None, [], None),
        "type": "mode",
        "from": before,
        "to": after,
        "confirmed": after == "full_access",
        "by": by,
        **_origin(turn),
    }


def rule_record(turn: Turn, event: Event) -> dict[str, Any]:
    """Return the record of a rule that was stored or removed, for the user or for the session alone."""
    data = event.data
    folder = {"folder": redact(str(data["folder"]))} if data.get("folder") else {}
    return {
        **_head(turn.session, turn.mode, str(data["decision"]), str(data["domain"]), [], str(data["pattern"])),
        "type": "rule",
        "change": data["change"],
        "scope": data["scope"],
        **folder,
        **_origin(turn),
    }


def encode(record: Mapping[str, Any]) -> bytes:
    """Return `record` as one line of UTF-8."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _head(
    session: str, mode: str, decision: str, domain: str | None, targets: list[str], pattern: str | None
) -> dict[str, Any]:
    return {
        "eventId": _new_id(),
        "sessionId": session,
        "mode": mode,
        "decision": decision,
        "permissionDomain": domain,
        "targets": [redact(target) for target in targets],
        "rulePattern": None if pattern is None else redact(pattern),
        "timestamp": _now(),
    }


def _origin(turn: Turn) -> dict[str, Any]:
    return {"agent": turn.agent.id, "parent": turn.parent, "turn": turn.id}


def _short(text: str) -> str:
    return redact(text[: 2 * REASON_CHARACTERS])[:REASON_CHARACTERS]


def _new_id() -> str:
    return secrets.token_hex(16)


def _now() -> str:
    return _iso(datetime.now(UTC))

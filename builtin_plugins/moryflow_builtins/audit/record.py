"""One line of the audit log: the eight fields that every line has come first, others after them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from moryflow_sdk import Event, Rule, Ruling, ToolCall, Turn, redact

HASH_CHARACTERS = 16
REASON_CHARACTERS = 500


def decision_record(call: ToolCall, ruling: Ruling, turn: Turn) -> dict[str, Any]:
    """Return the record of a decision about a tool call."""
    rule = deciding_rule(ruling)
    targets = [target.text for target in call.targets]
    notes = {f"{plugin}: {said.reason}" for plugin, said in ruling.verdicts if said.reason not in ("", ruling.reason)}
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
        "latencyUs": ruling.gate_us,
        "agent": turn.agent.id,
        "parent": turn.parent,
        "turn": turn.id,
    }


def _folder(call: ToolCall) -> dict[str, str]:
    """Return where the commands of `call` run; nothing for a call that runs none."""
    folder = next((target.folder for target in call.targets if target.folder is not None), None)
    return {} if folder is None else {"folder": redact(folder.text)}


def deciding_rule(ruling: Ruling) -> Rule | None:
    """Return the rule behind `ruling`: its own, or that of the gate that agreed with it, or that of one that was lifted."""
    named = [said for _, said in ruling.verdicts if said.rule is not None]
    agreeing = [said for said in named if said.decision == ruling.decision]
    lifted = named if ruling.decision == "allow" else []
    return ruling.rule or next((said.rule for said in (*agreeing, *lifted)), None)


def refusal_record(allowed: Mapping[str, Any], event: Event) -> dict[str, Any]:
    """Return the record of a call that was refused after the line `allowed` was written."""
    cause, reason = event.data.get("code"), _short(str(event.data.get("output", "")))
    later = {"eventId": _new_id(), "decision": "deny", "timestamp": _now()}
    return {**allowed, **later, "cause": cause, "reason": reason, "by": "tool_decided"}


def stopped_record(turn: Turn, event: Event) -> dict[str, Any]:
    """Return the record of a question that nobody answered: its turn was stopped at it, or broke off."""
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
        "agent": turn.agent.id,
        "parent": turn.parent,
        "turn": turn.id,
    }


def mode_record(turn: Turn, before: str | None, after: str, by: str) -> dict[str, Any]:
    """Return the record of a mode; entering ``full_access`` is recorded as confirmed."""
    return {
        **_head(turn.session, after, "allow", None, [], None),
        "type": "mode",
        "from": before,
        "to": after,
        "confirmed": after == "full_access",
        "by": by,
        "agent": turn.agent.id,
        "parent": turn.parent,
        "turn": turn.id,
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


def _short(text: str) -> str:
    return redact(text[: 2 * REASON_CHARACTERS])[:REASON_CHARACTERS]


def _new_id() -> str:
    return secrets.token_hex(16)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

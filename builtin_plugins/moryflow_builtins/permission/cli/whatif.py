"""``permission whatif``: the calls of past sessions, judged by other rules; what flips."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import click
from moryflow_sdk import CommandContext, Rule, StoredCall, Turn

from .call_judge import CallJudge
from .rule_text import given_rules, table, visible

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Flip:
    """A stored call that other rules judge otherwise than those of now."""

    call: StoredCall
    before: str
    after: str
    reason: str

    def document(self) -> dict[str, Any]:
        """Return the JSON of it; `then` is what happened when it was made."""
        call = self.call
        made = {"session": call.session, "call": call.id, "created": call.created, "tool": call.tool, "args": dict(call.args)}
        return {**made, "then": call.decision, "before": self.before, "after": self.after, "reason": self.reason}


@dataclass
class WhatIf:
    """What came out: every flip, and how many calls there were."""

    flips: list[Flip] = field(default_factory=list[Flip])
    judged: int = 0
    unknown: Counter[str] = field(default_factory=Counter[str])

    @property
    def kinds(self) -> Counter[str]:
        """How often each change comes."""
        return Counter(f"{flip.before} -> {flip.after}" for flip in self.flips)

    def add(self, judge: CallJudge, calls: Sequence[StoredCall], rules: Sequence[Rule]) -> None:
        """Judge `calls` by the rules that hold there and by `rules`, and note what differs."""
        tools = judge.context.tools
        now, other = judge.policy(judge.turn.rules.all()), judge.policy(rules)
        for call in calls:
            tool = tools.get(call.tool)
            if tool is None:
                self.unknown[call.tool] += 1
                continue
            self.judged += 1
            before, after = (judge.verdict(policy, tool, call.args) for policy in (now, other))
            if before.decision != after.decision:
                self.flips.append(Flip(call, before.decision, after.decision, after.reason or before.reason))

    def document(self) -> dict[str, Any]:
        """Return the JSON of it."""
        counts = {"judged": self.judged, "flips": len(self.flips), "kinds": dict(self.kinds), "unknown": dict(self.unknown)}
        return {"v": 1, "type": "whatif", "flips": [flip.document() for flip in self.flips], "summary": counts}

    def lines(self) -> list[str]:
        """Return it for people."""
        rows = [
            (
                flip.call.created[:19].replace("T", " "),
                flip.call.session[:12],
                f"{flip.before} -> {flip.after}",
                flip.call.tool,
                visible(json.dumps(dict(flip.call.args), ensure_ascii=False, default=str), 80),
            )
            for flip in self.flips
        ]
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        lines = [*table(rows), f"{self.judged} calls judged, {len(self.flips)} flip{f': {kinds}' if kinds else ''}"]
        if self.unknown:
            lines.append(f"{self.unknown.total()} calls not judged, their tools are gone: {', '.join(sorted(self.unknown))}")
        return lines


@click.command()
@click.argument("rules_", metavar="RULES")
@click.argument("sessions", metavar="[SESSION]...", nargs=-1)
@click.option("--since", metavar="T", help="Only calls since then: 30m, 2h, 7d, or a date or time (ISO 8601).")
@click.pass_obj
def command(context: CommandContext, rules_: str, sessions: tuple[str, ...], since: str | None) -> None:
    """Judge stored calls by RULES instead of yours, and show which decisions would differ.

    RULES is a file with a list of rules or a configuration (JSON, comments allowed), or such a list itself. Without
    SESSION every stored session counts. Files are judged as they are now, and modes are left out of it.
    """
    rules = given_rules(rules_)
    start = _moment(since) if since else None

    async def work(turn: Turn) -> WhatIf:
        found = WhatIf()
        for session, calls in await _calls(context, turn, sessions, start):
            async with context.turn(session=session) as its:
                found.add(CallJudge(its, context), calls, rules)
        found.flips.sort(key=lambda flip: flip.call.created)
        return found

    found: WhatIf = context.run(work)
    context.print(found.document(), text="\n".join(found.lines()))


async def _calls(
    context: CommandContext, turn: Turn, sessions: Sequence[str], start: str | None
) -> list[tuple[str, list[StoredCall]]]:
    """Return the stored calls by session; a session may be named by the beginning of its id."""
    if not sessions:
        every = sorted(await turn.history.calls(since=start), key=lambda call: call.session)
        return [(session, list(calls)) for session, calls in groupby(every, key=lambda call: call.session)]
    found: list[tuple[str, list[StoredCall]]] = []
    for name in dict.fromkeys(sessions):
        async with context.turn(session=name) as its:
            found.append((its.session, list(await turn.history.calls(session=its.session, since=start))))
    return found


def _moment(text: str) -> str:
    """Return a time as it is stored: ``30m``, ``2h``, ``7d`` ago, or a date or time in ISO 8601."""
    ago = re.fullmatch(r"(\d{1,6})\s*([smhdw])", text.strip())
    try:
        when = (
            datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            if ago
            else datetime.fromisoformat(text.strip()).astimezone(UTC)
        )
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is no time; try 30m, 2h, 7d or 2026-01-31", param_hint="--since") from error
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")

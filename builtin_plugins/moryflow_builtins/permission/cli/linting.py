"""``permission lint``: what is wrong, useless or dangerous in the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from moryflow_sdk import CommandContext, Turn

from moryflow_builtins.permission.judged import place_of, rule_json

from .remarks import Remark, few, remarks
from .text import visible


@click.command()
@click.option("--strict", is_flag=True, help="Let warnings fail the check too.")
@click.pass_obj
def command(context: CommandContext, strict: bool) -> None:
    """Report rules that are invalid, can never match, never decide, or allow too much.

    Exit code 3 when a rule is invalid; with --strict when there is any remark.
    """

    async def work(turn: Turn) -> tuple[int, list[Remark]]:
        rules = [rule for rule in turn.rules.all() if rule.source != "session" and not rule.problem]
        unread = [Remark("invalid", problem) for problem in turn.rules.problems()]
        return len(rules), [*unread, *remarks(rules, turn.home)]

    count, found = context.run(work)
    errors = sum(remark.severity == "error" for remark in found)
    summary = {"type": "summary", "rules": count, "errors": errors, "warnings": len(found) - errors}
    document = {"v": 1, "type": "lint", "remarks": [_json(remark) for remark in found], "summary": summary}
    context.print(document, text="\n".join(_lines(found, summary)))
    if errors or (strict and found):
        raise SystemExit(3)


def _json(remark: Remark) -> dict[str, Any]:
    return {
        "severity": remark.severity,
        "kind": remark.kind,
        "message": remark.message,
        "rule": rule_json(remark.rule),
    }


def _lines(found: Sequence[Remark], summary: dict[str, Any]) -> list[str]:
    lines = [_line(remark) for remark in few(found)]
    return [*lines, f"{summary['rules']} rules, {summary['errors']} errors, {summary['warnings']} warnings"]


def _line(remark: Remark) -> str:
    place = f"{place_of(remark.rule)}: " if remark.rule else ""
    return visible(f"{remark.severity:<7}  {remark.kind:<9}  {place}{remark.sentence}")

"""``moryflow trace``: the hook ledger of a session."""

from __future__ import annotations

import json
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError
from moryflow_sdk.support.secrets import hidden, hide

from moryflow.cli.open_host import with_host
from moryflow.cli.options import Flags, document_options, find
from moryflow.cli.terminal import columns, first_line, plain, show

if TYPE_CHECKING:
    from moryflow.authoring.trace import Bill, Trace
    from moryflow.runtime.host import Host


@click.command("trace")
@click.argument("session", required=False)
@click.option("--turn", metavar="N", help="Only this turn (a number from 1, or its id).")
@click.option("--hooks", "everything", is_flag=True, help="Every hook call, including those that changed nothing.")
@click.option("--plugin", metavar="NAME", help="Only this plugin.")
@document_options
def command(flags: Flags, session: str | None, turn: str | None, everything: bool, plugin: str | None) -> None:
    """Show what each plugin did in a stored SESSION (default: the last one of the folder) and in its sub-agents.

    Shows which implementation changed what, how long it took and which file it is in; then, for each plugin, time and tokens:
    what its tools and its part of the prompt add to each request, and what it added to results. Tokens are estimates.
    """

    async def work(host: Host) -> Trace:
        from moryflow.authoring.trace import traced

        row = await find(host.store, session, flags)
        found = await traced(host, row.id, turn or "", plugin)
        _check_known(host, found, plugin)
        return found

    found = with_host(flags, work, quiet=True)
    show(flags, hidden(found.as_json()), trace_text(found, everything=everything))


def trace_text(found: Trace, *, everything: bool = False) -> str:
    """Return a trace as text; with ``MORYFLOW_TRACE``, a run prints that of its turn at the end."""
    return hide(plain(_text(found, everything)))


def _check_known(host: Host, found: Trace, plugin: str | None) -> None:
    if plugin is None or plugin in host.plugin_set.plugins or any(bill.calls for bill in found.plugins):
        return
    from moryflow_sdk.support.texts import did_you_mean

    hint = did_you_mean(plugin, host.plugin_set.plugins)
    raise ConfigError(f"no plugin {plugin!r} was called in this session{hint}", next_step=f"moryflow trace {found.session}")


def _text(found: Trace, everything: bool) -> str:
    parts = [_turn(turn, everything) for turn in (*found.turns, *found.compactions)]
    if not found.turns:
        parts.append("the session has no turns yet")
    if found.plugins:
        parts.append(_bills(found.plugins))
    return "\n\n".join(parts)


def _turn(turn: dict[str, Any], everything: bool) -> str:
    steps = f"{turn['steps']} step{'s' if turn['steps'] != 1 else ''}"
    about = first_line(turn["prompt"] or turn["purpose"], 60)
    number = f"turn {turn['turn']}" if "turn" in turn else "compaction"
    whose = f"{turn['agent']} {turn['session']}, " if "session" in turn else ""
    head = f"{whose}{number}  {about!r}  {turn['end_reason'] or 'running'}, {steps}"
    rows = [row for row in turn["hooks"] if everything or row["outcome"] != "ok" or _decision(row) not in ("", "allow")]
    table = columns(
        (
            f"  {row['step']}",
            row["hook"],
            row.get("tool", ""),
            row["plugin"],
            _outcome(row),
            _ms(row["us"]),
            _change(row),
            _file(row),
        )
        for row in rows
    )
    quiet = sum(row["count"] for row in turn["hooks"]) - sum(row["count"] for row in rows)
    note = f"  {quiet} more hook calls changed nothing (--hooks shows them)" if quiet and not everything else ""
    return "\n".join(part for part in (f"{head}, {_ms(turn['us'])} in hooks", table, note) if part)


def _decision(row: dict[str, Any]) -> str:
    """Return the verdict of a gate; empty for other hooks."""
    return row["delta"].get("decision") or "" if isinstance(row.get("delta"), dict) else ""


def _outcome(row: dict[str, Any]) -> str:
    times = f" ×{row['count']}" if row["count"] > 1 else ""
    return f"{_decision(row) or row['outcome']}{times}"


def _ms(us: int) -> str:
    return f"{us / 1000:.2f} ms"


def _file(row: dict[str, Any]) -> str:
    if "file" not in row:
        return "(not loaded now)"
    since = " (changed since)" if row.get("code_changed_since") else ""
    return f"{row['file']}{':' + str(row['line']) if row.get('line') else ''}{since}"


def _change(row: dict[str, Any]) -> str:
    """Describe in a few words what the call changed."""
    delta = row.get("delta")
    if not isinstance(delta, dict):
        return ""
    if "decision" in delta or "error" in delta:
        return first_line(str(delta.get("reason") or delta.get("error") or ""), 60)
    if "inserted" in delta:
        return f"messages[{delta['at']}]: -{delta['removed']} +{len(delta['inserted'])}"
    if "was" not in delta and "blocks" in delta:
        return ", ".join(f"+{block['id']} ({block['chars']} characters)" for block in delta["blocks"])
    was = delta.get("was") or {}
    return "; ".join(_field(name, was.get(name), value) for name, value in delta.items() if name != "was")


def _field(name: str, before: object, after: object) -> str:
    if name == "blocks" and isinstance(after, Sized):
        return f"blocks {len(before) if isinstance(before, Sized) else 0} → {len(after)}"
    return f"{name} {_short(before)} → {_short(after)}"


def _short(value: object) -> str:
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("withheld", "too_large", "stored"):
        return f"({next(iter(value)).replace('_', ' ')})"
    return first_line(json.dumps(value, ensure_ascii=False, default=str), 32)


def _bills(bills: list[Bill]) -> str:
    head = ("plugin", "calls", "changed", "failed", "time", "tokens/request", "tokens in all", "file")
    rows = [
        (
            bill.plugin,
            bill.calls,
            bill.changed,
            bill.failed,
            _ms(bill.us),
            bill.per_request,
            bill.tokens,
            bill.file or bill.status,
        )
        for bill in bills
    ]
    return columns([head, *rows])

"""``moryflow trace``: the hook ledger of a session; and ``moryflow trace export``: its spans for OpenTelemetry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sized
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from moryflow_sdk import ConfigError
from moryflow_sdk.support.secrets import hidden, hide
from moryflow_sdk.support.texts import stdout_width

from moryflow.cli.open_host import with_host
from moryflow.cli.options import Flags, NounGroup, document_options, find
from moryflow.cli.terminal import columns, first_line, plain, say, show
from moryflow.cli.terminal.streams import stdout

if TYPE_CHECKING:
    from moryflow.authoring.trace import Bill, Trace
    from moryflow.runtime.host import Host
    from moryflow.telemetry.spans import TraceSpan


class TraceGroup(NounGroup):
    """A noun that is a command itself: ``moryflow trace SESSION`` shows a session, ``moryflow trace export`` is a verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if next((word for word in args if not word.startswith("-")), "") in self.commands:
            return super().parse_args(ctx, args)
        ctx.allow_interspersed_args, ctx.allow_extra_args = True, False
        return click.Command.parse_args(self, ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Leave out SESSION where a verb follows, which would be taken for it."""
        params = super().get_params(ctx)
        if ctx.command is self and ctx.allow_interspersed_args:
            return params
        return [one for one in params if not isinstance(one, click.Argument)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[SESSION]"]


@click.group("trace", cls=TraceGroup, invoke_without_command=True)
@click.argument("session", required=False)
@click.option("--turn", metavar="N", help="Only this turn (a number from 1, or its id).")
@click.option("--hooks", "everything", is_flag=True, help="Every hook call, including those that changed nothing.")
@click.option("--plugin", metavar="NAME", help="Only this plugin.")
@document_options
def command(flags: Flags, turn: str | None, everything: bool, plugin: str | None, session: str | None = None) -> None:
    """Show what each plugin did in a stored SESSION (default: the last one of the folder) and in its sub-agents.

    Shows which implementation changed what, how long it took and which file it is in; then the time of each plugin. What it
    adds to each request, in tokens, is in `moryflow session context`.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return

    async def work(host: Host) -> Trace:
        from moryflow.authoring.trace import traced

        row = await find(host.store, session, flags)
        found = await traced(host, row.id, turn or "", plugin)
        _check_known(host, found, plugin)
        return found

    found = with_host(flags, work, quiet=True)
    show(flags, hidden(found.as_json()), trace_text(found, everything=everything))


# The most spans in one request, and in one line of a file.
BATCH = 512


@command.command("export")
@click.argument("session", required=False)
@click.option("--otlp", "to", metavar="URL|FILE", help="A collector (OTLP/HTTP), or a file; - is standard output.")
@click.option("--content", is_flag=True, help="Prompts, answers, arguments and results of calls too.")
@click.option("--hooks", "everything", is_flag=True, help="Every hook call, including those that changed nothing.")
@document_options
def export(flags: Flags, session: str | None, to: str | None, content: bool, everything: bool) -> None:
    """Export the spans of a stored SESSION (default: the last one of the folder) and of its sub-agents for OpenTelemetry.

    Without --otlp they go to the collector of OTEL_EXPORTER_OTLP_ENDPOINT, or of the setting telemetry.otlp. A file gets a
    line of OTLP JSON for each 512 spans. The ids are the same each time, so a second export changes nothing.
    """

    async def work(host: Host) -> tuple[str, int]:
        from moryflow.telemetry.collector import collector_of, document, trace_parent
        from moryflow.telemetry.spans import SpanOptions, family_spans

        from .session import write_whole

        row = await find(host.store, session, flags)
        parts = _batches(family_spans(host.store, row.id, SpanOptions(content, everything, trace_parent(host.environ))))
        url = to if to is not None and to.startswith(("http://", "https://")) else None
        if to is not None and url is None:
            with nullcontext(stdout()) if to == "-" else write_whole(Path(to)) as out:
                return to, sum([_line_of(document(part, host.environ), out, len(part)) async for part in parts])
        collector = collector_of(host.environ, host.config.get("telemetry.otlp"), url)
        if collector is None:
            raise ConfigError("there is no collector", next_step="--otlp http://localhost:4318, or the name of a file")
        sent = 0
        async for part in parts:
            await collector.send(part, host.environ)
            sent += len(part)
        return collector.place, sent

    place, count = with_host(flags, work, quiet=True)
    if not flags.quiet:
        say(f"moryflow: {count} spans written to {plain(place)}")
    if flags.as_json and place != "-":
        show(flags, {"spans": count, "to": place}, "")


def _line_of(document: object, out: TextIO, spans: int) -> int:
    out.write(json.dumps(document, separators=(",", ":")) + "\n")
    return spans


async def _batches(parts: AsyncIterator[list[TraceSpan]]) -> AsyncIterator[list[TraceSpan]]:
    waiting: list[TraceSpan] = []
    async for part in parts:
        waiting += part
        while len(waiting) >= BATCH:
            yield waiting[:BATCH]
            waiting = waiting[BATCH:]
    if waiting:
        yield waiting


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
    width = stdout_width()
    about = first_line(turn["prompt"] or turn["purpose"], max(16, min(60, width - 52)) if width else 60)
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
    head = ("plugin", "calls", "changed", "failed", "time", "file")
    rows = [
        (
            bill.plugin,
            bill.calls,
            bill.changed,
            bill.failed,
            _ms(bill.us),
            bill.file or bill.status,
        )
        for bill in bills
    ]
    return columns([head, *rows])

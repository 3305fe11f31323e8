"""``moryflow plugin``: the group, and the verbs `list` and `info`, which say what is known without loading a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal.text import columns, first_line, plain, show
from moryflow.runtime.documents import plugin_json

from .plugin_bisect import bisect
from .plugin_check import check
from .plugin_context import Desk
from .plugin_install import disable, enable, install, sync, uninstall, update
from .plugin_key import key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moryflow.hooks.plugin_set import LoadRecord
    from moryflow.packages.inventory import HookStats, Row


command = noun("plugin", "Install, list, check and switch plugins; a broken one can always be listed, disabled and removed.")

for verb in (install, uninstall, enable, disable, update, check, sync, bisect, key):
    command.add_command(verb)


@command.command("list")
@document_options
def list_plugins(flags: Flags) -> int:
    """List every plugin that was found and the result of its last load. Loads none."""
    from moryflow.packages.inventory import all_quarantined

    desk = Desk(flags)
    rows, out = desk.rows(), all_quarantined(desk.home)
    table = columns(
        (row.name, row.record.version or "-", row.record.tier, row.record.status, _remark(row, out.get(row.name)))
        for row in rows
    )
    desk.tell_drifts()
    show(desk.flags, [{**plugin_json(row), "quarantined": out.get(row.name, [])} for row in rows], table)
    failed = any(row.record.status == "failed" for row in rows)
    return 6 if failed and (desk.flags.strict or desk.config.get("strict")) else 0


def _remark(row: Row, quarantined: list[str] | None) -> str:
    record = row.record
    if quarantined and record.status == "loaded":
        return f"quarantined: {', '.join(quarantined)}; moryflow plugin enable {record.name}"
    if record.notes and not record.reason:
        return first_line(f"{len(record.notes)} left out: {record.notes[0]}", 200)
    if record.status == "loaded" and not record.error:
        return " ".join([*record.hooks, *(f"+{name}" for name in record.tools)])
    place = f"{record.file}:{record.line}: " if record.file and record.line else f"{record.file}: " if record.file else ""
    if record.error:
        return first_line(f"{place}{record.error}", 200)
    declared = " ".join([*record.hooks, *(f"+{name}" for name in record.tools)])
    return first_line(f"{record.reason} {f'[{declared}]' if declared and record.status == 'pending' else ''}".strip(), 200)


@command.command("info")
@click.argument("name")
@document_options
def info(flags: Flags, name: str) -> None:
    """Show one plugin: hooks, tools and their tokens, services, import time, hook times, errors, quarantine."""
    desk = Desk(flags)
    rows = desk.found(name, desk.rows())
    name = rows[0].name
    figures, quarantined = _ledger(desk, name)
    lock = _lock_entry(desk, name)
    documents: list[dict[str, Any]] = []
    for row in rows:
        extra = {"figures": [vars(item) for item in figures], "quarantined": quarantined, "lock": lock}
        documents.append({**plugin_json(row), "hook_figures": extra.pop("figures"), **extra})
    text = "\n\n".join(columns(_lines(row, figures, quarantined, lock)) for row in rows)
    head = f"{len(rows)} plugins have the name {name!r}; the first one is loaded\n\n" if len(rows) > 1 else ""
    document = documents[0] if len(documents) == 1 else {**documents[0], "same_name": documents[1:]}
    show(flags, document, plain(head + text))


def _lines(row: Row, figures: list[HookStats], quarantined: list[str], lock: dict[str, Any] | None) -> list[tuple[str, Any]]:
    record, card = row.record, row.card
    place = f"{record.file}:{record.line}" if record.line else record.file
    lines: list[tuple[str, Any]] = [
        ("name", record.name),
        ("version", record.version),
        ("tier", record.tier),
        ("status", record.status),
        ("reason", record.reason),
        *_errors(record),
        ("hint", record.hint),
        ("source", record.source),
        ("file", place),
        ("hash", record.hash),
        ("hooks", ", ".join(record.hooks)),
        ("tools", ", ".join(_tool(name, row) for name in record.tools)),
        ("tokens", f"about {sum(row.tokens.values())} in every request" if row.tokens else ""),
        ("services", ", ".join(record.services)),
        ("capabilities", f"{_capabilities(card.capabilities)} (declared, not enforced)" if card and card.capabilities else ""),
        ("judges calls", "yes" if record.gate else ""),
        ("import", f"{record.import_ms:.1f} ms" if row.known else ""),
        ("last loaded", row.known.at if row.known else ""),
        ("agreed to", f"{lock['version'] or lock['name']} from {lock['origin']}, {lock['hash'] or 'editable'}" if lock else ""),
        ("quarantined", f"{', '.join(quarantined)}: moryflow plugin enable {record.name}" if quarantined else ""),
    ]
    lines += [(f"hook {item.hook}", _figures(item)) for item in figures]
    return [(key, value) for key, value in lines if value]


def _errors(record: LoadRecord) -> list[tuple[str, str]]:
    """Return what is wrong, each thing in a line of its own."""
    if record.notes and record.error == "; ".join(record.notes):
        return [("left out", note) for note in record.notes]
    return [("error", f"{record.stage}: {record.error}" if record.stage and record.error else record.error)]


def _tool(name: str, row: Row) -> str:
    return f"{name} ({row.tokens[name]} tokens)" if name in row.tokens else name


def _capabilities(said: Mapping[str, object]) -> str:
    words = {True: "yes", False: "no"}
    return ", ".join(f"{name}: {words[value] if isinstance(value, bool) else value}" for name, value in said.items())


def _figures(item: HookStats) -> str:
    failed = ", ".join(f"{number} {outcome}" for outcome, number in item.failures.items())
    return f"{item.calls} calls, p95 {item.p95_us / 1000:.2f} ms" + (f", {failed}" if failed else "")


def _ledger(desk: Desk, name: str) -> tuple[list[HookStats], list[str]]:
    """Return what the ledger says of a plugin, and the hooks that were quarantined and not brought back."""
    from moryflow.cli.terminal.interrupts import run_on_loop
    from moryflow.packages.inventory import hook_stats_of, quarantined_of
    from moryflow.store import existing_store

    store = existing_store(desk.home)
    if store is None:
        return [], []

    async def read() -> tuple[list[HookStats], list[str]]:
        try:
            return await hook_stats_of(store, name), await quarantined_of(store, desk.home, name)
        finally:
            store.close()

    return run_on_loop(read)


def _lock_entry(desk: Desk, name: str) -> dict[str, Any] | None:
    """Return what the lock has of a plugin."""
    from moryflow.packages.lock import Lockfile, plugin_named

    entry = plugin_named(Lockfile(desk.home).read(), name)
    return entry._asdict() if entry else None

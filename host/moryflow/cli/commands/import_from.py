"""``moryflow import``: take over what Claude Code, OpenCode, Codex or Anyhunt were told, after showing each item."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError

from moryflow.base.events import now
from moryflow.cli.open_host import own_home, with_store
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import columns, plain, say, show

if TYPE_CHECKING:
    from moryflow.imports import ImportPlan, System
    from moryflow.imports.transcripts import Transcript
    from moryflow.store import Store

SYSTEMS = ("claude", "opencode", "codex", "anyhunt")


@click.command("import")
@click.argument("system", type=click.Choice(SYSTEMS))
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--apply", "action", flag_value="apply", help="Write it, below what is there; comments stay.")
@click.option("--check", "action", flag_value="check", help="Judge the calls of your own transcripts by both systems' rules.")
@click.option("--undo", "action", flag_value="undo", help="Take the last import back.")
@document_options
def command(flags: Flags, system: System, path: Path | None, action: str | None) -> int:
    """Take over rules, servers, agents, commands, models and sessions of another system.

    Without an option nothing is written: a table shows each item, what becomes of it, and why not. PATH is a project, or the
    folder of the other system. No secret is copied, no deny of yours is loosened, and what has no meaning here becomes the
    stricter rule.
    """
    from moryflow.config import load_config
    from moryflow.imports import plan_of

    home = own_home()
    if action == "undo":
        return _undo(flags, system, path, home)
    plan = plan_of(system, path)
    if action == "check":
        return _check(flags, plan, home)
    document: dict[str, Any] = {"v": 1, "system": system, "root": str(plan.root), "folder": str(plan.folder or "") or None}
    done: dict[str, int] = {}
    if action == "apply":
        from moryflow.imports.write import apply

        file = load_config(home, inline=flags.config).path
        done = apply(plan, home, file)
        done["sessions"] = _import_sessions(plan, home, file)
    document |= {"items": [item._asdict() for item in plan.items], "counts": dict(plan.counts), "applied": done or None}
    show(flags, document, plain(_table(plan, done)))
    return 0


def _table(plan: ImportPlan, done: Mapping[str, int]) -> str:
    rows = [(item.becomes, item.kind, item.original, item.result or "-", item.why) for item in plan.items]
    counts = ", ".join(f"{count} {becomes}" for becomes, count in plan.counts.items())
    if done:
        last = f"written: {', '.join(f'{count} {what}' for what, count in done.items())}; moryflow import {plan.system} --undo"
    else:
        last = f"nothing was written; moryflow import {plan.system} --check, then --apply"
    return f"{columns(rows)}\n\n{counts}\n{last}"


def _import_sessions(plan: ImportPlan, home: Path, file: Path) -> int:
    """Import the transcripts as sessions with ids of their own; one that is there already is passed over."""
    if not plan.transcripts:
        return 0
    from moryflow.imports.transcripts import session_lines, transcripts
    from moryflow.imports.write import note_sessions
    from moryflow.store import StoreError

    added: list[tuple[str, int]] = []

    async def work(store: Store) -> None:
        for found in transcripts(plan):
            name = f"{plan.system}-{sha256(found.id.encode()).hexdigest()[:12]}"
            try:
                await store.session(name)
                continue
            except StoreError:
                pass
            lines = session_lines(found, name, _vault_of(found), now())
            try:
                await store.import_(lines, None)
            except StoreError as error:
                plan.note("sessions", found.id, "error", why=error.message, where=found.file)
                continue
            added.append((name, len(lines) - 2))

    with_store(work)
    if added:
        note_sessions(plan, home, file, added)
    return len(added)


def _vault_of(found: Transcript) -> str:
    return found.folder if found.folder.startswith("/") else str(Path.home())


def _undo(flags: Flags, system: System, path: Path | None, home: Path) -> int:
    from moryflow.imports.write import last_of, take_back
    from moryflow.store import StoreError

    record, done = last_of(system, home, path)
    count = take_back(done)
    kept: list[str] = []

    async def work(store: Store) -> int:
        gone = 0
        for name, nodes in done["sessions"]:
            try:
                if len(await store.nodes(name)) > nodes:
                    kept.append(name)
                    continue
                await store.delete(name)
                gone += 1
            except StoreError:
                continue
        return gone

    gone = with_store(work) if done["sessions"] else 0
    record.unlink()
    text = f"taken back: {count} rules and settings, {gone} sessions"
    text += f"; kept, because you went on with them: {', '.join(kept)}" if kept else ""
    show(flags, {"v": 1, "system": system, "removed": count, "sessions": gone, "kept": kept}, text)
    return 0


def _check(flags: Flags, plan: ImportPlan, home: Path) -> int:
    """Compare both systems on every call of the transcripts; exit code 3 if a call would be judged more freely here."""
    from moryflow.config import load_config
    from moryflow.imports.replay import compare
    from moryflow.imports.transcripts import calls, transcripts

    if not plan.transcripts:
        raise ConfigError(
            f"no transcripts of {plan.system} are there", where=str(plan.root), next_step="moryflow import --apply"
        )
    own = load_config(home, inline=flags.config).rules()
    general = [{"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision} for rule in own if not rule.problem]
    whole = [*(rule.entry for rule in plan.first), *general, *(rule.entry for rule in plan.last)]
    rules = {"": whole} if plan.folder is None else {"": general, str(plan.folder): whole}
    past = [call for transcript in transcripts(plan) for call in calls(transcript)]
    report = compare(plan, past, rules, _judge)
    show(flags, {"v": 1, "system": plan.system, **report}, plain(_report(report)))
    return 3 if report["looser"] else 0


def _judge(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Judge calls with ``permission test``, as the gate would."""
    if not lines:
        return []
    say(f"moryflow: judging {len(lines)} calls")
    text = "\n".join(json.dumps(line) for line in lines)
    command = [sys.executable, "-m", "moryflow", "permission", "test", "-", "--json", "-q"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {result["id"]: result for result in results if "id" in result}
    return [found.get(line["id"], {"decision": None}) for line in lines]


def _report(report: Mapping[str, Any]) -> str:
    head = f"of {report['calls']} calls {report['judged']} can be judged: {report['same']} the same"
    parts = [f"{report[key]} {key.replace('_', ' ')}" for key in ("now_asked", "now_denied", "now_allowed") if report[key]]
    lines = [", ".join([head, *parts])]
    for kind, examples in report["examples"].items():
        lines += [f"{kind}:", *(f"  {example}" for example in examples)]
    if passed := report["not_judged"]:
        lines.append("not judged: " + ", ".join(f"{name} ({count})" for name, count in list(passed.items())[:8]))
    return "\n".join(lines)

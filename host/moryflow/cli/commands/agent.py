"""``moryflow agent``: list, show and check agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.findings import by_kind, notes_on, rule_remarks, say_about, say_about_agent
from moryflow.cli.open_host import from_host
from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal import columns, first_line, plain, show
from moryflow.runtime.documents import agents_json

if TYPE_CHECKING:
    from moryflow.runtime.host import Host


command = noun("agent", "List and show agents.")


@command.command("list")
@click.option("--all", "everyone", is_flag=True, help="Include hidden ones.")
@document_options
def list_agents(flags: Flags, everyone: bool) -> None:
    """List the agents; the one that answers by default is marked with *."""

    def work(host: Host) -> list[dict[str, Any]]:
        say_about(host, notes_on(host, "agents"), quiet=flags.quiet)
        return agents_json(host, everyone=everyone)

    rows = from_host(flags, work)
    table = columns(
        ("*" if row["default"] else " ", row["id"], row["mode"], first_line(row["description"], 90)) for row in rows
    )
    show(flags, rows, table)


@command.command("show")
@click.argument("name")
@document_options
def show_agent(flags: Flags, name: str) -> None:
    """Show an agent: its prompt, model, tools and rules.

    The agent that writes summaries, default_compact_agent, is not listed and cannot be chosen or changed, but is shown here.
    """

    def work(host: Host) -> dict[str, Any]:
        from moryflow.compaction.summarizer import COMPACT_AGENT, COMPACT_AGENT_ID
        from moryflow.runtime.selection import known_agent

        found = COMPACT_AGENT if name == COMPACT_AGENT_ID else known_agent(host.agents, name, host.home)
        say_about_agent(host, found.source, quiet=flags.quiet)
        return found.model_dump(mode="json")

    agent = from_host(flags, work)
    keys = ("id", "name", "description", "mode", "model", "tools", "deny_tools", "max_steps", "source")
    shown = [(key, agent[key]) for key in keys if agent[key]]
    shown += [(key, value) for key, value in agent["settings"].items() if value is not None]
    rules = columns((rule["decision"], rule["domain"], rule["pattern"]) for rule in agent["rules"])
    text = "\n\n".join(part for part in (columns(shown), rules, plain(agent["prompt"])) if part)
    show(flags, agent, text)


@command.command("check")
@document_options
def check_agents(flags: Flags) -> int:
    """Report every mistake in the agent files; exit code 3 if a file, or a rule in it, cannot be used."""
    from moryflow_sdk.support.agent_files import read_agent
    from moryflow_sdk.support.markdown_files import shown_path
    from moryflow_sdk.support.own_files import files_below, own_files

    def work(host: Host) -> tuple[list[dict[str, Any]], list[str]]:
        doubtful = {agent.source for agent in host.agents.values() if any(rule.problem for rule in agent.rules)}
        used = {agent.source: agent.id for agent in host.agents.values()}
        itself = "; next: moryflow agent check"  # the next step in a note at start is this very command
        notes = [note.removesuffix(itself) for record in host.plugin_set.records for note in record.notes]
        lost = list(rule_remarks(host))
        folder = host.home / "agents"
        files, unreadable = own_files(folder, ".md")
        others, _ = files_below(host.config.get("agents.runtime.userAgents.paths") or (), ".md")
        files += others
        names = [shown_path(path) for path in [*([folder] if unreadable else ()), *files]]
        disabled = {shown_path(path) for path in files if read_agent(path) == (None, [])}
        rows = [
            {
                "file": name,
                "id": used.get(name),
                "ok": name in disabled or (name in used and name not in doubtful),
                "disabled": name in disabled,
                "problems": [note for note in (*notes, *lost) if note.startswith(f"{name}:")],
            }
            for name in names
        ]
        problems = [note for row in rows for note in row["problems"] if note not in lost]
        return rows, [*by_kind(host, problems), *lost]  # each lost deny is named

    rows, lines = from_host(flags, work, quiet=True)
    count = f"{len(rows)} agent file{'' if len(rows) == 1 else 's'}"
    show(flags, rows, plain("\n".join(lines)) or f"{count}, no problems found")
    return 0 if all(row["ok"] for row in rows) else 3

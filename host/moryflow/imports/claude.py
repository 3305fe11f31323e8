"""Claude Code: ``~/.claude`` and ``~/.claude.json``, or a project's ``.claude``, ``.mcp.json`` and transcripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk.support.foreign_names import is_foreign_model

from . import ImportPlan
from .files import add_server, is_plain_json, mapping, read_in_place, read_settings, text_list
from .rules import NO_RULE, claude_rule

# What Claude Code asks about without a rule, and Moryflow does not.
_ASKED = (("edit", "vault:**"), ("web_fetch", "*"), ("web_search", "*"), ("mcp", "*"))
_PLAIN = frozenset({
    "permissions", "hooks", "env", "model", "mcpServers", "$schema", "enabledPlugins", "extraKnownMarketplaces", "statusLine",
    "enableAllProjectMcpServers", "enabledMcpjsonServers", "disabledMcpjsonServers", "apiKeyHelper",
})  # fmt: skip


def read(path: Path | None) -> ImportPlan:
    """Return the plan for the user's settings, or for the project at `path`."""
    root = (path or Path.home() / ".claude").expanduser()
    project = (root / ".claude").is_dir() or (root / ".mcp.json").is_file()
    root = root.resolve() if project else root
    plan = ImportPlan("claude", root, folder=root) if project else ImportPlan("claude", root)
    own, home = root / ".claude" if project else root, Path.home() / ".claude"
    settings = [(read_settings(plan, own / name), name) for name in ("settings.json", "settings.local.json")]
    everywhere = read_settings(plan, home / "settings.json") if project and own != home else {}
    _permissions(plan, settings, root, project=project)
    if plan.first:
        _restrict(plan, mapping(everywhere.get("permissions")), home)
    for found, name in settings:
        _rest(plan, found, own / name)
    state = root / ".mcp.json" if project else root.parent / ".claude.json"
    listed = read_settings(plan, state)
    off = {name for found, _ in settings for name in text_list(found.get("disabledMcpjsonServers"))} if project else set[str]()
    for name, server in mapping(_servers(listed) if project else listed.get("mcpServers")).items():
        add_server(plan, str(name), {**mapping(server), **({"disabled": True} if name in off else {})}, str(state))
    if project:
        state = home.parent / ".claude.json"
        listed = read_settings(plan, state)
    _local_servers(plan, listed, root if project else None, state)
    _texts(plan, own, skills=not project)
    kept = Path.home() / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(root)) if project else root / "projects"
    plan.transcripts = sorted(kept.glob("*.jsonl" if project else "*/*.jsonl"))
    if plan.transcripts:
        text = f"{len(plan.transcripts)} transcripts"
        plan.note("sessions", text, "same", "sessions with their branches", where=str(kept))
    return plan


def _servers(found: Mapping[str, Any]) -> Any:
    """Return the servers of a ``.mcp.json``, with or without the object ``mcpServers`` around them."""
    return found["mcpServers"] if "mcpServers" in found else {k: v for k, v in found.items() if isinstance(v, Mapping)}


def _local_servers(plan: ImportPlan, found: Mapping[str, Any], project: Path | None, state: Path) -> None:
    """Take over the servers that ``.claude.json`` keeps for a project, or name those of every project."""
    for folder, about in mapping(found.get("projects")).items():
        for name, server in mapping(mapping(about).get("mcpServers")).items():
            if project is None:
                plan.note("server", f"{name} of {folder}", "skipped", "", f"moryflow import claude {folder}", str(state))
            elif folder == str(project):
                add_server(plan, str(name), mapping(server), str(state))


def _restrict(plan: ImportPlan, general: Mapping[str, Any], home: Path) -> None:
    """Add what the user's own settings ask about or deny: there it goes before what a project allows."""
    for decision in ("ask", "deny"):
        for entry in text_list(general.get(decision)):
            meaning = claude_rule(entry, decision, home, project=False)
            rows = [(meaning.domain, pattern, decision) for pattern in meaning.patterns]
            plan.rules(f'{decision} "{entry}"', rows, str(home / "settings.json"), meaning.why)


def _permissions(plan: ImportPlan, files: list[tuple[Mapping[str, Any], str]], root: Path, *, project: bool) -> None:
    """Take over rules and mode: what Claude Code asks about without a rule, then allow, ask and deny."""
    sections = [(mapping(found.get("permissions")), name) for found, name in files]
    if not any(found for found, _ in sections) and not any(found for found, _ in files):
        return
    mode = next((str(found["defaultMode"]) for found, _ in reversed(sections) if found.get("defaultMode")), "default")
    allowed = [entry for found, _ in sections for entry in text_list(found.get("allow"))]
    edits = mode == "acceptEdits" or any(
        claude_rule(entry, "allow", root, project=project) == ("edit", (), NO_RULE) for entry in allowed
    )
    asked = [(domain, pattern) for domain, pattern in _ASKED if not (domain == "edit" and edits)]
    plan.rules(f"defaultMode {mode}", [(domain, pattern, "ask") for domain, pattern in asked], plan.root.name)
    why = "Claude Code runs ls, cat, git log and the like unasked; moryflow permission preset look does so here"
    plan.note("rule", "commands that only look", "stricter", "", why, plan.root.name)
    if mode in ("bypassPermissions", "dontAsk", "auto"):
        plan.note("setting", f"defaultMode {mode}", "stricter", "mode agent", "an import gives no mode that asks less")
    if mode == "plan":
        plan.note("setting", "defaultMode plan", "skipped", "", "moryflow chat --agent plan plans")
    for decision in ("allow", "ask", "deny"):
        for found, name in sections:
            for entry in text_list(found.get(decision)):
                meaning = claude_rule(entry, decision, root, project=project)
                rows = [(meaning.domain, pattern, decision) for pattern in meaning.patterns]
                plan.rules(f'{decision} "{entry}"', rows, name, meaning.why)
    for found, name in sections:
        for folder in text_list(found.get("additionalDirectories")):
            place = f"fs:{folder.rstrip('/')}/**" if folder.startswith(("/", "~")) else ""
            rows = [("read", place, "allow"), ("edit", place, "ask")] if place else []
            plan.rules(
                f"additionalDirectories {folder}", rows, name, "" if place else "a folder that is relative is not taken over"
            )


def _rest(plan: ImportPlan, found: Mapping[str, Any], file: Path) -> None:
    """Name what else the settings hold."""
    if model := found.get("model"):
        foreign = not isinstance(model, str) or is_foreign_model(model)
        if foreign:
            plan.note(
                "model",
                str(model),
                "skipped",
                "",
                "a name of Claude Code's own; moryflow model use NAME chooses one",
                str(file),
            )
        else:
            plan.settings.setdefault(("model",), model if "/" in str(model) else f"anthropic/{model}")
            plan.note("model", str(model), "same", f"model = {plan.settings[('model',)]}", where=str(file))
    for name, server in mapping(found.get("mcpServers")).items():
        add_server(plan, str(name), mapping(server), str(file))
    if hooks := mapping(found.get("hooks")):
        place, plain = ("agents", "runtime", "claudeHooks", "paths"), is_plain_json(file)
        if plain:
            plan.lists.setdefault(place, []).append(str(file))
        why = "" if plain else f"hooks are read from plain JSON only; take the comments out of {file.name}"
        for hook in read_hook_commands(hooks):
            plan.note("hook", hook, "in place" if plain else "skipped", ".".join(place) if plain else "", why, str(file))
    for name in mapping(found.get("env")):
        plan.note("setting", f"env {name}", "skipped", "", "set it in your shell; no value is copied", str(file))
    for name in mapping(found.get("enabledPlugins")):
        plan.note("setting", f"plugin {name}", "skipped", "", "moryflow plugin install claude:PATH", str(file))
    for key in sorted({*found} - _PLAIN):
        plan.note("setting", key, "skipped", "", "it has no counterpart", str(file))


def read_hook_commands(hooks: Mapping[str, Any]) -> list[str]:
    """Return each command of a section of hooks, with its event and matcher, for the report and for the consent screen."""
    found: list[str] = []
    for event, groups in hooks.items():
        for group in groups if isinstance(groups, list) else []:
            listed = mapping(group).get("hooks")
            for hook in listed if isinstance(listed, list) else []:
                matcher = mapping(group).get("matcher")
                runs = mapping(hook).get("command") or mapping(hook).get("type")
                found.append(f"{event}{f' {matcher}' if matcher else ''}: {runs}")
    return found


def _texts(plan: ImportPlan, own: Path, *, skills: bool = True) -> None:
    read_in_place(plan, "agents", [own / "agents"], ("agents", "runtime", "userAgents", "paths"))
    read_in_place(plan, "commands", [own / "commands"], ("agents", "runtime", "userCommands", "paths"))
    found = sum(1 for _ in (own / "skills").glob("*/SKILL.md")) if (own / "skills").is_dir() else 0
    if found:
        plan.note("skills", f"{found} in {own / 'skills'}", "in place", "read already", where=str(own / "skills"))
    if (own / "CLAUDE.md").is_file():
        plan.note("setting", "CLAUDE.md", "in place", "read already", where=str(own / "CLAUDE.md"))

"""OpenCode: ``~/.config/opencode`` or a project's ``opencode.json`` and ``.opencode``; both versions of ``permission``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk import DOMAINS
from moryflow_sdk.support.foreign_names import DOMAINS_ELSEWHERE, is_known, is_of_server, plain_name, tools_here

from . import ImportPlan
from .files import add_server, mapping, read_in_place, read_instructions, read_settings, read_skills, text_list, variable_in
from .rules import _DOMAIN_OF

_FILES = ("config.json", "opencode.json", "opencode.jsonc")
_DOMAINS = {plain_name(name): name for name in DOMAINS} | {plain_name(name): ours for name, ours in DOMAINS_ELSEWHERE.items()}
_TAKEN = frozenset({
    "permission", "tools", "model", "mcp", "provider", "agent", "mode", "command", "instructions", "plugin", "$schema",
})  # fmt: skip
_DOMAINS |= {"list": "read", "glob": "read", "grep": "read"}


def read(path: Path | None) -> ImportPlan:
    """Return the plan for the user's settings, or for the project at `path`."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    root = (path or config).expanduser()
    here = (root / ".opencode").is_dir() or any((root / name).is_file() for name in _FILES[1:])
    project = here and path is not None and root.resolve() != config.resolve()
    plan = ImportPlan("opencode", root, folder=root.resolve() if project else None)
    own = root / ".opencode" if project else root
    for file in [*(root / name for name in _FILES), *((own / name for name in _FILES[1:]) if project else ())]:
        found = read_settings(plan, file)
        _permissions(plan, found.get("permission"), str(file))
        _tools(plan, mapping(found.get("tools")), str(file))
        _rest(plan, found, str(file))
    for kind, key in (("agents", "userAgents"), ("commands", "userCommands")):
        folders = [own / name for name in (kind.removesuffix("s"), kind)]
        read_in_place(plan, kind, folders, ("agents", "runtime", key, "paths"))
    read_skills(plan, own / "skill", own / "skills")
    if not project and (root / "AGENTS.md").is_file():
        read_instructions(plan, root / "AGENTS.md")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "opencode"
    store = path if path and path.is_dir() and (path / "storage").is_dir() else data
    files = (
        [store / "opencode.db"]
        if (store / "opencode.db").is_file()
        else sorted((store / "storage" / "session").glob("*/*.json"))
    )
    plan.transcripts = [] if project else files
    if plan.transcripts:
        plan.note("sessions", f"sessions in {store}", "same", "sessions of this system", where=str(store))
    return plan


def _permissions(plan: ImportPlan, value: Any, where: str) -> None:
    """Take over ``"ask"``, ``{tool: decision or {pattern: decision}}``, or the list of version 2; the last match counts."""
    for tool, pattern, decision in _entries(value):
        original = f'permission {tool} "{pattern}": {decision}'
        if decision not in ("allow", "ask", "deny"):
            rows = [(domain, _pattern(domain, "*", "ask"), "ask") for domain in _domains(tool)]
            plan.rules(original, rows, where, f"{decision!r} is no decision, so it asks")
            continue
        if plain_name(tool) == "externaldirectory":
            outside = "fs:**" if pattern == "*" else f"fs:{_path(pattern)}"
            rows = [(domain, outside, decision) for domain in ("read", "edit") if domain == "read" or decision == "deny"]
            plan.rules(original, rows, where, "" if decision == "deny" else "outside of the folder nothing is edited here")
            continue
        domains = _domains(tool)
        if not domains and is_of_server(tool):
            name = tool.replace("_", "/", 1) if "*" in tool and "/" not in tool else tool
            plan.rules(original, [("mcp", name, decision)], where)
        elif not domains:
            unknown = not is_known(tool)
            rows = [("tool", f"tool:{tool}", decision)] if unknown and decision != "allow" else []
            why = f"{tool!r} is no tool that is known here" if unknown else "there is no such tool here"
            plan.rules(original, rows, where, why)
        else:
            rows = [(domain, _pattern(domain, pattern, decision), decision) for domain in domains]
            plan.rules(original, rows, where)


def _entries(value: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, str):
        yield "*", "*", value
    if isinstance(value, list):
        for item in map(mapping, value):
            tool = item.get("permission") or item.get("tool") or item.get("domain") or "*"
            yield str(tool), str(item.get("pattern", "*")), str(item.get("action") or item.get("decision"))
    for tool, given in mapping(value).items():
        for pattern, decision in mapping(given).items() if isinstance(given, Mapping) else [("*", given)]:
            yield str(tool), str(pattern), str(decision)


def _domains(tool: str) -> tuple[str, ...]:
    if tool == "*":
        return DOMAINS
    known = _DOMAINS.get(plain_name(tool))
    return (known,) if known else tuple({_DOMAIN_OF[name]: None for name in tools_here(tool) if name in _DOMAIN_OF})


def _pattern(domain: str, pattern: str, decision: str) -> str:
    """Return a pattern with the meaning it has there: a star matches a slash too, and what is outside has rules of its own."""
    if domain in ("read", "edit") and pattern in ("*", "**") and decision != "deny":
        return "vault:**"
    if domain in ("read", "edit") and pattern != "*":
        return _path(pattern)
    return f"{pattern}**" if domain == "web_fetch" and pattern.endswith("/") else pattern


def _path(pattern: str) -> str:
    return re.sub(r"(?<!\*)\*(?!\*)", "**", pattern.replace("$HOME", "~", 1) if pattern.startswith("$HOME") else pattern)


def _tools(plan: ImportPlan, tools: Mapping[str, Any], where: str) -> None:
    """Take over ``{"bash": false}``: a tool that is off is denied."""
    for tool, on in tools.items():
        if on is not False:
            continue
        domains = _domains(str(tool))
        rows = [(domain, "*", "deny") for domain in domains] or [("mcp", str(tool).replace("_", "/", 1), "deny")]
        plan.rules(f"tools {tool}: false", rows, where)


def _rest(plan: ImportPlan, found: Mapping[str, Any], where: str) -> None:
    if isinstance(model := found.get("model"), str) and "/" in model:
        plan.settings.setdefault(("model",), model)
        plan.note("model", model, "same", f"model = {model}", where=where)
    for name, server in mapping(found.get("mcp")).items():
        server = mapping(server)
        command = text_list(server.get("command"))
        about = {
            "command": command[0] if command else None,
            "args": command[1:],
            "env": server.get("environment") or server.get("env"),
        }
        more = {key: server[key] for key in ("url", "headers", "enabled", "cwd") if key in server}
        add_server(plan, str(name), {**about, **more, "type": "http" if "url" in server else None}, where)
    for name, provider in mapping(found.get("provider")).items():
        options = mapping(mapping(provider).get("options"))
        place = ("models", "providers", str(name))
        if isinstance(url := options.get("baseURL"), str):
            plan.settings[(*place, "baseUrl")] = url
        key = options.get("apiKey")
        if isinstance(key, str) and variable_in(key):
            plan.settings[(*place, "apiKeyEnv")] = variable_in(key)
        why = (
            "its key is not copied: moryflow config set models.providers.NAME.apiKeyEnv"
            if key and not variable_in(str(key))
            else ""
        )
        plan.note(
            "model", f"provider {name}", "same" if "baseURL" in options else "skipped", f"models.providers.{name}", why, where
        )
    for key, kind in (("agent", "agents"), ("mode", "agents"), ("command", "commands")):
        for name in mapping(found.get(key)):
            plan.note(kind, str(name), "skipped", "", f"{kind} inside opencode.json are not read; write it as a file", where)
    for key in sorted({*found} - _TAKEN):
        plan.note("setting", key, "skipped", "", "it has no counterpart", where)
    if files := text_list(found.get("instructions")):
        plan.lists.setdefault(("agents", "runtime", "instructions", "files"), []).extend(files)
        plan.note("setting", f"instructions ({len(files)})", "same", "agents.runtime.instructions.files", where=where)
    if found.get("plugin"):
        plan.note("setting", "plugin", "skipped", "", "plugins of OpenCode are JavaScript for its own host", where)

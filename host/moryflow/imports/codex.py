"""Codex: ``~/.codex`` with its approval policy, sandbox, rules, servers, prompts and rollouts."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk.support.sandbox import COMMANDS

from . import ImportPlan, NewRule
from .files import add_server, mapping, read_in_place, read_instructions, read_settings, read_skills, text_list

_DECISIONS = {"allow": "allow", "prompt": "ask", "forbidden": "deny"}
_TAKEN = frozenset({
    "approval_policy", "sandbox_mode", "sandbox_workspace_write", "projects", "mcp_servers", "model", "model_provider",
    "model_providers", "profile", "profiles",
})  # fmt: skip


def read(path: Path | None) -> ImportPlan:
    """Return the plan for the folder at `path`, by default ``~/.codex``."""
    root = (path or Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")).expanduser()
    root = root / ".codex" if (root / ".codex").is_dir() else root
    plan, file = ImportPlan("codex", root), root / "config.toml"
    found = read_settings(plan, file)
    if profile := mapping(mapping(found.get("profiles")).get(str(found.get("profile")))):
        found = {**found, **profile}
        plan.note("setting", f"profile {found['profile']}", "same", "its values are those that are taken", where=str(file))
    if file.is_file():
        _policy(plan, found, str(file))
    policy = len(plan.first)
    for rules in sorted((root / "rules").glob("*.rules")):
        _prefix_rules(plan, rules)
    # There the strictest rule that matches counts, here the last.
    plan.first[policy:] = sorted(plan.first[policy:], key=lambda rule: rule.decision != "allow")
    for name, server in mapping(found.get("mcp_servers")).items():
        _server(plan, str(name), mapping(server), str(file))
    _model(plan, found, str(file))
    read_in_place(plan, "commands", [root / "prompts"], ("agents", "runtime", "userCommands", "paths"))
    read_skills(plan, root / "skills")
    if (root / "AGENTS.md").is_file():
        read_instructions(plan, root / "AGENTS.md")
    for key in sorted({*found} - _TAKEN):
        plan.note("setting", key, "skipped", "", "it has no counterpart", str(file))
    plan.transcripts = sorted(root.glob("sessions/**/rollout-*.jsonl"))
    if plan.transcripts:
        plan.note("sessions", f"{len(plan.transcripts)} rollouts", "same", "sessions", where=str(root / "sessions"))
    return plan


def _policy(plan: ImportPlan, found: Mapping[str, Any], where: str) -> None:
    """Take over when Codex asks, and what its sandbox lets through.

    A policy that never asks lets commands fail in the sandbox; here they are denied outside of it. Full access is not given.
    """
    policy = found.get("approval_policy", "on-request")
    policy = policy if isinstance(policy, str) else "untrusted"
    sandbox = str(found.get("sandbox_mode", "read-only"))
    original = f"approval_policy {policy}, sandbox_mode {sandbox}"
    rows: list[tuple[str, str, str]] = []
    if sandbox == "read-only":
        rows += [("edit", "vault:**", "deny" if policy == "never" else "ask")]
    if sandbox == "workspace-write" and policy != "untrusted":
        rows += [("bash", COMMANDS, "allow")]
    why = ""
    if sandbox == "danger-full-access":
        why = "an import does not give full access: commands ask"
        rows += [("bash", "*", "ask")]
    if policy == "untrusted":
        rows += [("edit", "vault:**", "ask")]
    plan.rules(original, rows or [("bash", "*", "ask")], where, why)
    network = mapping(found.get("sandbox_workspace_write")).get("network_access")
    if mapping(found.get("sandbox_workspace_write")).get("writable_roots"):
        plan.note("setting", "writable_roots", "skipped", "", "commands in the sandbox write in the folder only", where)
    if network is True:
        plan.note(
            "setting",
            "network_access",
            "stricter",
            "",
            "commands in the sandbox reach the network by a web_fetch rule only",
            where,
        )
    for folder, about in mapping(found.get("projects")).items():
        if mapping(about).get("trust_level"):
            plan.note("setting", f"trust_level of {folder}", "skipped", "", "trust is asked about here, by rule", where)


def _prefix_rules(plan: ImportPlan, file: Path) -> None:
    """Take over ``prefix_rule(pattern=[…], decision="…")``; the language is a small Python, which is read and not run."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8-sig"))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        plan.note("rule", file.name, "error", why=f"it cannot be read: {error}", where=str(file))
        plan.rules(file.name, [("bash", "*", "ask")], str(file), "a file of rules that cannot be read asks about every command")
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "network_rule":
            why = "commands in the sandbox reach the network by a web_fetch rule only"
            plan.note("rule", ast.unparse(node), "skipped", "", why, f"{file}:{node.lineno}")
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "prefix_rule":
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        where = f"{file}:{node.lineno}"
        try:
            words = ast.literal_eval(given["pattern"])
            decision = _DECISIONS[ast.literal_eval(given["decision"])] if "decision" in given else "allow"
            commands = [" ".join(line) for line in _lines(words)]
        except (KeyError, ValueError, TypeError):
            plan.rules(ast.unparse(node), [("bash", "*", "ask")], where, "it is not understood, so every command asks")
            continue
        rows = [("bash", pattern, decision) for command in commands for pattern in (command, f"{command} *")]
        plan.rules(ast.unparse(node), rows, where)


def _lines(words: Any) -> Iterator[list[str]]:
    """Yield the command lines of a pattern, in which a list stands for one of several words."""
    if not isinstance(words, list | tuple) or not words:
        raise ValueError("no pattern")
    lines: list[list[str]] = [[]]
    for word in words:
        choices = word if isinstance(word, list | tuple) else [word]
        if not all(isinstance(choice, str) for choice in choices) or len(lines) * len(choices) > 256:
            raise ValueError("no words")
        lines = [[*line, choice] for line in lines for choice in choices]
    yield from lines


def _server(plan: ImportPlan, name: str, server: Mapping[str, Any], where: str) -> None:
    headers = {**mapping(server.get("http_headers"))}
    headers |= {key: f"${{{variable}}}" for key, variable in mapping(server.get("env_http_headers")).items()}
    if isinstance(token := server.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    passed = {variable: f"${{{variable}}}" for variable in text_list(server.get("env_vars"))}
    about = {
        **server,
        "headers": headers,
        "env": {**mapping(server.get("env")), **passed},
        "timeout": server.get("tool_timeout_sec"),
    }
    add_server(plan, name, about, where)
    for tool in text_list(server.get("disabled_tools")):
        plan.rules(f"mcp_servers.{name} disabled_tools {tool}", [("mcp", f"{name}/{tool}", "deny")], where)
    if "enabled_tools" in server:
        enabled = text_list(server["enabled_tools"])
        rows = [("mcp", f"{name}/*", "deny"), *(("mcp", f"{name}/{tool}", "ask") for tool in enabled)]
        # In this order, and before the user's own rules: what is not named is denied.
        plan.first += [NewRule(*row, f"codex: mcp_servers.{name} enabled_tools") for row in rows]
        plan.note("rule", f"mcp_servers.{name} enabled_tools", "same", f"only {', '.join(enabled) or 'none'}", where=where)


def _model(plan: ImportPlan, found: Mapping[str, Any], where: str) -> None:
    provider = str(found.get("model_provider") or "openai")
    if isinstance(model := found.get("model"), str):
        plan.settings.setdefault(("model",), f"{provider}/{model}")
        plan.note("model", model, "same", f"model = {provider}/{model}", where=where)
    for name, about in mapping(found.get("model_providers")).items():
        place = ("models", "providers", str(name))
        for theirs, ours in (("base_url", "baseUrl"), ("env_key", "apiKeyEnv")):
            if isinstance(value := mapping(about).get(theirs), str):
                plan.settings[(*place, ours)] = value
        plan.note("model", f"provider {name}", "same", f"models.providers.{name}", where=where)

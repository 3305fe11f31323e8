"""The page ``docs/reference/settings.md``: every setting with its type, default and meaning, from the JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
BLOCK = re.compile(r"(<!-- begin: settings -->\n).*?(<!-- end -->)", re.DOTALL)
SECTIONS = {
    "": "The first level",
    "limits": "Limits of a turn",
    "models": "Model services",
    "mcp": "MCP servers",
    "agents.runtime.compaction": "Compaction",
    "agents.runtime.prompt": "The system prompt",
    "agents.runtime.permission": "Permission rules",
    "agents.runtime.doomLoop": "Going in circles",
    "agents.runtime.budgets": "Budgets",
    "agents.runtime.truncation": "Long outputs",
    "agents.runtime.titles": "Titles",
    "agents.runtime.instructions": "Instruction files",
    "agents.runtime.skills": "Skills",
    "agents.runtime.web": "The web",
    "agents.runtime.snapshots": "Undo",
    "agents.runtime.checkers": "Checks after edits",
    "agents.runtime.llmPlugins": "Packages for llm",
    "agents.runtime.tasks": "Sub-agents",
    "agents.runtime.memoryBank": "Memory bank",
    "agents.runtime.hooks": "Hooks without code",
}
Schema = Mapping[str, Any]
LONGEST = 100
"""Characters of a default that the page shows."""


def page() -> str:
    """Return the page with its lists written anew."""
    rows: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for key, found, said in keys(schema()):
        section = max((name for name in SECTIONS if not name or f"{key}.".startswith(f"{name}.")), key=len)
        if not said:
            raise ValueError(f"{key} has no description: say what it does in the docstring of its model (:ivar name: …)")
        rows[section].append(f"- `{key.removeprefix(section).removeprefix('.')}` ({_type(found)}{_default(found)}): {said}")
    parts: list[str] = []
    for section, title in SECTIONS.items():
        heading = f"## {title}: `{section}`" if section else f"## {title}"
        parts.append("\n".join([heading, "", *rows[section]]))
    text = "\n\n".join(parts)
    return BLOCK.sub(lambda ends: f"{ends[1]}\n{text}\n\n{ends[2]}", PAGE.read_text(encoding="utf-8"))


def schema() -> Schema:
    """Return the schema of all settings without plugins of a person's own."""
    import tempfile

    from click.testing import CliRunner
    from moryflow.cli import cli

    with tempfile.TemporaryDirectory() as home:
        done = CliRunner().invoke(cli, ["config", "schema"], env={"MORYFLOW_HOME": home}, catch_exceptions=False)
    found: Schema = json.loads(done.stdout)
    return found


def keys(root: Schema) -> Iterator[tuple[str, Schema, str]]:
    """Yield every key that holds a value: its path, its schema, and what it does."""
    yield from _below(root, root, "")


def _below(root: Schema, here: Schema, path: str) -> Iterator[tuple[str, Schema, str]]:
    documented = _documented(str(here.get("description", "")))
    for name, given in here.get("properties", {}).items():
        found = _resolved(root, given)
        inner = list(_inside(root, found, f"{path}{name}"))
        said = str(given.get("description") or documented.get(name) or documented.get(_snake(name)) or "")
        if not inner or found.get("type") == "array":
            yield f"{path}{name}", found, _plain(said) or ("entries with these keys:" if inner else "")
        yield from inner


def _inside(root: Schema, found: Schema, path: str) -> Iterator[tuple[str, Schema, str]]:
    yield from _below(root, found, f"{path}.")
    for option in found.get("anyOf", ()):
        yield from _below(root, _resolved(root, option), f"{path}.")
    if isinstance(more := found.get("additionalProperties"), Mapping):
        yield from _below(root, _resolved(root, more), f"{path}.NAME.")
    if isinstance(item := found.get("items"), Mapping):
        yield from _below(root, _resolved(root, item), f"{path}[].")


def _resolved(root: Schema, found: Schema) -> Schema:
    if "$ref" not in found:
        return found
    there = root["$defs"][found["$ref"].rpartition("/")[2]]
    return {**there, **{key: value for key, value in found.items() if key != "$ref"}}


def _documented(text: str) -> dict[str, str]:
    return {
        name: " ".join(said.split())
        for name, said in re.findall(r"^:(?:ivar|param) (\w+): (.*?)(?=^:\w|\n\n|\Z)", text, re.S | re.M)
    }


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _plain(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", text).replace("*", "\\*") if text else ""


def _type(found: Schema) -> str:
    options = [item for item in found.get("anyOf", [found]) if item.get("type") != "null"]
    return " or ".join(dict.fromkeys(_one_type(item) for item in options))


def _one_type(found: Schema) -> str:
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    if "const" in found:
        return f"`{found['const']}`"
    kind = {"string": "text", "array": "list", "object": "mapping"}
    name = kind.get(found.get("type", ""), found.get("type", "any value"))
    least, most = found.get("minimum"), found.get("maximum")
    if found.get("exclusiveMinimum") == 0:
        if found["type"] == "number":
            return f"{name} >0" + (f", ≤{most}" if most else "")
        least = 1
    if least is None:
        return name
    return f"{name} ≥{least}" + (f", ≤{most}" if most is not None and most < 1_000_000 else "")


def _default(found: Schema) -> str:
    if "default" not in found:
        return "; required"
    value = found["default"]
    if value in (None, "", [], {}):
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return f"; `{text}`" if len(text) < LONGEST else f"; {len(value)} entries, see `moryflow config show --all`"

"""Read the files of other systems: JSON with comments or without, TOML, folders of Markdown. Never raises for their content."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.secrets import names_secret

from moryflow.config.jsonc import JsoncError, parse

from . import ImportPlan

MAX_BYTES = 8 * 1024 * 1024
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-[^}]*)?\}|\{env:([A-Za-z_]\w*)\}|\$([A-Z_][A-Z0-9_]*)\b")


def read_settings(plan: ImportPlan, file: Path) -> Mapping[str, Any]:
    """Return the object in a JSON, JSONC or TOML file; an empty one if it is missing or wrong, which the plan then says."""
    try:
        with open_regular(file) as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
        text = data.decode("utf-8-sig")
        found = tomllib.loads(text) if file.suffix == ".toml" else parse(text) if text.strip() else {}
    except FileNotFoundError:
        return {}
    except JsoncError as error:
        plan.note("setting", file.name, "error", why=error.message, where=f"{file}:{error.line}")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        plan.note("setting", file.name, "error", why=str(getattr(error, "strerror", None) or error), where=str(file))
        return {}
    if not isinstance(found, dict):
        plan.note("setting", file.name, "error", why="it holds no object", where=str(file))
        return {}
    return found


def read_in_place(plan: ImportPlan, kind: str, folders: list[Path], setting: tuple[str, ...]) -> None:
    """Have the Markdown files below `folders` read where they are, if there are any."""
    for folder in folders:
        count = sum(1 for _ in folder.rglob("*.md")) if folder.is_dir() else 0
        if count:
            plan.lists.setdefault(setting, []).append(str(folder))
            plan.note(kind, f"{count} in {folder}", "in place", ".".join(setting), where=str(folder))


def read_skills(plan: ImportPlan, *folders: Path) -> None:
    """Have the skills below `folders` read where they are; each folder that holds some is named by itself."""
    files = [(file, file.relative_to(folder).parts) for folder in folders for file in folder.rglob("SKILL.md")]
    counts = Counter(
        file.parent.parent for file, parts in files if len(parts) > 1 and not any(p.startswith(".") for p in parts)
    )
    setting = ("agents", "runtime", "skills", "paths")
    for folder, count in sorted(counts.items()):
        plan.lists.setdefault(setting, []).append(str(folder))
        plan.note("skills", f"{count} in {folder}", "in place", ".".join(setting), where=str(folder))


def read_instructions(plan: ImportPlan, file: Path) -> None:
    """Have a file with instructions for every folder read where it is."""
    setting = ("agents", "runtime", "instructions", "files")
    plan.lists.setdefault(setting, []).append(str(file))
    plan.note("setting", file.name, "in place", ".".join(setting), where=str(file))


def is_plain_json(file: Path) -> bool:
    """Whether a file is JSON without comments, as the programs that run hooks read it."""
    try:
        return json.loads(file.read_bytes()) is not None
    except (OSError, ValueError, RecursionError):
        return False


def text_list(value: Any) -> list[str]:
    """Return the texts in a list; a single text counts as a list of one."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object; an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- servers


def add_server(plan: ImportPlan, name: str, server: Mapping[str, Any], where: str, *, literal: bool = False) -> None:
    """Add an MCP server: values of variables and headers by name, never copied; its tools wait for ``mcp review``.

    :param literal: whether values are copied, because a plugin's author and not the user wrote them.
    """
    found: dict[str, Any] = {key: server[key] for key in ("command", "args", "cwd", "url", "type") if server.get(key)}
    if not re.fullmatch(r"[\w.@-]{1,64}", name) or not (found.get("command") or found.get("url")):
        plan.note("server", name, "skipped", why="it has neither a command nor an address, or an odd name", where=where)
        return
    missing: list[str] = []
    for key in ("env", "headers"):
        values = {str(one): _by_name(f"{name}_{one}" if key == "headers" else str(one), value, missing, keep=literal)
                  for one, value in mapping(server.get(key)).items()}  # fmt: skip
        found |= {key: values} if values else {}
    if "command" in found:
        args = text_list(server.get("args"))
        # A key can stand in an argument too: --api-key sk-1, --token=sk-1, Authorization: sk-1.
        secret = [names_secret(re.split("[=:]", item, maxsplit=1)[0]) for item in args]
        hidden = [
            own if re.search("[=:]", item) else above and not item.startswith("-")
            for item, own, above in zip(args, secret, [False, *secret][: len(args)], strict=True)
        ]
        keep = [literal or not one for one in hidden]
        found["args"] = [_by_name(f"{name}_ARG", item, missing, keep=one) for item, one in zip(args, keep, strict=True)]
    if "url" in found:
        head, mark, query = str(found["url"]).partition("?")
        if re.search("://[^/]*@", head) and not literal:
            plan.note("server", name, "skipped", why="its address has a password in it, which no address may have", where=where)
            return
        parts = [part.partition("=") for part in query.split("&")]
        values = [_by_name(f"{name}_{key}", value, missing, keep=literal or not names_secret(key)) for key, _, value in parts]
        query = "&".join(f"{key}{sign}{value}" for (key, sign, _), value in zip(parts, values, strict=True))
        found["url"] = f"{_by_name('', head, missing, keep=True)}{mark}{query}"
    if server.get("enabled") is False or server.get("disabled") is True:
        found["enabled"] = False
    timeout = server.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        found["timeout"] = timeout
    plan.settings["mcp", "servers", name] = found
    why = f"set {', '.join(dict.fromkeys(missing))} in your environment; values are not copied" if missing else ""
    plan.note("server", name, "same", f"mcp.servers.{name}; moryflow mcp review {name}", why, where)


def _by_name(name: str, value: Any, missing: list[str], *, keep: bool = False) -> str:
    """Return `value` with its variables as ours; a literal value is replaced by a variable called `name`."""
    text = str(value)
    if keep or _VARIABLE.search(text):
        return _VARIABLE.sub(lambda found: f"${{{found[1] or found[2] or found[3]}}}", text)
    own = re.sub(r"\W", "_", name).upper()
    missing.append(own)
    return f"${{{own}}}"


def variable_in(text: str) -> str:
    """Return the name of the variable that a value is, if it is one."""
    found = _VARIABLE.fullmatch(text.strip())
    return (found[1] or found[2] or found[3]) if found else ""


def jsonl(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with JSON Lines; other lines are passed over."""
    with open_regular(file) as stream:
        for line in stream:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value

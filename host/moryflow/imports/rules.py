"""What the rules of other systems mean here. What has no exact meaning becomes the stricter rule, with the reason.

A rule of Claude Code names a tool and perhaps a part of it, ``Bash(npm run test:*)``; a deny goes before an ask, an ask before
an allow. OpenCode has objects of patterns by tool, of which the last that matches counts, as here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk.support.foreign_names import is_known, tools_here

_DOMAIN_OF = {
    **dict.fromkeys(("read", "ls", "glob", "grep", "search_in_file"), "read"),
    **dict.fromkeys(("edit", "write", "multiedit", "apply_patch", "move", "delete"), "edit"),
    "bash": "bash", "web_fetch": "web_fetch", "web_search": "web_search", "task": "task",
}  # fmt: skip
_ENTRY = re.compile(r"\s*([\w*./@-]+?)\s*(?:\((.*)\))?\s*", re.DOTALL)


NO_RULE = "in the folder no rule is needed; secrets, .git and what is outside ask or are denied as ever"


class Meaning(NamedTuple):
    """The patterns of one rule in one domain; `why` says what makes it stricter, or why there is none."""

    domain: str
    patterns: tuple[str, ...]
    why: str = ""


def claude_rule(text: str, decision: str, root: Path, *, project: bool) -> Meaning:
    """Return what an entry of ``permissions.allow``, ``ask`` or ``deny`` means.

    :param root: the folder that a path with a leading slash begins at.
    :param project: whether that folder is the one that the agent works in.
    """
    match = _ENTRY.fullmatch(text)
    if match is None:
        return _unknown(text, decision)
    tool, part = match[1], (match[2] or "").strip()
    if tool.startswith("mcp__"):
        server, _, name = tool.removeprefix("mcp__").partition("__")
        return Meaning("mcp", (f"{server}/{name or '*'}",))
    domain = next((_DOMAIN_OF[name] for name in tools_here(tool) if name in _DOMAIN_OF), "")
    if not domain:
        return Meaning("", (), "there is no such tool here") if is_known(tool) else _unknown(text, decision)
    if part in ("", "*", "**", "./**", ":*"):
        if domain not in ("read", "edit") or decision == "deny":
            return Meaning(domain, ("*",))
        # For what is outside of the folder, the rules here ask or deny already; what is inside needs no rule to be allowed.
        return Meaning(domain, ("vault:**",)) if decision == "ask" else Meaning(domain, (), NO_RULE)
    match domain:
        case "bash":
            command = part.removesuffix(":*").removesuffix(" *")
            return Meaning(domain, (part,) if command == part else (command, f"{command} *"))
        case "web_fetch":
            host = part.removeprefix("domain:")
            return (
                Meaning(domain, (f"https://{host}/**", f"http://{host}/**")) if host != part else _whole(domain, text, decision)
            )
        case "task":
            return Meaning(domain, tuple(name.strip().rpartition(":")[2] for name in part.split(",")))
        case "web_search":
            return _whole(domain, text, decision)
        case _:
            return _path(domain, part, decision, root, project=project)


def _unknown(text: str, decision: str) -> Meaning:
    """A tool that nobody knows: its deny holds for a tool of that name, should one come; an allow is left out."""
    tool = text.partition("(")[0].strip()
    if decision == "allow" or not re.fullmatch(r"[\w.*-]+", tool):
        return Meaning("", (), f"{tool!r} is no tool that is known here")
    return Meaning("tool", (f"tool:{tool}",), f"{tool!r} is no tool that is known here; the rule is for any tool of that name")


def _whole(domain: str, text: str, decision: str) -> Meaning:
    """A part that is not understood: the whole domain asks or is denied; an allow is left out."""
    if decision == "allow":
        return Meaning("", (), f"the part of {text!r} is not understood")
    return Meaning(domain, ("*",), "its part is not understood, so it is taken for the whole")


def _path(domain: str, part: str, decision: str, root: Path, *, project: bool) -> Meaning:
    """Translate a path pattern with the meaning that gitignore gives it."""
    folder = part.endswith("/")
    body = part.rstrip("/") + ("/**" if folder else "")
    if body.startswith("//"):
        return _outside(domain, body[1:], decision)
    if body.startswith("~"):
        return _outside(domain, body, decision)
    if body.startswith("/"):
        if project:
            return Meaning(domain, _with_content(f"vault:{body}", decision))
        found = _outside(domain, f"{root}{body}", decision)
        # Of the user's own settings, a slash is easily taken for the root of the disk: what restricts holds for both.
        both = () if decision == "allow" else _with_content(f"fs:{body}", decision)
        return found._replace(patterns=(*found.patterns, *both))
    anchored = "/" in part.rstrip("/")
    body = body.removeprefix("./")
    return Meaning(domain, _with_content(body if anchored or body.startswith("**") else f"**/{body}", decision))


def _outside(domain: str, path: str, decision: str) -> Meaning:
    """A path that is not relative. Our patterns for it are about files outside the folder; a deny holds inside by name too."""
    patterns = _with_content(f"fs:{path}", decision)
    if decision == "allow":
        return Meaning(domain, patterns)
    literal = re.split(r"[*?\[{]", path, maxsplit=1)[0]
    rest = path[len(literal.rstrip("/").rpartition("/")[0]) + 1 :].lstrip("/")
    inside = _with_content(f"vault:**/{rest}" if rest not in ("", "~", "**", "~/**") else "vault:**", decision)
    return Meaning(domain, (*patterns, *inside), "inside the folder it holds for every path that ends so")


def _with_content(pattern: str, decision: str) -> tuple[str, ...]:
    """A rule about a folder is one about what is in it; only a rule that restricts needs to say so."""
    return (pattern,) if decision == "allow" or pattern.endswith("*") else (pattern, f"{pattern}/**")

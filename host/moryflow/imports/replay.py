"""Prove an import: the calls of the user's own transcripts, judged by the other system's rules and by the imported ones.

The other side is judged by a small reader of its own, written from that system's documentation and independent of the
translation in :mod:`.rules`. Where a system keeps no rules that decide alone, what happened to the call counts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from moryflow_sdk.support.foreign_names import tools_here

from . import ImportPlan
from .transcripts import PastCall, arguments_here

SEVERITY = {"allow": 0, "ask": 1, "deny": 2}
MAX_EXAMPLES = 5
_READERS = frozenset({"Read", "Grep", "Glob", "LS", "NotebookRead"})
_WRITERS = frozenset({"Edit", "Write", "MultiEdit", "NotebookEdit"})
# Commands that Claude Code runs without a question.
_LOOKS = re.compile(r"(ls|pwd|cat|head|tail|wc|echo|grep|rg|find|which|date|git (status|diff|log|show|branch)|true|cd)(\s|$)")
_OPERATOR = re.compile(r"\|\||&&|[;|&\n]")

Judge = Callable[[Sequence[Mapping[str, Any]]], list[Mapping[str, Any]]]


def compare(plan: ImportPlan, past: Iterable[PastCall], rules: Mapping[str, list[Any]], judge: Judge) -> dict[str, Any]:
    """Compare the decisions on past calls there and here.

    :param rules: the rules that would hold, by folder; the empty key is for all other folders.
    :param judge: takes lines of ``permission test`` and returns its results.
    """
    calls, lines, passed = list(past), list[dict[str, Any]](), Counter[str]()
    kept: list[PastCall] = []
    for call in calls:
        tool = next((name for name in tools_here(call.tool) if name in _OURS), "")
        args = {key: value for key, value in arguments_here(call.tool, call.args).items() if key in _OURS.get(tool, ())}
        if not tool or not args:
            passed[call.tool] += 1
            continue
        folder = call.folder if call.folder.startswith("/") else "/vault"
        where = {"vault": folder, "rules": rules.get(folder, rules[""])}
        lines.append({"id": str(len(kept)), "tool": tool, "args": {**_NEEDED.get(tool, {}), **args}, **where})
        kept.append(call)
    found = judge(lines)
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for call, result in zip(kept, found, strict=True):
        here, there = str(result.get("decision") or "ask"), their_decision(plan, call)
        kind = "same" if here == there else f"now {_PAST[here]}"
        counts[kind] += 1
        if kind != "same" and len(examples.setdefault(kind, [])) < MAX_EXAMPLES:
            examples[kind].append(f"{call.tool} {_shown(call)} (there: {there})")
    looser = sum(SEVERITY[str(result.get("decision") or "ask")] < SEVERITY[their_decision(plan, call)]
                 for call, result in zip(kept, found, strict=True))  # fmt: skip
    about = {"calls": len(calls), "judged": len(kept), "not_judged": dict(passed.most_common()), "looser": looser}
    return {**about, **{kind.replace(" ", "_"): counts[kind] for kind in ("same", *_KINDS)}, "examples": examples}


_PAST = {"allow": "allowed", "ask": "asked", "deny": "denied"}
_KINDS = ("now asked", "now denied", "now allowed")
_OURS: Mapping[str, tuple[str, ...]] = {
    "read": ("path",), "write": ("path",), "edit": ("path",), "multiedit": ("path",), "delete": ("path",),
    "ls": ("path",), "glob": ("pattern", "path"), "grep": ("pattern", "path"), "bash": ("command",), "web_fetch": ("url",),
    "web_search": ("query",),
}  # fmt: skip
# Arguments that a tool needs and rules do not look at.
_NEEDED: Mapping[str, Mapping[str, Any]] = {"write": {"content": ""}, "edit": {"old_string": "a", "new_string": "b"}}


def _shown(call: PastCall) -> str:
    args = arguments_here(call.tool, call.args)
    text = str(next((args[key] for key in ("command", "path", "url", "query", "pattern") if key in args), ""))
    return json.dumps(text if len(text) <= 80 else f"{text[:79]}…", ensure_ascii=False)


# ---------------------------------------------------------------- the other side


def their_decision(plan: ImportPlan, call: PastCall) -> str:
    """Return what the other system would decide; what happened where its rules alone do not say."""
    if plan.system == "claude":
        return _claude(plan, call)
    if plan.system == "opencode":
        return _opencode(plan, call)
    return "deny" if call.refused else "allow"


def _raw(plan: ImportPlan) -> list[tuple[str, str]]:
    """Return (decision, entry) of the rules as they were written."""
    found: list[tuple[str, str]] = []
    for item in plan.items:
        match = re.fullmatch(r'(allow|ask|deny) "(.*)"', item.original, re.DOTALL)
        if item.kind == "rule" and match:
            found.append((match[1], match[2]))
    return found


def _claude(plan: ImportPlan, call: PastCall) -> str:
    entries = _raw(plan)
    mode = call.mode or next(
        (item.original.split()[-1] for item in plan.items if item.original.startswith("defaultMode")), "default"
    )
    if call.tool != "Bash":
        for decision in ("deny", "ask", "allow"):
            if any(_fits(plan, entry, call) for given, entry in entries if given == decision):
                return decision
        return _claude_default(call, mode)
    parts = [part.strip() for part in _OPERATOR.split(str(call.args.get("command", ""))) if part.strip()]
    decisions: list[str] = []
    for part in parts or [""]:
        one = call._replace(args={"command": part})
        hits = (d for d in ("deny", "ask", "allow") if any(_fits(plan, entry, one) for given, entry in entries if given == d))
        decisions.append(next(hits, "allow" if _LOOKS.match(part) and not re.search(r"[>`]|\$\(", part) else "ask"))
    return max(decisions, key=SEVERITY.__getitem__)


def _claude_default(call: PastCall, mode: str) -> str:
    if call.tool in _READERS:
        path = str(call.args.get("file_path") or call.args.get("path") or "")
        inside = not path.startswith(("/", "~")) or path == call.folder or path.startswith(f"{call.folder}/")
        return "allow" if inside else "ask"
    if call.tool in _WRITERS and mode == "acceptEdits":
        return "allow"
    return "ask"


def _fits(plan: ImportPlan, entry: str, call: PastCall) -> bool:
    """Whether an entry of Claude Code's rules is about a call; one for Edit is about every tool that writes."""
    tool, _, part = entry.partition("(")
    part = part.removesuffix(")").strip()
    same = {"Edit": _WRITERS, "Write": _WRITERS, "Read": _READERS}.get(tool.strip(), frozenset({tool.strip()}))
    if call.tool not in same:
        return False
    if part in ("", "*", "**", ":*"):
        return True
    if call.tool == "Bash":
        return bool(_command(part).fullmatch(" ".join(_words(str(call.args.get("command", ""))))))
    if call.tool == "WebFetch":
        host = re.sub(r"^\w+://([^/:]+).*", r"\1", str(call.args.get("url", "")))
        return fnmatchcase(host, part.removeprefix("domain:"))
    path = str(call.args.get("file_path") or call.args.get("notebook_path") or call.args.get("path") or "")
    return bool(path) and _gitignore(part, plan, call.folder).fullmatch(_absolute(path, call.folder)) is not None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


@lru_cache(maxsize=1024)
def _command(part: str) -> re.Pattern[str]:
    head = part.removesuffix(":*").removesuffix(" *")
    prefix = r"(?: .*)?" if head != part else ""
    return re.compile(".*".join(map(re.escape, head.split("*"))) + prefix, re.DOTALL)


def _absolute(path: str, folder: str) -> str:
    home = path.replace("~", str(Path.home()), 1) if path.startswith("~") else path
    return home if home.startswith("/") else f"{folder}/{home.removeprefix('./')}"


def _gitignore(part: str, plan: ImportPlan, folder: str) -> re.Pattern[str]:
    body = part.rstrip("/")
    if body.startswith("//"):
        base, body = "", body[2:]
    elif body.startswith("~/"):
        base, body = str(Path.home()), body[2:]
    elif body.startswith("/"):
        base, body = str(plan.root), body[1:]
    else:
        anchored = "/" in body
        base, body = folder, body.removeprefix("./") if anchored else f"**/{body.removeprefix('./')}"
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", body)
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(re.escape(base) + "/" + "".join(signs.get(one, re.escape(one)) for one in pieces) + "(?:/.*)?", re.DOTALL)


def _opencode(plan: ImportPlan, call: PastCall) -> str:
    """Return the last entry that matches; without one a call is allowed there."""
    args = arguments_here(call.tool, call.args)
    value = str(args.get("command") or args.get("path") or args.get("url") or "*")
    value = value.removeprefix(f"{call.folder}/")
    kind = {"write": "edit", "patch": "edit", "multiedit": "edit"}.get(call.tool, call.tool)
    decision = "allow"
    for item in plan.items:
        match = re.fullmatch(r'permission (\S+) "(.*)": (\w+)', item.original, re.DOTALL)
        if match and fnmatchcase(kind, match[1]) and (fnmatchcase(value, match[2]) or fnmatchcase(f"{value} ", match[2])):
            decision = match[3] if match[3] in SEVERITY else "ask"
        if item.original == f"tools {call.tool}: false":
            decision = "deny"
    return decision

"""The checkers of one step: run before its first edit, and after its last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from fnmatch import fnmatchcase

from moryflow_sdk import ToolCall, ToolError, ToolResult, Turn
from moryflow_sdk.support.texts import visible

from . import EDITS, Checker, checkers
from .run import PrintedProblem, new_problems, read_problems, run

MAX_LINES, MAX_WIDTH = 10, 240
# More problems than this are not compared: their keys are kept with the session.
MAX_PROBLEMS = 1000
# Lines of a formatter's diff that are shown, and of a file whose lines are compared.
SHOWN, MAX_COMPARED = 16, 3000
MAX_BYTES = 4 * 1024 * 1024


async def before_edit(turn: Turn, paths: Sequence[str]) -> None:
    """Note the problems of files that are about to be edited, unless this step has noted them."""
    step = turn.state.get("step")
    if step is None or step["node"] != turn.node:
        step = {"node": turn.node, "seen": [], "edited": [], "before": {}}
    unseen = [path for path in paths if path not in step["seen"]]
    step["seen"] += unseen
    turn.state["step"] = step
    named = {key: one for key, one in _named(turn).items() if not one.formatter and _fits(one, unseen)}
    named = {key: one for key, one in named.items() if "{files}" in one.words or key not in step["before"]}
    for key, found in zip(named, await _run_all(turn, named.values(), unseen), strict=True):
        known = step["before"].get(key, [])
        step["before"][key] = None if found is None or known is None else known + [list(problem.keys) for problem in found]


async def after_edit(call: ToolCall, result: ToolResult, turn: Turn, paths: Sequence[str]) -> ToolResult | None:
    """Note an edit that was made; after the step's last one, format and check all that it edited."""
    step = turn.state.get("step")
    if step is None or step["node"] != turn.node:
        return None
    if result.status == "ok":
        step["edited"] = list(dict.fromkeys([*step["edited"], *paths]))
    if not await _is_last(call, turn):
        return None
    turn.state.pop("step")
    if not step["edited"] or turn.cancelled:
        return None
    shown: list[str] = []
    named = _named(turn)
    for one in named.values():
        if one.formatter:
            shown += await _format(turn, one, step["edited"])
    # Where the state before is not known, nothing could be called new.
    compared = {key: one for key, one in named.items() if step["before"].get(key) is not None and _fits(one, step["edited"])}
    lines: list[str] = []
    every = await _run_all(turn, compared.values(), step["edited"])
    for (key, one), found in zip(compared.items(), every, strict=True):
        lines += [_line(one, problem) for problem in new_problems(step["before"][key], found or [])]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"and {len(lines) - MAX_LINES + 1} more new problems"]
    if not shown and not lines:
        return None
    diff = result.metadata.get("diff")
    metadata = {**result.metadata, "diff": "\n".join([diff, *shown])} if isinstance(diff, str) and shown else result.metadata
    return result.replace(output="\n".join([result.output.rstrip("\n"), *shown, *lines]), metadata=metadata)


async def _is_last(call: ToolCall, turn: Turn) -> bool:
    """Whether no edit follows in the model's answer. A later one that is refused also ends here."""
    calls = next((node.payload["calls"] for node in reversed(await turn.history.path()) if node.id == turn.node), ())
    edits = [each["id"] for each in calls if each["name"] in EDITS]
    return not edits or edits[-1] == call.id


def _named(turn: Turn) -> dict[str, Checker]:
    return {str(place): one for place, one in enumerate(checkers(turn.config)) if not _said(turn, one, "hung")}


def _fits(one: Checker, paths: Sequence[str]) -> list[str]:
    return [path for path in paths if any(_matches(path, glob) for glob in one.globs)]


def _matches(path: str, glob: str) -> bool:
    return fnmatchcase(path, glob) or ("/" not in glob and fnmatchcase(path.rpartition("/")[2], glob))


async def _run_all(turn: Turn, named: Iterable[Checker], paths: Sequence[str]) -> list[list[PrintedProblem] | None]:
    return list(await asyncio.gather(*(_run_one(turn, one, paths) for one in named)))


async def _run_one(turn: Turn, one: Checker, paths: Sequence[str]) -> list[PrintedProblem] | None:
    there = [path for path in _fits(one, paths) if (turn.vault / path).is_file()]
    if "{files}" in one.words and not there:
        return []
    ran = await run(turn, one.words, there)
    found = read_problems(ran.output, turn.vault)
    failed = ran.failed or (f"exit code {ran.code}: {_first(ran.output)}" if ran.code and not found else "")
    if not failed and len(found) > MAX_PROBLEMS:
        failed = f"it found more than {MAX_PROBLEMS} problems, too many to compare"
    if failed:
        _fail(turn, one, failed, ran.hung)
        return None
    return found


async def _format(turn: Turn, one: Checker, paths: Sequence[str]) -> list[str]:
    """Run a formatter, and return what it changed for the model. If it fails, the files are as before."""
    old = {path: data for path in _fits(one, paths) if (data := _content(turn, path)) is not None}
    if not old:
        return []
    ran = await run(turn, one.words, list(old))
    new = {path: _content(turn, path) for path in old}
    changed = [path for path in old if new[path] != old[path]]
    if ran.failed or ran.code:
        for path in changed:
            turn.files.write(turn.files.resolve(path, domain="edit"), old[path])
        _fail(turn, one, ran.failed or f"exit code {ran.code}: {_first(ran.output)}", ran.hung)
        return []
    return [line for path in changed for line in _diff(one, path, old[path], new[path] or b"")]


def _content(turn: Turn, path: str) -> bytes | None:
    try:
        return turn.files.read(turn.files.resolve(path, domain="edit"), limit=MAX_BYTES)
    except ToolError:
        return None


def _diff(one: Checker, path: str, old: bytes, new: bytes) -> list[str]:
    before, after = (data.decode("utf-8", "replace").splitlines() for data in (old, new))
    head = f"{visible(path)}: formatted by {one.name}"
    if len(before) + len(after) > MAX_COMPARED:
        return [f"{head}; read it again before you edit it"]
    lines = list(unified_diff(before, after, n=0, lineterm=""))[2:]
    count = sum(line[:1] == "+" for line in lines) or sum(line[:1] == "-" for line in lines)
    cut = len(lines) > SHOWN or any(len(line) > MAX_WIDTH for line in lines)
    head += f", {count} {'line' if count == 1 else 'lines'}" if count else ", only the ends of lines"
    head += "; read it again before you edit it" if cut else ""
    return [head, *(line[:MAX_WIDTH] for line in lines[:SHOWN])]


def _line(one: Checker, problem: PrintedProblem) -> str:
    return visible(f"new problem ({one.name}): {problem.file}:{problem.line}: {problem.text}")[:MAX_WIDTH]


def _first(output: str) -> str:
    return next((line.strip()[:160] for line in output.splitlines() if line.strip()), "it printed nothing")


def _fail(turn: Turn, one: Checker, why: str, hung: bool) -> None:
    """Say once in the session that a checker failed. One that hung would hold up every edit, so it is not run again."""
    if not _said(turn, one, "failed", "hung"):
        turn.emit("notice", text=f"the checker {one.name} failed and changed nothing: {visible(why)}")
    turn.session_state[one.name] = "hung" if hung else "failed"


def _said(turn: Turn, one: Checker, *outcomes: str) -> bool:
    return turn.session_state.get(one.name) in outcomes

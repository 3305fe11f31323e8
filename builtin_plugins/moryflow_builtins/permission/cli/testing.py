"""``permission test``: judge examples from a file and compare with what was expected."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
from moryflow_sdk import CommandContext, Rule, Tool, Turn

from moryflow_builtins.permission.policy import Policy

from .prediction import MODES, JudgedPlace, outcome, verdict_of
from .rule_input import read_rules
from .text import table

_DECISIONS = ("allow", "ask", "deny", "stop")
_WORDS = {"ask": "agent"}


class BadLine(ValueError):
    """A line that is no example."""


@dataclass(frozen=True)
class Example:
    """One line of the file."""

    id: str
    tool: str
    args: Mapping[str, Any]
    rules: object = None
    mode: str = "agent"
    headless: bool = False
    vault: str | None = None
    home: str | None = None
    expect: str | None = None


class Examples:
    """Judges examples; turns and policies that several of them share are made once."""

    def __init__(self, context: CommandContext, turns: AsyncExitStack) -> None:
        self._context = context
        self._opened = turns
        self._tools: Mapping[str, Tool] = context.tools
        self._turns: dict[str | None, Turn] = {}
        self._policies: dict[tuple[str | None, str | None, str], tuple[JudgedPlace, Policy]] = {}

    async def judge(self, example: Example) -> tuple[str, str]:
        """Return decision and cause.

        :raises BadLine: there is no such tool, or a rule that is none.
        """
        tool = self._tools.get(example.tool)
        if tool is None:
            raise BadLine(f"there is no tool {example.tool!r}; `moryflow tool list` names them")
        place, policy = await self._placed(example)
        verdict = verdict_of(place, policy, self._context, tool, example.args)
        decision, cause = outcome(verdict, mode=example.mode, headless=example.headless)
        return "deny" if decision == "stop" else decision, cause

    async def _placed(self, example: Example) -> tuple[JudgedPlace, Policy]:
        key = (example.vault, example.home, json.dumps(example.rules))
        if key not in self._policies:
            place = JudgedPlace(await self._turn(example), example.home)
            self._policies[key] = place, place.policy(_rules(place, example))
        return self._policies[key]

    async def _turn(self, example: Example) -> Turn:
        if example.vault not in self._turns:
            vault = Path(example.vault).resolve() if example.vault else None
            self._turns[example.vault] = await self._opened.enter_async_context(self._context.turn(vault=vault))
        return self._turns[example.vault]


def _rules(place: JudgedPlace, example: Example) -> Sequence[Rule]:
    if example.rules is None:
        return place.turn.rules.all()
    try:
        return read_rules(example.rules)
    except ValueError as problem:
        raise BadLine(str(problem)) from problem


@click.command()
@click.argument("file", type=click.File("rb"))
@click.pass_obj
def command(context: CommandContext, file: Any) -> None:
    """Judge the calls in FILE (JSON Lines; - is standard input) and compare each with its `expect`.

    A line is {"id", "tool", "args"} and where wanted "rules" (in place of yours, on top of the defaults), "mode",
    "headless", "vault", "home" and "expect". Exit code 3 when one is judged otherwise, or is no such line; that one is
    named with file and line, its decision is null and its cause bad_line.
    """
    results: list[dict[str, Any]] = []
    began = time.perf_counter()

    async def work(_: Turn) -> None:
        async with AsyncExitStack() as turns:
            examples = Examples(context, turns)
            for number, line in enumerate(file, 1):
                if line.strip():
                    results.append(await _judged(examples, f"{file.name}:{number}", line))
                    if context.as_json:
                        context.print(results[-1])

    context.run(work)
    seconds = time.perf_counter() - began
    failed = sum(not result["ok"] for result in results)
    summary = {"type": "summary", "passed": len(results) - failed, "failed": failed}
    lines = [*table(map(_row, results)), f"{len(results) - failed} passed, {failed} failed in {seconds:.2f} s"]
    context.print(summary, text="\n".join(lines))
    sys.stdout.flush()
    if failed:
        raise SystemExit(3)


async def _judged(examples: Examples, where: str, line: bytes) -> dict[str, Any]:
    """Judge one line; one that cannot be judged is named and the others still count."""
    number = where.rpartition(":")[2]
    result: dict[str, Any] = {"id": f"line {number}", "decision": None, "cause": "bad_line", "expect": None, "ok": False}
    try:
        raw = _object(line)
        result |= {"id": raw.get("id", result["id"]), "expect": raw.get("expect")}
        example = read_example(raw, str(result["id"]))
        decision, cause = await examples.judge(example)
    except BadLine as problem:
        return {**result, "where": where, "line": int(number), "error": str(problem)}
    expect = "deny" if example.expect == "stop" else example.expect
    return {**result, "decision": decision, "cause": cause, "ok": expect in (None, decision)}


def _object(line: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadLine(f'a line is an object like {{"id": "a", "tool": "read", "args": {{}}}}, not {line.decode()[:40].strip()}')
    return cast("dict[str, Any]", raw)


def read_example(raw: Mapping[str, Any], name: str) -> Example:
    """Return what a line says.

    :raises BadLine: it says something that no line may.
    """
    tool, args = raw.get("tool"), raw.get("args", {})
    if not isinstance(tool, str):
        raise BadLine('"tool" must name a tool')
    if not isinstance(args, dict):
        raise BadLine('"args" must be an object')
    given = raw.get("mode", "agent")
    mode = _WORDS.get(given, given) if isinstance(given, str) else given
    if mode not in MODES:
        raise BadLine(f'"mode" is agent or full_access, not {given!r}')
    if raw.get("expect") not in (None, *_DECISIONS):
        raise BadLine(f'"expect" is allow, ask or deny, not {raw["expect"]!r}')
    if not isinstance(raw.get("headless", False), bool):
        raise BadLine('"headless" is true or false')
    return Example(
        id=name,
        tool=tool,
        args=cast("dict[str, Any]", args),
        rules=raw.get("rules"),
        mode=mode,
        headless=raw.get("headless", False),
        vault=_folder(raw, "vault"),
        home=_folder(raw, "home"),
        expect=raw.get("expect"),
    )


def _folder(raw: Mapping[str, Any], key: str) -> str | None:
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
        raise BadLine(f'"{key}" is an absolute path')
    return value.rstrip("/") or "/"


def _row(result: Mapping[str, Any]) -> Sequence[str]:
    mark = "ok" if result["ok"] else "FAILED"
    expected = f"expected {result['expect']}" if result["expect"] and not result["ok"] else ""
    error = f"{result['where']}: {result['error']}" if "error" in result else expected
    return [mark, str(result["id"]), str(result["decision"] or "-"), str(result["cause"]), error]

"""``permission test``: judge examples from a file and compare with what was expected."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from moryflow_sdk import CommandContext, Tool, Turn
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from moryflow_builtins.permission.policy import Policy

from .call_judge import CallJudge, outcome
from .rule_text import read_rules, table


class BadLine(ValueError):
    """A line that is no example."""


def _folder(text: str) -> str:
    if not Path(text).is_absolute() or "\0" in text:
        raise ValueError("must be an absolute path")
    return text.rstrip("/") or "/"


_Folder = Annotated[StrictStr, AfterValidator(_folder)]


class Example(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(frozen=True)

    tool: StrictStr
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    rules: Any = None
    mode: Literal["agent", "full_access", "ask"] = "agent"
    headless: StrictBool = False
    vault: _Folder | None = None
    home: _Folder | None = None
    expect: Literal["allow", "ask", "deny", "stop"] | None = None


class Examples:
    """Judges examples; turns and policies that several of them share are made once."""

    def __init__(self, context: CommandContext, turns: AsyncExitStack) -> None:
        self._context = context
        self._opened = turns
        self._tools: Mapping[str, Tool] = context.tools
        self._turns: dict[str | None, Turn] = {}
        self._policies: dict[tuple[str | None, str | None, str], tuple[CallJudge, Policy]] = {}

    async def judge(self, example: Example) -> tuple[str, str]:
        """Return decision and cause.

        :raises BadLine: there is no such tool, or a rule that is none.
        """
        tool = self._tools.get(example.tool)
        if tool is None:
            raise BadLine(f"there is no tool {example.tool!r}; `moryflow tool list` names them")
        judge, policy = await self._policy(example)
        mode = "agent" if example.mode == "ask" else example.mode
        decision, cause = outcome(judge.verdict(policy, tool, example.args), mode=mode, headless=example.headless)
        return "deny" if decision == "stop" else decision, cause

    async def _policy(self, example: Example) -> tuple[CallJudge, Policy]:
        key = (example.vault, example.home, json.dumps(example.rules))
        if key not in self._policies:
            judge = CallJudge(await self._turn(example.vault), self._context, example.home)
            try:
                rules = judge.turn.rules.all() if example.rules is None else read_rules(example.rules)
            except ValueError as problem:
                raise BadLine(str(problem)) from problem
            self._policies[key] = judge, judge.policy(rules)
        return self._policies[key]

    async def _turn(self, vault: str | None) -> Turn:
        if vault not in self._turns:
            where = Path(vault).resolve() if vault else None
            self._turns[vault] = await self._opened.enter_async_context(self._context.turn(vault=where))
        return self._turns[vault]


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
                    results.append(await _result(examples, f"{file.name}:{number}", line))
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


async def _result(examples: Examples, where: str, line: bytes) -> dict[str, Any]:
    """Judge one line; one that cannot be judged is named and the others still count."""
    number = where.rpartition(":")[2]
    result: dict[str, Any] = {"id": f"line {number}", "decision": None, "cause": "bad_line", "expect": None, "ok": False}
    try:
        raw = _object(line)
        result |= {"id": raw.get("id", result["id"]), "expect": raw.get("expect")}
        example = Example.model_validate(raw)
        decision, cause = await examples.judge(example)
    except BadLine as problem:
        return {**result, "where": where, "line": int(number), "error": str(problem)}
    except ValidationError as error:
        first = error.errors()[0]
        return {**result, "where": where, "line": int(number), "error": f'"{first["loc"][0]}": {first["msg"]}'}
    expect = "deny" if example.expect == "stop" else example.expect
    return {**result, "decision": decision, "cause": cause, "ok": expect in (None, decision)}


def _object(line: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadLine(f'a line is an object like {{"id": "a", "tool": "read", "args": {{}}}}, not {line.decode()[:40].strip()}')
    return raw


def _row(result: Mapping[str, Any]) -> Sequence[str]:
    mark = "ok" if result["ok"] else "FAILED"
    expected = f"expected {result['expect']}" if result["expect"] and not result["ok"] else ""
    error = f"{result['where']}: {result['error']}" if "error" in result else expected
    return [mark, str(result["id"]), str(result["decision"] or "-"), str(result["cause"]), error]

"""``permission test``: judge calls without running them, by any rules, in any vault and home.

All decisions come from :mod:`moryflow_builtins.permission.verdict`, as those of the gate do, so a prediction comes true.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import click
from moryflow_sdk import CommandContext, Deny, Rule, Target, Tool, ToolCall, ToolError, Turn, Verdict
from moryflow_sdk.calls import command_in
from moryflow_sdk.support import texts
from moryflow_sdk.support.rule_entries import read_entries
from moryflow_sdk.verdicts import Decision as Outcome
from moryflow_sdk.verdicts import settle
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from moryflow_builtins.permission.policy import Policy, escape_path, shortened
from moryflow_builtins.permission.shell import MAX_BYTES
from moryflow_builtins.permission.verdict import decide, policy_of

MODES = ("agent", "full_access")


class CallJudge(NamedTuple):
    """Judges calls in one vault and one home.

    :param turn: a turn in the vault.
    :param context: knows the tools.
    :param user_home: the folder that ``~`` stands for; ``None`` for the real one.
    """

    turn: Turn
    context: CommandContext
    user_home: str | None = None

    def policy(self, rules: Sequence[Rule]) -> Policy:
        """Return the policy here, with `rules` instead of the configured ones."""
        home = Path(self.user_home) / ".moryflow" if self.user_home else None
        return policy_of(self.turn, [*map(self._with_user_home, rules)], home=home, resolve=self._resolve)

    def verdict(self, policy: Policy, tool: Tool, args: Mapping[str, Any]) -> Verdict:
        """Judge a call; arguments that the tool does not accept are denied with the cause ``invalid_input``."""
        try:
            call = self._call(tool, args)
        except ToolError as error:
            return Deny(str(error), cause="invalid_input")
        return decide(policy, call).verdict

    def _call(self, tool: Tool, args: Mapping[str, Any]) -> ToolCall:
        call = self.context.prepare(tool.name, args, self.turn)
        for problem in (unacceptable(asked.value, asked.kind) for asked in tool.target_requests(call.args)):
            if problem:
                raise ToolError(problem, code="invalid_args")
        return call.replace(targets=tuple(map(self._target_at_home, call.targets))) if self.user_home else call

    def _resolve(self, path: str, domain: str, base: str | None = None) -> Target:
        """Resolve a path as the host does, with `user_home` for ``~``."""
        if self.user_home is None or not _starts_at_home(path):
            return self.turn.files.resolve(path, domain=domain, base=base)
        target = self.turn.files.resolve(self.user_home + path[1:], domain=domain, base=base)
        return target if target.error else target.replace(given=path)

    def _target_at_home(self, target: Target) -> Target:
        if target.folder is not None and target.folder.given[:1] == "~":
            return command_in(self._resolve(target.folder.given, "read"), target.given, target.domain)
        return self._resolve(target.given, target.domain) if target.kind == "file" and target.given[:1] == "~" else target

    def _with_user_home(self, rule: Rule) -> Rule:
        kind, body = ("fs:", rule.pattern[3:]) if rule.pattern.startswith("fs:") else ("", rule.pattern)
        if self.user_home is None or rule.domain not in ("read", "edit") or not _starts_at_home(body):
            return rule
        return rule.replace(pattern=f"{kind}{escape_path(self.user_home)}{body[1:]}")


def _starts_at_home(path: str) -> bool:
    return path == "~" or path.startswith("~/")


def unacceptable(value: str, kind: str) -> str:
    """Return why no tool accepts `value`; empty if tools do."""
    if "\0" in value:
        return "a NUL character in the input"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return "the input is not valid Unicode"
    if kind == "shell" and len(value.encode()) > MAX_BYTES:
        return f"a command over {MAX_BYTES // 1024} KiB"
    return ""


def outcome(verdict: Verdict, *, mode: str, headless: bool) -> tuple[Outcome, str]:
    """Return the decision that a verdict leads to in `mode`, and its cause; `headless`: nobody can be asked."""
    settled = settle(verdict, mode=mode, headless=headless)
    if settled == verdict.decision:
        return settled, getattr(verdict, "cause", "policy")
    return settled, "mode" if settled == "allow" else "headless"


class BadLine(ValueError):
    """A line of the file is not a valid example."""


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
    """Judges examples; turns and policies that several examples share are created once."""

    def __init__(self, context: CommandContext, turns: AsyncExitStack) -> None:
        self._context = context
        self._opened = turns
        self._tools: Mapping[str, Tool] = context.tools
        self._turns: dict[str | None, Turn] = {}
        self._policies: dict[tuple[str | None, str | None, str], tuple[CallJudge, Policy]] = {}

    async def judge(self, example: Example) -> tuple[str, str]:
        """Return the decision about an example, and its cause.

        :raises BadLine: there is no such tool, or a rule is invalid.
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


@click.command("test")
@click.argument("file", type=click.File("rb"))
@click.pass_obj
def judge_examples(context: CommandContext, file: Any) -> None:
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
    """Return the result for one line; the result of a bad line names the line and the error."""
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


def read_rules(rows: object) -> list[Rule]:
    """Return the rules in `rows` as rules of the user.

    An entry that the configuration keeps as a question, such as one with an unknown key, is kept as a question here too.

    :raises ValueError: an entry is not a rule.
    """
    if not isinstance(rows, list):
        raise ValueError("the rules must be a list")
    entries = cast("list[Any]", rows)
    for index, row in enumerate(entries):
        if not isinstance(row, Mapping):
            raise ValueError(f"rule {index} is not an object")
        try:
            Rule.model_validate({key: cast("Mapping[str, Any]", row).get(key) for key in ("domain", "pattern", "decision")})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"rule {index}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return read_entries(entries, "user")[0]


def visible(text: str, limit: int = 0) -> str:
    """Return `text` on one line, with control and invisible characters spelled out, cut to `limit` characters."""
    return texts.visible(shortened(text, limit) if limit else text)


def table(rows: Iterable[Sequence[object]], *, indent: str = "", limit: int = 120) -> list[str]:
    """Return `rows` as lines with aligned columns; a row that is wider than the terminal is wrapped."""
    return texts.aligned(([visible(str(cell), limit) for cell in row] for row in rows), texts.stdout_width(), indent)

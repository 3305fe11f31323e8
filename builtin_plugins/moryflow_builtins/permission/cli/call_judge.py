"""Judge calls without running them, by any rules, in any vault and home.

Decisions come from :mod:`moryflow_builtins.permission.verdict` alone, so that what is predicted is what happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moryflow_sdk import CommandContext, Deny, Rule, Target, Tool, ToolCall, ToolError, Turn, Verdict
from moryflow_sdk.targets import command_in
from moryflow_sdk.verdicts import Decision as Outcome
from moryflow_sdk.verdicts import settle

from moryflow_builtins.permission.defaults import escape_path
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import MAX_BYTES
from moryflow_builtins.permission.verdict import decide, policy_of

MODES = ("agent", "full_access")


@dataclass(frozen=True)
class CallJudge:
    """Judges calls of one place.

    :param turn: a turn in the vault.
    :param context: knows the tools.
    :param user_home: what ``~`` stands for; ``None`` is the real one.
    """

    turn: Turn
    context: CommandContext
    user_home: str | None = None

    def policy(self, rules: Sequence[Rule]) -> Policy:
        """Return what holds here with `rules` in place of the configured ones."""
        home = Path(self.user_home) / ".moryflow" if self.user_home else None
        return policy_of(self.turn, [*map(self._here, rules)], home=home, resolve=self._resolve)

    def verdict(self, policy: Policy, tool: Tool, args: Mapping[str, Any]) -> Verdict:
        """Judge a call; arguments that no tool would accept are denied with cause ``invalid_input``."""
        try:
            call = self._call(tool, args)
        except ToolError as error:
            return Deny(str(error), cause="invalid_input")
        return decide(policy, call).verdict

    def _call(self, tool: Tool, args: Mapping[str, Any]) -> ToolCall:
        """Return the call as gates would see it.

        :raises ToolError: no tool would accept the arguments.
        """
        call = self.context.prepare(tool.name, args, self.turn)
        for problem in (unacceptable(asked.value, asked.kind) for asked in tool.target_requests(call.args)):
            if problem:
                raise ToolError(problem, code="invalid_args")
        return call.replace(targets=tuple(map(self._at_home, call.targets))) if self.user_home else call

    def _resolve(self, path: str, domain: str, base: str | None = None) -> Target:
        """Resolve a path as the host does, with ``~`` as it stands here."""
        if self.user_home is None or not _starts_at_home(path):
            return self.turn.files.resolve(path, domain=domain, base=base)
        target = self.turn.files.resolve(self.user_home + path[1:], domain=domain, base=base)
        return target if target.error else target.replace(given=path)

    def _at_home(self, target: Target) -> Target:
        """Return `target` with ``~`` as it stands here."""
        if target.folder is not None and target.folder.given[:1] == "~":
            return command_in(self._resolve(target.folder.given, "read"), target.given, target.domain)
        return self._resolve(target.given, target.domain) if target.kind == "file" and target.given[:1] == "~" else target

    def _here(self, rule: Rule) -> Rule:
        """Return `rule` with the home of this place for its ``~``."""
        kind, body = ("fs:", rule.pattern[3:]) if rule.pattern.startswith("fs:") else ("", rule.pattern)
        if self.user_home is None or rule.domain not in ("read", "edit") or not _starts_at_home(body):
            return rule
        return rule.replace(pattern=f"{kind}{escape_path(self.user_home)}{body[1:]}")


def _starts_at_home(path: str) -> bool:
    return path == "~" or path.startswith("~/")


def unacceptable(value: str, kind: str) -> str:
    """Return why no tool would accept `value`; empty when one would."""
    if "\0" in value:
        return "a NUL character in the input"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return "the input is not valid Unicode"
    if kind == "shell" and len(value.encode()) > MAX_BYTES:
        return f"a command over {MAX_BYTES // 1024} KiB"
    return ""


def outcome(verdict: Verdict, *, mode: str, headless: bool) -> tuple[Outcome, str]:
    """Return what a verdict comes to, and its cause."""
    settled = settle(verdict, mode=mode, headless=headless)
    if settled == verdict.decision:
        return settled, getattr(verdict, "cause", "policy")
    return settled, "mode" if settled == "allow" else "headless"

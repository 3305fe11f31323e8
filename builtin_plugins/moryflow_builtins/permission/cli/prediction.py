"""Judge without running: policies for any rules, vault and home, and calls as the gate would see them.

Decisions come from :mod:`moryflow_builtins.permission.gate` alone, so that what is predicted is what happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moryflow_sdk import CommandContext, Deny, Rule, Target, Tool, ToolCall, ToolError, Turn, Verdict
from moryflow_sdk.git_files import named_by_git
from moryflow_sdk.targets import command_in
from moryflow_sdk.verdicts import Decision as Outcome
from moryflow_sdk.verdicts import settle

from moryflow_builtins.permission.defaults import default_rules, escape_path
from moryflow_builtins.permission.gate import decide, hidden_files
from moryflow_builtins.permission.policy import Policy, make_policy
from moryflow_builtins.permission.shell import MAX_BYTES

MODES = ("agent", "full_access")


@dataclass(frozen=True)
class JudgedPlace:
    """Where a call is judged.

    :param turn: a turn in the vault.
    :param user_home: what ``~`` stands for; ``None`` is the real one.
    """

    turn: Turn
    user_home: str | None = None

    @property
    def home(self) -> Path:
        """Moryflow's own folder there."""
        return Path(self.user_home) / ".moryflow" if self.user_home else self.turn.home

    def resolve(self, path: str, domain: str, base: str | None = None) -> Target:
        """Resolve a path as the host does, with ``~`` as it stands here."""
        if self.user_home is None or not (path == "~" or path.startswith("~/")):
            return self.turn.files.resolve(path, domain=domain, base=base)
        target = self.turn.files.resolve(self.user_home + path[1:], domain=domain, base=base)
        return target if target.error else target.replace(given=path)

    def policy(self, rules: Sequence[Rule]) -> Policy:
        """Return what holds here with `rules` in place of the configured ones."""
        servers = tuple(getattr(self.turn.config, "servers", ()))
        configured = (*default_rules(str(self.home), servers, named_by_git(self.turn.vault)), *map(self._here, rules))
        return make_policy(
            configured,
            home=self.home,
            vault=self.turn.vault,
            resolve=self.resolve,
            agent=self.turn.agent.rules,
            watched=self.turn.watched,
            hides=hidden_files(self.turn),
        )

    def _here(self, rule: Rule) -> Rule:
        """Return `rule` with the home of this place for its ``~``."""
        kind, body = ("fs:", rule.pattern[3:]) if rule.pattern.startswith("fs:") else ("", rule.pattern)
        if self.user_home is None or rule.domain not in ("read", "edit") or not (body == "~" or body.startswith("~/")):
            return rule
        return rule.replace(pattern=f"{kind}{escape_path(self.user_home)}{body[1:]}")

    def call(self, context: CommandContext, tool: Tool, args: Mapping[str, Any]) -> ToolCall:
        """Return the call as gates would see it.

        :raises ToolError: no tool would accept the arguments.
        """
        call = context.prepare(tool.name, args, self.turn)
        problem = next(
            filter(None, (unacceptable(request.value, request.kind) for request in tool.target_requests(call.args))), ""
        )
        if problem:
            raise ToolError(problem, code="invalid_args")
        if self.user_home is None:
            return call
        return call.replace(targets=tuple(map(self._at_home, call.targets)))

    def _at_home(self, target: Target) -> Target:
        """Return `target` with ``~`` as it stands here."""
        if target.folder is not None and target.folder.given[:1] == "~":
            return command_in(self.resolve(target.folder.given, "read"), target.given, target.domain)
        return self.resolve(target.given, target.domain) if target.kind == "file" and target.given[:1] == "~" else target


def unacceptable(value: str, kind: str) -> str:
    """Return why no tool would accept `value`; empty when one would."""
    if "\0" in value:
        return "a NUL character in the input"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return "the input is not valid Unicode"
    if kind == "shell" and len(value.encode()) > MAX_BYTES:
        return f"a command over {MAX_BYTES // 1024} KiB"
    return ""


def verdict_of(place: JudgedPlace, policy: Policy, context: CommandContext, tool: Tool, args: Mapping[str, Any]) -> Verdict:
    """Judge a call; arguments that no tool would accept are denied with cause ``invalid_input``."""
    try:
        call = place.call(context, tool, args)
    except ToolError as error:
        return Deny(str(error), cause="invalid_input")
    return decide(policy, call).verdict


def outcome(verdict: Verdict, *, mode: str, headless: bool) -> tuple[Outcome, str]:
    """Return what a verdict comes to, and its cause."""
    settled = settle(verdict, mode=mode, headless=headless)
    if settled == verdict.decision:
        return settled, getattr(verdict, "cause", "policy")
    return settled, "mode" if settled == "allow" else "headless"

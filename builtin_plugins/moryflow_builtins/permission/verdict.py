"""From a call to a verdict: every target is judged, the most severe judgement counts. The gate and every command use this.

The judge of commands, the URL parser and the sandbox are imported where they are used, because only some calls need them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import Allow, Ask, Remember, Rule, Target, ToolCall, Turn, Verdict
from moryflow_sdk.support.patterns import escape
from moryflow_sdk.support.protected_files import named_by_git

from .files import is_folder, judge_file, judge_folder
from .policy import (
    Decision,
    Judgement,
    Policy,
    Resolve,
    decision_of,
    default_rules,
    escape_path,
    make_policy,
    stored_rule_answers,
    text_probe,
)

if TYPE_CHECKING:
    from moryflow_sdk.support.urls import Url

# Commands up to this many characters are judged on the event loop, longer ones in a thread.
INLINE_COMMAND = 2048


def policy_of(
    turn: Turn, rules: Sequence[Rule] | None = None, *, home: Path | None = None, resolve: Resolve | None = None
) -> Policy:
    """Return the policy that applies in `turn` now.

    :param rules: use these rules instead of the configured ones (``permission test``).
    :param home: Moryflow's own folder, if not the turn's.
    :param resolve: resolves paths, if ``~`` stands for another home.
    """
    files, home = turn.files, home or turn.home
    resolve = resolve or (lambda path, domain, base: files.resolve(path, domain=domain, base=base))
    configured = turn.rules.all() if rules is None else rules
    defaults = default_rules(str(home), tuple(getattr(turn.config, "servers", ())), named_by_git(turn.vault))
    places = {"home": home, "vault": turn.vault, "watched": turn.watched, "confined": confinement_of(turn)}
    return make_policy((*defaults, *configured), **places, resolve=resolve, agent=turn.agent.rules)


def decide(policy: Policy, call: ToolCall) -> Decision:
    """Judge a call."""
    parts = [part for target in call.targets for part in judge_target(policy, target).parts]
    if call.source and Path(call.source).parent == policy.home / "tools":
        parts = [_consented(part) for part in parts]
    return decision_of([*parts, *_judge_arrivals(policy, call.targets)])


def _consented(part: Judgement) -> Judgement:
    """Allow the user's own tool, which asks only because it names no domain: its file was allowed before it was loaded."""
    by_default = part.domain == "tool" and part.decision == "ask" and part.rule is not None and part.rule.source == "default"
    return part._replace(decision="allow", reason="the user allowed its file") if by_default else part


def _judge_arrivals(policy: Policy, targets: Sequence[Target]) -> Iterator[Judgement]:
    """Judge the files below a folder at the other places that a call changes: ``move`` may put the folder there."""
    edited = [target for target in targets if target.kind == "file" and target.domain == "edit" and target.error is None]
    for source in filter(is_folder, edited if len(edited) > 1 else ()):
        goals = [target for target in edited if target is not source]
        yield from (part for part in judge_folder(policy, source, goals) if part.decision != "allow")


def judge_target(policy: Policy, target: Target) -> Decision:
    """Judge one target; for a shell command, everything that it runs, reads and writes."""
    if target.kind == "file":
        below = judge_folder(policy, target) if target.domain == "edit" and is_folder(target) else ()
        return decision_of([judge_file(policy, target), *below])
    if target.error is not None or _is_malformed(target.given):
        reason = target.error or "the input holds characters that no tool accepts"
        cause = "invalid_input" if target.folder is None else "hard_limit"
        return decision_of([Judgement(target.domain, target.text, "deny", reason, cause, "never")])
    if target.kind == "shell":
        from .shell import judge_command

        folder = target.folder
        if folder is None or folder.text == "vault:/":
            return judge_command(policy, target.given)
        inside = judge_command(policy, target.given, folder.path or "")
        return decision_of((*inside.parts, judge_file(policy, folder, "read", whole=False)))
    if target.kind == "url":
        return decision_of([_judge_url(policy, target)])
    return decision_of([_with_offer(policy.by_text(target.domain, target.text), escape(target.text))])


def is_long(call: ToolCall) -> bool:
    """Whether judging `call` could block the event loop."""
    return any(
        len(target.given) > INLINE_COMMAND or _READS_FOLDERS.search(target.given)
        if target.kind == "shell"
        else target.domain == "edit" and is_folder(target)
        for target in call.targets
    )


# Words of commands that may make the judge walk a folder or a repository.
_READS_FOLDERS = re.compile(r"grep|\brg|\bag\b|\back\b|diff|\b(?:cp|scp|rsync|tar|zip|7z|git|find)\b")


def _is_malformed(text: str) -> bool:
    return "\0" in text or any("\ud800" <= char <= "\udfff" for char in text)


def _judge_url(policy: Policy, target: Target) -> Judgement:
    """Judge a URL in its canonical form.

    No rule opens an address that is not public. A local service, or an unusual port, is opened by a rule that names it.
    """
    from moryflow_sdk.support.urls import RefusedUrl, parse_url

    try:
        url = parse_url(target.given)
    except RefusedUrl as error:
        if error.service is not None:
            return _judge_service(policy, target, error.service, str(error))
        cause = "invalid_input" if error.malformed else "hard_limit"
        return Judgement(target.domain, target.text, "deny", str(error), cause, "never")
    text = f"url:{url}"
    return _with_offer(policy.by_text(target.domain, text), escape_path(text))


def _judge_service(policy: Policy, target: Target, url: Url, why: str) -> Judgement:
    """Deny a URL that is off limits, unless the last rule that matches names its scheme, host and port."""
    base, text = escape_path(str(replace(url, path="/", query=""))), f"url:{url}"
    probe = text_probe(text)
    hit = policy.configured.last(target.domain, probe)
    named = hit is not None and hit.rule.pattern.removeprefix("url:").startswith(base)
    if hit is not None and (named or hit.decision == "deny"):
        return _with_offer(policy.by_probe(target.domain, text, probe), escape_path(text))
    step = f"if it is a service that you trust: moryflow permission allow {target.domain} '{base}**'"
    return Judgement(target.domain, text, "deny", why, "hard_limit", "never", next_step=step)


def _with_offer(answer: Judgement, pattern: str) -> Judgement:
    """Return `answer` with an offer to store `pattern`, unless an agent's own rule asks: no stored rule lifts that."""
    if answer.decision != "ask" or not stored_rule_answers(answer):
        return answer
    remember = Remember(scope="user", domain=answer.domain, pattern=pattern)
    return Judgement(answer.domain, answer.target, "ask", _reason(answer), answer.cause, answer.bypass, answer.rule, remember)


def _reason(answer: Judgement) -> str:
    if answer.rule is None or answer.rule.source != "default":
        return answer.reason
    subject = answer.target.partition(":")[2]
    if answer.domain == "tool":
        return f"the tool {subject!r} declares no domain, so it is asked about"
    return f"{subject!r} is a tool of an MCP server that is not configured" if answer.domain == "mcp" else answer.reason


# ---------------------------------------------------------------- commands in a sandbox

_VAULT = "vault:"


def confinement_of(turn: Turn) -> Callable[[], bool]:
    """Return a function that says whether commands of `turn` run in a sandbox. Only judging a command asks for it."""

    @cache
    def confined() -> bool:
        from moryflow_sdk.support.sandbox import confinement, known_sandbox

        return known_sandbox() is not None and confinement(turn.rules.all()).used

    return confined


def in_sandbox(decision: Decision, tool: str, turn: Turn) -> Verdict:
    """Return the verdict of `decision`. Where a rule lets sandboxed commands run unasked, a default's question is dropped.

    A question stays if a rule of the user or of an agent asks it, if no mode lifts it, or if it is about files of the
    vault that the command names.
    """
    verdict = decision.verdict
    if tool != "bash" or not isinstance(verdict, Ask):
        return verdict
    asked = [part for part in decision.parts if part.decision == "ask"]
    named = [part for part in asked if part.domain in ("read", "edit") and part.target.startswith(f"{_VAULT}/")]
    if named:
        opens = dict.fromkeys(f"{turn.vault}{part.target.removeprefix(_VAULT)}" for part in named)
        verdict = verdict.replace(opens=tuple(opens))
    if named or verdict.bypass == "never" or any(part.rule and part.rule.source != "default" for part in asked):
        return verdict
    from moryflow_sdk.support.sandbox import confinement, known_sandbox

    from .presets import offer

    rules = turn.rules.all()
    confined, sandbox = confinement(rules), known_sandbox()
    if not confined.unasked or sandbox is None:
        return verdict.replace(offer=offer(rules, sandbox=sandbox is not None and confined.used))
    return Allow(reason="it runs in the sandbox, and a rule allows that without a question", rule=verdict.rule)

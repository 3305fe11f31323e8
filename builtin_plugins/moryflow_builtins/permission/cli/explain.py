"""``permission explain``: what happens to one input, and every rule that had a say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any, NamedTuple

import click
from moryflow_sdk import DOMAINS, CommandContext, Deny, Rule, Target, ToolError, Turn, Verdict
from moryflow_sdk.calls import command_in, target_request
from moryflow_sdk.support.patterns import compile_rule
from moryflow_sdk.support.sandbox import find_sandbox
from moryflow_sdk.verdicts import stored_words

from moryflow_builtins.permission.policy import Decision, Judgement, Policy, Probe, place_of, rule_words
from moryflow_builtins.permission.verdict import in_sandbox, judge_target, policy_of

from .calls import MODES, outcome, table, unacceptable, visible
from .lint import rule_json


class WatchedPolicy(Policy):
    """A policy that keeps which rules matched something; it judges like any other."""

    def __init__(self, *_: Any) -> None:  # a named tuple has its fields from `__new__` already
        self.matched: set[Rule] = set()
        self.asked: set[str] = set()

    def by_probe(self, domain: str, target: str, probe: Probe) -> Judgement:
        """Judge `target`, having noted every rule that `probe` takes for a match."""
        self._note(domain, probe)
        return super().by_probe(domain, target, probe)

    def by_command(self, target: str, programs: Iterable[str], probe: Probe) -> Judgement:
        """Judge a command, having noted every rule that `probe` takes for a match."""
        self._note("bash", probe)
        return super().by_command(target, programs, probe)

    def _note(self, domain: str, probe: Probe) -> None:
        self.asked.add(domain)
        self.matched.update(one.rule for rules in self.layers for one in rules.of(domain) if probe(one) is not None)


class Explanation(NamedTuple):
    """An input, judged.

    :param chain: the rules in the order they are matched, and whether each matched something.
    :param folder: where a command runs.
    """

    judged: tuple[Judgement, ...]
    verdict: Verdict
    mode: str
    chain: tuple[tuple[Rule, bool], ...] = ()
    folder: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON of it."""
        decision, cause = outcome(self.verdict, mode=self.mode, headless=False)
        return {
            "v": 1,
            "type": "decision",
            "decision": decision,
            "cause": cause,
            "reason": self.verdict.reason,
            "mode": self.mode,
            **({"folder": self.folder} if self.folder else {}),
            "targets": [*map(_target_json, self.judged)],
            "chain": [{**rule_json(rule), "matched": matched} for rule, matched in self.chain],
            "otherwise": {name: {"decision": found, "cause": why} for name, found, why in self.otherwise()},
            "remember": [item.model_dump() for item in getattr(self.verdict, "remember", ())],
        }

    def otherwise(self) -> Iterator[tuple[str, str, str]]:
        """Yield what happens in each mode, with somebody to ask and without."""
        for mode in MODES:
            yield mode, *outcome(self.verdict, mode=mode, headless=False)
        yield "headless", *outcome(self.verdict, mode=self.mode, headless=True)


@click.command("explain")
@click.argument("domain", type=click.Choice(DOMAINS), metavar="DOMAIN")
@click.argument("input_", metavar="INPUT")
@click.option(
    "--mode",
    type=click.Choice((*MODES, "ask")),  # ask: the older name of agent
    metavar=f"[{'|'.join(MODES)}]",
    help="Explain it in this mode. [default: the mode of new sessions]",
)
@click.option("--session", metavar="ID", help="Use the rules and the folder of this session.")
@click.option("--workdir", metavar="DIR", help="For a command: the folder of the vault to run it in.")
@click.pass_obj
def explain(
    context: CommandContext, domain: str, input_: str, mode: str | None, session: str | None, workdir: str | None
) -> None:
    """Show what would happen to INPUT, and why: every rule in order, and where it is written.

    DOMAIN is read, edit, bash, web_fetch, web_search, mcp, task or tool; INPUT is what the tool would get: a path, a
    command, a URL, server/tool.
    """
    if workdir is not None and domain != "bash":
        raise click.UsageError("--workdir says where a command runs; it goes with the domain bash only")
    chosen = "agent" if mode == "ask" else mode

    async def work(turn: Turn) -> Explanation:
        return explain_input(turn, domain, input_, chosen or (turn.mode if session else context.mode), workdir)

    found: Explanation = context.run(work, session=session)
    context.print(found.document(), text="\n".join(_lines(found)))


def explain_input(turn: Turn, domain: str, given: str, mode: str, workdir: str | None = None) -> Explanation:
    """Judge `given` as the gate would in `turn`; a command in the folder `workdir`."""
    if domain == "bash":
        find_sandbox()
    kind = target_request(given, domain).kind
    problem = unacceptable(given, kind)
    if problem:
        judged = Judgement(domain, f"{kind}:{given[:200]}", "deny", problem, "invalid_input", "never")
        return Explanation((judged,), Deny(problem, cause="invalid_input"), mode)
    policy = WatchedPolicy(*policy_of(turn))
    target = target_of(turn, domain, given, workdir)
    decision = judge_target(policy, target)
    policy.matched.update(part.rule for part in decision.parts if part.rule and not compile_rule(part.rule).problem)
    return Explanation(
        decision.parts,
        in_sandbox(decision, domain, turn),  # of the domain bash, the tool bash
        mode,
        tuple(_chain(policy, decision)),
        target.folder.text if target.folder is not None else None,
    )


def target_of(turn: Turn, domain: str, given: str, workdir: str | None = None) -> Target:
    """Return what a tool of `domain` that gets `given` touches.

    :raises ToolError: it is not an input for this domain.
    """
    if domain == "bash":
        return command_in(turn.files.resolve(workdir or ".", as_stored=True), given)
    kind = target_request(given, domain).kind
    if kind == "file":
        return turn.files.resolve(given, domain=domain, as_stored=True)
    if domain == "mcp" and "/" not in given:
        raise ToolError(f"{given!r} names no tool of a server", code="usage", next_step="write SERVER/TOOL")
    return Target(domain=domain, kind=kind, text=f"{kind}:{given}", given=given)


def _chain(policy: WatchedPolicy, decision: Decision) -> Iterator[tuple[Rule, bool]]:
    """Yield the rules of every domain that was asked about, in the order they are matched, and whether each matched."""
    domains = policy.asked | {part.domain for part in decision.parts}
    rules = (rule for layer in policy.layers for rule in layer.rules)
    return ((rule, rule in policy.matched) for rule in rules if rule.domain in domains or rule.problem)


def _target_json(part: Judgement) -> dict[str, Any]:
    shown = {"target": part.target, "decision": part.decision, "rule": rule_json(part.rule) if part.rule else None}
    extra = {"domain": part.domain, "reason": part.reason, "cause": part.cause, "bypass": part.bypass}
    return {**shown, **(extra if part.decision != "allow" else {"domain": part.domain})}


# ------------------------------------------------------------------------------------------------
# As text
# ------------------------------------------------------------------------------------------------


def _lines(found: Explanation) -> Iterator[str]:
    decision, cause = outcome(found.verdict, mode=found.mode, headless=False)
    yield f"{decision}  ({cause}, mode {found.mode})"
    if found.folder not in (None, "vault:/"):
        yield f"  in {visible(found.folder or '')}"
    if found.verdict.reason:
        yield f"  because {visible(found.verdict.reason)}"
    yield from ("", "targets")
    yield from table(((part.decision, part.domain, part.target, _by(part)) for part in found.judged), indent="  ")
    if found.chain:
        yield from ("", "rules, the last that matches decides ('>' matches)")
        yield from table(starmap(_row, found.chain), indent="  ")
    yield ""
    for name, otherwise, why in found.otherwise():
        yield f"{name:<12} {otherwise}  ({why})"
    for item in getattr(found.verdict, "remember", ()):
        yield f"always       stores allow {item.domain} {visible(item.sentence)}"


def _by(part: Judgement) -> str:
    return rule_words(part.rule) if part.rule else part.reason or part.cause


def _row(rule: Rule, matched: bool) -> tuple[str, ...]:
    pattern = visible(stored_words(rule.pattern, rule.folder, rule.contents), 60)
    return ">" if matched else " ", rule.domain, rule.decision, pattern, rule.source, place_of(rule)

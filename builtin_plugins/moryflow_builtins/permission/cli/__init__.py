"""``moryflow permission``: list, change and explain the rules. Other commands are in `calls` and `lint`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import starmap, takewhile
from typing import Any, NamedTuple

import click
from moryflow_sdk import DOMAINS, CommandContext, ConfigError, Deny, MoryflowError, Rule, Target, ToolError, Turn, Verdict, thaw
from moryflow_sdk.calls import command_in, target_request
from moryflow_sdk.support.patterns import compile_rule
from moryflow_sdk.support.processes import refuse_inside_tool
from moryflow_sdk.support.sandbox import find_sandbox
from moryflow_sdk.verdicts import stored_words

from moryflow_builtins.permission.policy import Decision, Judgement, Policy, Probe, place_of, rule_words
from moryflow_builtins.permission.presets import PRESETS
from moryflow_builtins.permission.verdict import in_sandbox, judge_target, policy_of

from .calls import MODES, judge_examples, outcome, table, unacceptable, visible
from .lint import lint, mistake, remarks, rule_json, trusted_program


@click.group()
def permission() -> None:
    """Explain, check, test and change what is allowed."""


for verb in (judge_examples, lint):
    permission.add_command(verb)


# Characters of a pattern that the list of rules shows.
SHOWN = 100
_EPILOG = "The rule is added at the end of yours, and the last that matches decides. Hard limits and other gates stay."


def _add_verb(decision: str, about: str) -> None:
    @permission.command(decision, help=about, epilog=_EPILOG)
    @click.argument("domain", type=click.Choice(DOMAINS), metavar="DOMAIN")
    @click.argument("pattern")
    @click.option("--workdir", metavar="DIR", help="For a command: only in this folder of the vault.")
    @click.pass_obj
    def command(context: CommandContext, domain: str, pattern: str, workdir: str | None) -> None:
        refuse_inside_tool(f"moryflow permission {decision}")
        if workdir is not None and domain != "bash":
            raise click.UsageError("--workdir says where a command runs; it goes with the domain bash only")
        rule = matchable(Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision}))
        document = context.run(lambda turn: _add(turn, rule, workdir))
        for warning in document["warnings"]:
            click.echo(visible(f"moryflow: {warning}"), err=True)
        status = "added" if document["added"] else "holds already"
        shown = visible(stored_words(pattern, document["rule"].get("folder"), {}))
        context.print(document, text=f"{status}: {decision} {domain} {shown} ({document['where']})")


_add_verb("allow", "Let calls whose target matches PATTERN run unasked; of commands, what a wildcard covers.")
_add_verb("ask", "Ask about every call whose target matches PATTERN.")
_add_verb("deny", "Refuse every call whose target matches PATTERN, in every mode.")


def matchable(rule: Rule) -> Rule:
    """Return `rule` if its pattern can match a target.

    :raises ConfigError: the pattern is invalid, or is written in a way that no target is.
    """
    pattern = compile_rule(rule)
    problem = pattern.problem or (mistake(rule, pattern) if rule.pattern.strip() else "it is empty")
    if problem:
        step = f"write it as `moryflow permission explain {rule.domain} INPUT` shows the target"
        raise ConfigError(f"the pattern {rule.pattern[:80]!r} cannot match: {problem}", next_step=step)
    return rule


async def _add(turn: Turn, rule: Rule, workdir: str | None) -> dict[str, Any]:
    if workdir is not None:
        rule = rule.replace(folder=_folder(turn, workdir))
    mine = _user_rules(turn)
    already = in_force(mine, rule)
    where = await turn.rules.append(rule, scope="user")
    row = _row(rule)
    found = remarks([*(one for one in mine if _row(one) != row), rule])
    warnings = [one.sentence for one in found if rule in (one.rule, one.by)]
    warnings += trusted_program(rule)
    return {"v": 1, "type": "rule", "added": not already, "rule": row, "where": where, "warnings": warnings}


def _folder(turn: Turn, workdir: str) -> str:
    target = command_in(turn.files.resolve(workdir or ".", as_stored=True), "")
    if target.folder is None or target.error is not None:
        raise ConfigError(f"--workdir: {target.error}", next_step="name a folder of the vault")
    return target.folder.text


def _row(rule: Rule) -> dict[str, Any]:
    bound_to = {key: thaw(value) for key in ("folder", "contents") if (value := getattr(rule, key))}
    return {"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision, **bound_to}


def _user_rules(turn: Turn) -> list[Rule]:
    return [rule for rule in turn.rules.all() if rule.source == "user"]


@permission.command("remove", epilog="A session in which a rule was granted keeps it; --session takes it from there.")
@click.argument("words", nargs=-1, required=True, metavar="RULE")
@click.option("--session", metavar="ID", help="Take back what was granted in this session.")
@click.pass_obj
def remove_rule(context: CommandContext, words: tuple[str, ...], session: str | None) -> None:
    """Remove one of your rules. RULE is its number or its words, as `moryflow permission rules` prints them."""
    refuse_inside_tool("moryflow permission remove")
    said = " ".join(" ".join(words).split())

    async def work(turn: Turn) -> list[Rule]:
        source = "user" if session is None else "session"
        found = [rule for rule in turn.rules.all() if rule.source == source and said in _spellings(rule)]
        if not found or any(_row(rule) != _row(found[0]) for rule in found):
            where = "your rules" if session is None else "what was granted in this session"
            problem = f"{len(found)} rules of yours are written {said[:80]!r}; say which by its number" if found else ""
            step = "moryflow permission rules" + (f" --session {session}" if session else "")
            raise ConfigError(problem or f"{said[:80]!r} is not among {where}", next_step=step)
        for rule in reversed(found):  # from the last one on, so the numbers of earlier rules stay valid
            await turn.rules.remove(rule)
        return found

    found: list[Rule] = context.run(work) if session is None else context.change(work, session=session)
    shown = [f"removed: {rule.decision} {rule.domain} {visible(_words(rule))} ({_place(rule)})" for rule in found]
    context.print({"v": 1, "type": "rule", "removed": [*map(rule_json, found)]}, text="\n".join(shown))


def _cells(rule: Rule) -> tuple[str, str, str, str, str]:
    number = f" {rule.index + 1}" if rule.source == "user" and rule.index is not None else ""
    return f"{rule.source}{number}", rule.domain, rule.decision, _words(rule), _place(rule)


def _spellings(rule: Rule) -> set[str]:
    """Return how the user may write `rule`: its number, the words of the list or of ``allow``, the whole line of the list."""
    cells, words = [visible(cell, SHOWN) for cell in _cells(rule)], visible(_words(rule))
    listed = (cells[0].partition(" ")[2], " ".join(cells), " ".join(cells[1:4]))
    spelled = (*listed, f"{rule.domain} {rule.decision} {words}", f"{rule.decision} {rule.domain} {words}")
    return {" ".join(one.split()) for one in spelled if one}


def _words(rule: Rule) -> str:
    return stored_words(rule.pattern, rule.folder, rule.contents)


def in_force(held: Sequence[Rule], rule: Rule) -> bool:
    """Whether `rule` is in `held`, with no later rule of its domain that decides otherwise."""
    same = [one for one in held if one.domain == rule.domain]
    return _row(rule) in map(_row, takewhile(lambda one: one.decision == rule.decision, reversed(same)))


@permission.command("rules")
@click.option("--domain", type=click.Choice(DOMAINS), help="Only rules of this domain.")
@click.option("--session", metavar="ID", help="Include what was granted in this session.")
@click.pass_obj
def list_rules(context: CommandContext, domain: str | None, session: str | None) -> None:
    """List the rules: defaults, then yours, then inline ones. The last that matches decides."""

    async def work(turn: Turn) -> list[Rule]:
        policy = policy_of(turn)
        return [rule for layer in policy.layers for rule in layer.rules if domain in (None, rule.domain)]

    rules: list[Rule] = context.run(work, session=session)
    document = [{**rule_json(rule), "problem": compile_rule(rule).problem or None} for rule in rules]
    context.print(document, text="\n".join(table(map(_cells, rules), limit=SHOWN)) or "no rules")


def _place(rule: Rule) -> str:
    problem = compile_rule(rule).problem
    place = "" if rule.source == "default" else place_of(rule)
    return f"{place}  (not usable: {problem})" if problem else place


@permission.command("undo")
@click.pass_obj
def undo(context: CommandContext) -> None:
    """Take back the rules that your newest answer *always*, or *from now on*, stored."""
    refuse_inside_tool("moryflow permission undo")

    async def find(turn: Turn) -> tuple[str, Sequence[Rule]]:
        return await turn.rules.answered()

    session, stored = context.run(find)
    if not stored:
        raise ConfigError("no rule that an answer stored is there any more", next_step="moryflow permission rules")

    def removing(source: str) -> Callable[[Turn], Awaitable[list[Rule]]]:
        async def work(turn: Turn) -> list[Rule]:
            rows = [_row(rule) for rule in stored]
            found = [rule for rule in turn.rules.all() if rule.source == source and _row(rule) in rows]
            for rule in reversed(found):  # from the last one on, so the numbers of earlier rules stay valid
                await turn.rules.remove(rule)
            return found

        return work

    found: list[Rule] = context.run(removing("user"))
    lines = [f"removed: {rule.decision} {rule.domain} {visible(_words(rule))} ({_place(rule)})" for rule in found]
    try:
        context.change(removing("session"), session=session)
    except MoryflowError as error:
        lines.append(f"the session in which you answered keeps them until it ends: {error.message}")
    context.print({"v": 1, "type": "rule", "removed": [*map(rule_json, found)]}, text="\n".join(lines))


# ---------------------------------------------------------------- presets


@permission.command()
@click.argument("name", required=False, type=click.Choice(tuple(PRESETS)), metavar="[NAME]")
@click.pass_obj
def preset(context: CommandContext, name: str | None) -> None:
    """Add a set of rules to your configuration, such as sandbox or develop. Without NAME list them.

    What would be added is shown first. They are ordinary rules at the end of yours; `moryflow permission remove` takes
    them out again.
    """
    if name is None:
        listed = [{"name": key, "about": one.about, "rules": [*map(_row, one.rules)]} for key, one in PRESETS.items()]
        lines = table((key, f"{len(one.rows)} rules", one.about) for key, one in PRESETS.items())
        hint = "moryflow permission preset NAME shows its rules and asks before it writes them"
        context.print(listed, text="\n".join([*lines, "", hint]))
        return

    refuse_inside_tool("moryflow permission preset")

    async def read(turn: Turn) -> list[Rule]:
        return _user_rules(turn)

    async def write(turn: Turn) -> None:
        for rule in new:
            await turn.rules.append(rule, scope="user")

    mine: list[Rule] = context.run(read)
    new = missing_rules(mine, PRESETS[name].rules)
    if not context.as_json or not context.yes:
        click.echo("\n".join(_changes(mine, new)), err=context.as_json)
    if new and not context.yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here; -y writes without asking")
        click.confirm(f"Add these {len(new)} rules?", abort=True, err=True)
    context.run(write)
    text = f"{len(new)} rules added; `moryflow config path` says where" if new else "nothing to do"
    context.print({"v": 1, "type": "preset", "name": name, "added": [*map(_row, new)]}, text=text)


def missing_rules(mine: Sequence[Rule], wanted: Sequence[Rule]) -> list[Rule]:
    """Return the rules of `wanted`, without the domains in which they are the last rules of `mine` already."""

    def rows(rules: Sequence[Rule], domain: str) -> list[dict[str, Any]]:
        return [_row(rule) for rule in rules if rule.domain == domain]

    def hold(domain: str) -> bool:
        last = rows(wanted, domain)
        return rows(mine, domain)[-len(last) :] == last

    missing = {domain for domain in {rule.domain for rule in wanted} if not hold(domain)}
    return [rule for rule in wanted if rule.domain in missing]


def _changes(mine: Sequence[Rule], new: Sequence[Rule]) -> Iterator[str]:
    """Yield lines about the rules that are added, and the user's rules that these overrule."""
    yield from table(("+", rule.domain, rule.decision, visible(rule.pattern, 90)) for rule in new)
    if not new:
        yield "all of its rules are in force already"
    for remark in remarks([*mine, *new]):
        old, by = remark.rule, remark.by
        if old in mine and by in new and old and by and old.decision != by.decision:
            yield f"! your {rule_words(old)} no longer decides; {by.decision} {by.pattern!r} comes after it"


# ---------------------------------------------------------------- explain


class WatchedPolicy(Policy):
    """A policy that records which rules matched; it judges like any other."""

    def __init__(self, *_: Any) -> None:  # `__new__` of a named tuple has set the fields already
        self.matched: set[Rule] = set()
        self.asked: set[str] = set()

    def by_probe(self, domain: str, target: str, probe: Probe) -> Judgement:
        """Record every rule that `probe` matches, then judge `target`."""
        self._note(domain, probe)
        return super().by_probe(domain, target, probe)

    def by_command(self, target: str, programs: Iterable[str], probe: Probe) -> Judgement:
        """Record every rule that `probe` matches, then judge the command."""
        self._note("bash", probe)
        return super().by_command(target, programs, probe)

    def _note(self, domain: str, probe: Probe) -> None:
        self.asked.add(domain)
        self.matched.update(one.rule for rules in self.layers for one in rules.of(domain) if probe(one) is not None)


class Explanation(NamedTuple):
    """The judgement of one input, with the rules behind it.

    :param chain: the rules in the order they are matched, and whether each matched.
    :param folder: the folder that a command runs in; `confined`, whether a sandbox holds it.
    """

    judged: tuple[Judgement, ...]
    verdict: Verdict
    mode: str
    chain: tuple[tuple[Rule, bool], ...] = ()
    folder: str | None = None
    confined: bool | None = None

    def document(self) -> dict[str, Any]:
        decision, cause = outcome(self.verdict, mode=self.mode, headless=False)
        return {
            "v": 1,
            "type": "decision",
            "decision": decision,
            "cause": cause,
            "reason": self.verdict.reason,
            "mode": self.mode,
            **({"folder": self.folder} if self.folder else {}),
            **({"sandbox": self.confined} if self.confined is not None else {}),
            "targets": [*map(_target_json, self.judged)],
            "chain": [{**rule_json(rule), "matched": matched} for rule, matched in self.chain],
            "otherwise": {name: {"decision": found, "cause": why} for name, found, why in self.otherwise()},
            "remember": [item.model_dump() for item in getattr(self.verdict, "remember", ())],
        }

    def otherwise(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, decision and cause for each mode, and for a run in which nobody can be asked (``headless``)."""
        for mode in MODES:
            yield mode, *outcome(self.verdict, mode=mode, headless=False)
        yield "headless", *outcome(self.verdict, mode=self.mode, headless=True)


@permission.command("explain")
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
    """Show what would happen to INPUT, and why: the rules and where they are written; --json shows every rule in order.

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
    """Judge `given` as the gate would in `turn`; `workdir`: the folder that a command runs in."""
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
        in_sandbox(decision, domain, turn),  # the tool of the domain bash is called bash too
        mode,
        tuple(_chain(policy, decision)),
        target.folder.text if target.folder is not None else None,
        policy.confined() if domain == "bash" else None,
    )


def target_of(turn: Turn, domain: str, given: str, workdir: str | None = None) -> Target:
    """Return the target of a tool of `domain` that gets `given`.

    :raises ToolError: `given` is not an input for this domain.
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
    domains = policy.asked | {part.domain for part in decision.parts}
    rules = (rule for layer in policy.layers for rule in layer.rules)
    return ((rule, rule in policy.matched) for rule in rules if rule.domain in domains or rule.problem)


def _target_json(part: Judgement) -> dict[str, Any]:
    shown = {"target": part.target, "decision": part.decision, "rule": rule_json(part.rule) if part.rule else None}
    extra = {"domain": part.domain, "reason": part.reason, "cause": part.cause, "bypass": part.bypass}
    return {**shown, **(extra if part.decision != "allow" else {"domain": part.domain})}


def _lines(found: Explanation) -> Iterator[str]:
    decision, cause = outcome(found.verdict, mode=found.mode, headless=False)
    yield f"{decision}  ({cause}, mode {found.mode})"
    if found.folder not in (None, "vault:/"):
        yield f"  in {visible(found.folder or '')}"
    if found.verdict.reason:
        yield f"  because {visible(found.verdict.reason)}"
    if found.confined is not None:
        yield from _command_lines(found)
    else:
        yield from ("", "targets")
        by = ((part, rule_words(part.rule) if part.rule else part.reason or part.cause) for part in found.judged)
        yield from table(((part.decision, part.domain, part.target, said) for part, said in by), indent="  ")
        if found.chain:
            yield from ("", "rules, the last that matches decides ('>' matches)")
            yield from table(starmap(_chain_row, found.chain), indent="  ")
    yield ""
    for name, otherwise, why in found.otherwise():
        yield f"{name:<12} {otherwise}  ({why})"
    for item in getattr(found.verdict, "remember", ()):
        yield f"always       stores allow {item.domain} {visible(item.sentence)}"


def _command_lines(found: Explanation) -> Iterator[str]:
    """Yield what was read of a command, what covered each part of it, and what the sandbox holds."""
    shown = [part.target.removeprefix("shell:").removeprefix("fs:") for part in found.judged]
    words = {"read": "reads ", "edit": "changes "}
    parts = [f"{words.get(part.domain, '')}{text}" for part, text in zip(found.judged, shown, strict=True)]
    yield f"read      {visible(' | '.join(dict.fromkeys(parts)))}"
    by = (rule_words(part.rule) if part.rule else part.reason or part.cause for part in found.judged)
    covered = (f"{text}: {part.decision}, {why}" for part, text, why in zip(found.judged, parts, by, strict=True))
    yield f"rules     {visible('; '.join(dict.fromkeys(covered)))}"
    holds = "it can change only this folder, reach no network unless a rule allows it, and sees no secrets"
    none = "none works here, so a command that is allowed can do what you can (moryflow doctor says more)"
    yield f"sandbox   {holds if found.confined else none}"


def _chain_row(rule: Rule, matched: bool) -> tuple[str, ...]:
    pattern = visible(stored_words(rule.pattern, rule.folder, rule.contents), 60)
    return ">" if matched else " ", rule.domain, rule.decision, pattern, rule.source, place_of(rule)

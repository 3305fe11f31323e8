"""``permission lint``: rules that are invalid, dead, shadowed, dangerous, or silence a default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from moryflow_sdk import CommandContext, Rule, Turn
from moryflow_sdk.support.sensitive import sensitive

from moryflow_builtins.permission.defaults import default_rules, protects
from moryflow_builtins.permission.judgement import place_of, rule_json, rule_words
from moryflow_builtins.permission.policy import compile_rules, text_probe

from .reach import LaterRules, Reach, mistake, wider_address
from .rule_text import visible

Kind = Literal["invalid", "dead", "narrow", "shadowed", "silences", "dangerous"]

_PROTECTED = (
    ".env", ".env.local", "server.pem", "server.key", "id_rsa", ".npmrc", "credentials.json", "secrets.yaml",
    ".ssh/config", ".aws/credentials", ".git/hooks/pre-commit", ".vscode/settings.json", ".mcp.json",
    ".github/workflows/ci.yml", ".bashrc",
)  # fmt: skip
"""Names that a default asks about; a rule that covers one of them is told so."""

STILL_ASKED: tuple[tuple[str, str], ...] = (
    ("words that are known only when the command runs", "echo $X"),
    ("code and programs handed to another program", "find . -exec touch x ;"),
    ("verbs that run packages or configure, and verbs that are not known", "npm exec x"),
    ("text piped into an interpreter", "cat x.sh | sh"),
    ("assignments", "A=b make"),
    ("options that run, write, configure or name another host", "sort -o out x"),
    ("files of secrets", "cat .env"),
    ("reading a folder whole in which they are and no sandbox hides them", "grep -r x ."),
    ("files that run later", "touch .git/hooks/pre-commit"),
    ("patches that change them, or that cannot be read", "git apply x.patch"),
    ("git in a repository that is not the vault's", "git -C other status"),
    ("reading outside the vault", "cat /etc/passwd"),
    ("text that bash itself would not read surely", "if"),
)
"""What a rule for every command leaves open, each with an example."""


@dataclass(frozen=True)
class Remark:
    """One remark.

    :param rule: what it is about; ``None`` for a rule that could not even be read.
    :param by: the later rule that shadows it.
    """

    kind: Kind
    message: str
    rule: Rule | None = None
    by: Rule | None = None

    @property
    def sentence(self) -> str:
        """The remark with the rule it is about."""
        rule = self.rule
        return f"{rule.domain} rule {rule.decision} {_short(rule.pattern)!r}: {self.message}" if rule else self.message

    @property
    def severity(self) -> Literal["error", "warning"]:
        """Only what cannot work as it is written is an error."""
        return "error" if self.kind == "invalid" else "warning"


def remarks(rules: Sequence[Rule], home: Path | None = None) -> Iterator[Remark]:
    """Yield remarks on a person's rules, in their order.

    :param home: Moryflow's own folder, where known.
    """
    every = LaterRules(rules)
    for place, reach in enumerate(every.reaches):
        rule, pattern = reach.rule, reach.compiled.pattern
        never = pattern.problem or mistake(rule, pattern)
        if never:
            yield Remark("invalid" if pattern.problem else "dead", f"it can never match: {never}", rule)
            continue
        if wider := wider_address(rule):
            message = f"its * stops at the next /, so it matches no address further down; write {_short(wider)} for all"
            yield Remark("narrow", message, rule)
        if later := every.covering(place):
            what = "says the same" if rule.decision == later.rule.decision else "always wins"
            message = f"it has no effect: the later {rule_words(later.rule)} covers all of it and {what}"
            yield Remark("shadowed", message, rule, later.rule)
        elif rule.decision == "allow":
            loose = _loose_file(every, place, home) if rule.domain in ("read", "edit") else _loose(reach)
            if loose:
                yield Remark(*loose, rule)


def few(found: Iterable[Remark], each: int = 3) -> Iterator[Remark]:
    """Yield `found` without the many rules that one later rule shadows: the first `each` of them say enough."""
    found = list(found)
    every, seen = Counter(remark.by for remark in found), Counter[Rule | None]()
    for remark in found:
        seen[remark.by] += 1
        more = every[remark.by] - each
        if remark.by is None or seen[remark.by] < each or (seen[remark.by] == each and more <= 0):
            yield remark
        elif seen[remark.by] == each:
            yield replace(remark, message=f"{remark.message}; so it does with {more} more, see `permission lint --json`")


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 80 else f"{pattern[:77]}…"


# ------------------------------------------------------------------------------------------------
# What allows too much
# ------------------------------------------------------------------------------------------------


def _loose(reach: Reach) -> tuple[Kind, str] | None:
    """Return what a rule for commands or tools opens that was hardly meant."""
    rule, pattern = reach.rule, reach.compiled.pattern
    if rule.domain in ("mcp", "tool") and reach.everything:
        what = "every tool of every server" if rule.domain == "mcp" else "every tool that does not say what it touches"
        return "dangerous", f"it lets {what} run without a question, also those that come later"
    if rule.domain != "bash" or pattern.exact:
        return None
    if reach.everything:
        still = "; ".join(f"{what} ({example})" for what, example in STILL_ASKED)
        return "dangerous", f"any program runs, but not every command goes unasked. Still asked: {still}"
    if " " in pattern.literal:
        return None
    if rule.pattern.startswith("regex:"):
        return "dangerous", "the expression does not begin with one whole program name"
    if not pattern.literal:
        return "dangerous", "it begins with *, so it covers any program"
    hint = f"write {pattern.literal + ' *'!r} for {pattern.literal} with any arguments"
    return "dangerous", f"it covers every program whose name begins with {pattern.literal!r}; {hint}"


def _loose_file(every: LaterRules, place: int, home: Path | None) -> tuple[Kind, str] | None:
    """Return which files a rule opens that the defaults guard."""
    reach = every.reaches[place]
    rule, exact = reach.rule, reach.compiled.pattern.exact
    if home is not None and rule.domain == "edit" and exact and f"fs:{home}" in rule.pattern:
        return "dead", f"it has no effect: nothing below {home} is changed by a tool, in any mode"
    elsewhere = ("fs:/etc/x", "fs:/usr/local/bin/x", "fs:/home/u/x.md")
    if rule.domain == "edit" and not exact and any(every.decides(place, target) for target in elsewhere):
        return "dangerous", "it lets files outside the vault be changed without a question"
    silenced = (text for text in _guarded_files(reach) if every.decides(place, text) and _is_guarded(rule.domain, text))
    text = next(silenced, "")
    if text.startswith("fs:"):
        return "dangerous", f"it opens files of secrets outside the vault, for example {text}"
    return ("silences", f"it silences the default that asks about {text}") if text else None


def _is_guarded(domain: str, target: str) -> bool:
    """Whether the defaults ask about `target` because of its name."""
    if target.startswith("fs:"):
        return sensitive(target)
    hit = compile_rules(default_rules()).last(domain, text_probe(target))
    return hit is not None and protects(hit.rule)


def _guarded_files(reach: Reach) -> Iterator[str]:
    """Yield protected files that the rule may cover: where its pattern begins, and anywhere."""
    pattern = reach.compiled.pattern
    kind, _, rest = pattern.literal.partition(":")
    if kind not in ("vault", "fs"):
        kind, rest = "vault", pattern.literal
    if pattern.exact:
        yield f"{kind}:/{rest.removeprefix('/')}"
        return
    folder = rest.rpartition("/")[0].rstrip("/")
    for place in dict.fromkeys((f"{kind}:{folder}", f"{kind}:{folder}/x", "vault:", "vault:/x", "fs:/home/u", "fs:/etc")):
        yield from (f"{place}/{name}" for name in _PROTECTED)


@click.command()
@click.option("--strict", is_flag=True, help="Let warnings fail the check too.")
@click.pass_obj
def command(context: CommandContext, strict: bool) -> None:
    """Report rules that are invalid, can never match, never decide, or allow too much.

    Exit code 3 when a rule is invalid; with --strict when there is any remark.
    """

    async def work(turn: Turn) -> tuple[int, list[Remark]]:
        rules = [rule for rule in turn.rules.all() if rule.source != "session" and not rule.problem]
        unread = [Remark("invalid", problem) for problem in turn.rules.problems()]
        return len(rules), [*unread, *remarks(rules, turn.home)]

    count, found = context.run(work)
    errors = sum(remark.severity == "error" for remark in found)
    summary: dict[str, Any] = {"type": "summary", "rules": count, "errors": errors, "warnings": len(found) - errors}
    rows = [*map(_remark_json, found)]
    lines = [*map(_line, few(found)), f"{count} rules, {errors} errors, {len(found) - errors} warnings"]
    context.print({"v": 1, "type": "lint", "remarks": rows, "summary": summary}, text="\n".join(lines))
    if errors or (strict and found):
        raise SystemExit(3)


def _remark_json(remark: Remark) -> dict[str, Any]:
    rule = rule_json(remark.rule) if remark.rule else None
    return {"severity": remark.severity, "kind": remark.kind, "message": remark.message, "rule": rule}


def _line(remark: Remark) -> str:
    place = f"{place_of(remark.rule)}: " if remark.rule else ""
    return visible(f"{remark.severity:<7}  {remark.kind:<9}  {place}{remark.sentence}")

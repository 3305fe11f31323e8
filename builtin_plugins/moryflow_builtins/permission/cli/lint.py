"""``permission lint``: rules that are invalid, dead, shadowed, dangerous, or silence a default."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from moryflow_sdk import CommandContext, Rule, Turn
from moryflow_sdk.patterns import Pattern, address_pattern
from moryflow_sdk.sensitive import sensitive
from moryflow_sdk.urls import RefusedUrl, parse_url

from moryflow_builtins.permission.defaults import default_rules, protects
from moryflow_builtins.permission.judgement import place_of, rule_json, rule_words
from moryflow_builtins.permission.policy import compile_rules, text_probe

from .overlap import Nearby, Shape, shapes
from .text import visible

_JOINED = re.compile(r"(?:^|\s)(?:&&|\|\||\||&)(?:\s|$)|;(?:\s|$)")
_REDIRECTED = re.compile(r"(?:^|\s)\d?(?:>>?|<)\s*\S")
_QUOTES = re.compile(r"['\"\\]")


def mistake(rule: Rule, pattern: Pattern) -> str:
    """Return why `rule` can never match; empty when it can, or when that cannot be told."""
    text = rule.pattern
    if text in ("*", "**") or text.startswith(("regex:", "tool:")):
        return ""
    match rule.domain:
        case "read" | "edit":
            return _path(text.partition(":")[2] if text.startswith(("vault:", "fs:")) else text)
        case "bash":
            return _command(text.removeprefix("shell:"), allows=rule.decision == "allow")
        case "web_fetch":
            full = address_pattern(text.removeprefix("url:"), allows=rule.decision == "allow")
            return _url(full, exact=pattern.exact)
        case "mcp":
            body = text.removeprefix("mcp:")
            return "" if "/" in body or "*" in body else "tools of a server are written SERVER/TOOL; a star stands for all"
        case _:
            return ""


def _path(body: str) -> str:
    if re.search(r"(?:^|/)\.{1,2}(?:/|$)", body):
        return "targets are resolved, so none has . or .. in it"
    if "//" in body:
        return "targets are resolved, so none has // in it"
    if body.endswith("/") and body != "/":
        return f"targets do not end with a slash; write {body}** for what is in the folder"
    return ""


def _command(body: str, *, allows: bool) -> str:
    if body != body.strip(" "):
        return "commands are matched without blanks around them"
    if _QUOTES.search(body):
        return ""
    if _JOINED.search(body):
        return "every command of a line is judged alone; write a rule for each"
    if "  " in body:
        return "words are matched with one blank between them"
    if allows and _REDIRECTED.search(body):
        return "redirections are judged as reading and editing, not as part of the command"
    if allows and ("$(" in body or "`" in body):
        return "an allow never covers what is known only when it runs"
    return ""


def _url(body: str, *, exact: bool) -> str:
    if exact:
        return _exact_url(body)
    if re.search(r"[\[{]", body):
        return ""
    literal = body[: body.index("*")] if "*" in body else body
    if not any(literal.startswith(start) or start.startswith(literal) for start in ("http://", "https://")):
        return "addresses begin with http:// or https://; write docs.python.org or https://docs.python.org/** for a whole site"
    if "://" in literal and "**" not in body and "/" not in body.partition("://")[2]:
        return f"an address has a path after its host, and * stops at a slash; write {body.rstrip('*')}/**"
    return ""


def stops_at_slash(rule: Rule) -> str:
    """Return the pattern that was probably meant where the last star of one for addresses stops at a slash; else nothing."""
    pattern = rule.pattern
    if rule.domain != "web_fetch" or pattern == "*" or pattern.startswith(("regex:", "tool:")):
        return ""
    full = address_pattern(pattern, allows=rule.decision == "allow")
    return f"{pattern}*" if full.endswith("*") and not full.endswith(("**", "\\*")) else ""


def _exact_url(body: str) -> str:
    try:
        canonical = str(parse_url(body))
    except RefusedUrl as error:
        if error.service is None:
            return f"no such address is fetched: {error}"
        canonical = str(error.service)
    return "" if canonical == body else f"addresses are matched in one form; this one is {canonical}"


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
        shown = f"{rule.domain} rule {rule.decision} {shortened(rule.pattern)!r}: " if rule else ""
        return shown + self.message

    @property
    def severity(self) -> Literal["error", "warning"]:
        """Only what cannot work as it is written is an error."""
        return "error" if self.kind == "invalid" else "warning"


def remarks(rules: Sequence[Rule], home: Path | None = None) -> Iterator[Remark]:
    """Yield remarks on a person's rules, in their order.

    :param home: Moryflow's own folder, where known.
    """
    every = shapes(rules)
    built_in = compile_rules(default_rules(str(home or "")))
    nearby = Nearby((one for domain in built_in.by_domain for one in built_in.of(domain)), every)
    for index, shape in enumerate(every):
        problem = shape.compiled.pattern.problem
        if problem:
            yield Remark("invalid", f"it can never match: {problem}", shape.rule)
            continue
        if shape.about_the_sandbox:
            continue
        dead = mistake(shape.rule, shape.compiled.pattern)
        if dead:
            yield Remark("dead", f"it can never match: {dead}", shape.rule)
            continue
        if wider := stops_at_slash(shape.rule):
            message = f"its * stops at the next /, so it matches no address further down; write {shortened(wider)} for all"
            yield Remark("narrow", message, shape.rule)
        later = nearby.covering(index)
        if later is not None:
            yield Remark("shadowed", _shadowed(shape.rule, later.rule), shape.rule, later.rule)
        elif shape.rule.decision == "allow":
            yield from _loose(shape, nearby, home)


def few(found: Iterable[Remark], each: int = 3) -> Iterator[Remark]:
    """Yield `found` without the many rules that one later rule shadows: the first `each` of them say enough."""
    seen: Counter[Rule] = Counter()
    kept = list(found)
    every = Counter(remark.by for remark in kept if remark.by)
    for remark in kept:
        if remark.by is None:
            yield remark
            continue
        seen[remark.by] += 1
        more = every[remark.by] - each
        if seen[remark.by] == each and more > 0:
            yield replace(remark, message=f"{remark.message}; so it does with {more} more, see `permission lint --json`")
        elif seen[remark.by] <= each:
            yield remark


def shortened(pattern: str) -> str:
    """Return a pattern as a sentence shows it."""
    return pattern if len(pattern) <= 80 else f"{pattern[:77]}…"


def _shadowed(rule: Rule, later: Rule) -> str:
    what = "says the same" if rule.decision == later.decision else "always wins"
    return f"it has no effect: the later {rule_words(later)} covers all of it and {what}"


# ------------------------------------------------------------------------------------------------
# What allows too much
# ------------------------------------------------------------------------------------------------


def _loose(shape: Shape, nearby: Nearby, home: Path | None) -> Iterator[Remark]:
    rule = shape.rule
    match rule.domain:
        case "read" | "edit":
            yield from _loose_files(shape, nearby, home)
        case "bash":
            yield from _loose_commands(shape)
        case "mcp" | "tool" if shape.everything:
            what = "every tool of every server" if rule.domain == "mcp" else "every tool that does not say what it touches"
            yield Remark("dangerous", f"it lets {what} run without a question, also those that come later", rule)
        case _:
            pass


def _loose_commands(shape: Shape) -> Iterator[Remark]:
    pattern = shape.compiled.pattern
    if shape.everything:
        still = "; ".join(f"{what} ({example})" for what, example in STILL_ASKED)
        yield Remark("dangerous", f"any program runs, but not every command goes unasked. Still asked: {still}", shape.rule)
    elif shape.rule.pattern.startswith("regex:") and not pattern.exact and " " not in pattern.literal:
        yield Remark("dangerous", "the expression does not begin with one whole program name", shape.rule)
    elif not pattern.exact and not pattern.literal:
        yield Remark("dangerous", "it begins with *, so it covers any program", shape.rule)
    elif not pattern.exact and " " not in pattern.literal:
        name = pattern.literal
        hint = f"write {name + ' *'!r} for {name} with any arguments"
        yield Remark("dangerous", f"it covers every program whose name begins with {name!r}; {hint}", shape.rule)


def _loose_files(shape: Shape, nearby: Nearby, home: Path | None) -> Iterator[Remark]:
    rule, exact = shape.rule, shape.compiled.pattern.exact
    if home is not None and rule.domain == "edit" and exact and f"fs:{home}" in rule.pattern:
        yield Remark("dead", f"it has no effect: nothing below {home} is changed by a tool, in any mode", rule)
        return
    if rule.domain == "edit" and not exact and _decides(shape, nearby, "fs:/etc/x", "fs:/usr/local/bin/x", "fs:/home/u/x.md"):
        yield Remark("dangerous", "it lets files outside the vault be changed without a question", rule)
        return
    silenced = next((text for text in _witnesses(shape) if _decides(shape, nearby, text) and _guarded(rule.domain, text)), "")
    if silenced.startswith("fs:"):
        yield Remark("dangerous", f"it opens files of secrets outside the vault, for example {silenced}", rule)
    elif silenced:
        yield Remark("silences", f"it silences the default that asks about {silenced}", rule)


def _decides(shape: Shape, nearby: Nearby, *targets: str) -> bool:
    """Whether the rule is the one that decides about any of `targets`."""
    matched = (target for target in targets if shape.compiled.matches(target))
    hits = (nearby.deciding(shape.rule.domain, target) for target in matched)
    return any(hit is not None and hit.rule == shape.rule for hit in hits)


def _guarded(domain: str, target: str) -> bool:
    """Whether the defaults ask about `target` because of its name."""
    if target.startswith("fs:"):
        return sensitive(target)
    hit = compile_rules(default_rules()).last(domain, text_probe(target))
    return hit is not None and protects(hit.rule)


def _witnesses(shape: Shape) -> Iterator[str]:
    """Yield protected files that the rule may cover: where its pattern begins, and anywhere."""
    pattern = shape.compiled.pattern
    kind, _, rest = pattern.literal.partition(":")
    if kind not in ("vault", "fs"):
        kind, rest = "vault", pattern.literal
    if pattern.exact:
        yield f"{kind}:{rest}" if rest.startswith("/") else f"{kind}:/{rest}"
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
    summary = {"type": "summary", "rules": count, "errors": errors, "warnings": len(found) - errors}
    document = {"v": 1, "type": "lint", "remarks": [_remark_json(remark) for remark in found], "summary": summary}
    context.print(document, text="\n".join(_lines(found, summary)))
    if errors or (strict and found):
        raise SystemExit(3)


def _remark_json(remark: Remark) -> dict[str, Any]:
    return {
        "severity": remark.severity,
        "kind": remark.kind,
        "message": remark.message,
        "rule": rule_json(remark.rule),
    }


def _lines(found: Sequence[Remark], summary: dict[str, Any]) -> list[str]:
    lines = [_line(remark) for remark in few(found)]
    return [*lines, f"{summary['rules']} rules, {summary['errors']} errors, {summary['warnings']} warnings"]


def _line(remark: Remark) -> str:
    place = f"{place_of(remark.rule)}: " if remark.rule else ""
    return visible(f"{remark.severity:<7}  {remark.kind:<9}  {place}{remark.sentence}")

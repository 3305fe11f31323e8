"""``permission lint``: rules that are invalid, dead, shadowed, dangerous, or silence a default."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import click
from moryflow_sdk import CommandContext, Rule, Turn, thaw
from moryflow_sdk.support.patterns import Pattern, address_pattern, compile_rule
from moryflow_sdk.support.protected_files import sensitive
from moryflow_sdk.support.sandbox import COMMANDS, NETWORK
from moryflow_sdk.support.texts import visible
from moryflow_sdk.support.urls import RefusedUrl, parse_url

from moryflow_builtins.permission.policy import (
    CompiledRule,
    compile_rules,
    default_rules,
    place_of,
    protects,
    rule_words,
    shortened,
    text_probe,
)

Kind = Literal["invalid", "dead", "narrow", "shadowed", "silences", "dangerous"]

# Names that a default asks about; lint reports a rule that allows one of them.
_PROTECTED = (
    ".env", ".env.local", "server.pem", "server.key", "id_rsa", ".npmrc", "credentials.json", "secrets.yaml",
    ".ssh/config", ".aws/credentials", ".git/hooks/pre-commit", ".vscode/settings.json", ".mcp.json",
    ".github/workflows/ci.yml", ".bashrc",
)  # fmt: skip

# What is asked about although a rule allows every command, each with an example.
STILL_ASKED: tuple[tuple[str, str], ...] = (
    ("words that are known only when the command runs", "echo $X"),
    ("code and programs handed to another program", "find . -exec touch x ;"),
    ("verbs that run packages or configure, and verbs that are not known", "npm exec x"),
    ("text piped into an interpreter", "cat x.sh | sh"),
    ("files that the same command wrote before it runs them", "echo ls > x; ./x"),
    ("assignments", "A=b make"),
    ("options that run, write, configure or name another host", "sort -o out x"),
    ("files of secrets", "cat .env"),
    ("without a sandbox, programs that are not known, and those that use the network", "mytool x"),
    ("files that run later", "touch .git/hooks/pre-commit"),
    ("patches, which may change them", "git apply x.patch"),
    ("git in a repository that is not the vault's", "git -C other status"),
    ("reading outside the vault", "cat /etc/passwd"),
    ("text that cannot be read surely", "if"),
)


class Remark(NamedTuple):
    """One remark about a rule.

    :param rule: the rule; ``None`` if it could not be read at all.
    :param by: the later rule that shadows it.
    """

    kind: Kind
    message: str
    rule: Rule | None = None
    by: Rule | None = None

    @property
    def sentence(self) -> str:
        """The remark, with the rule in front."""
        rule = self.rule
        return f"{rule.domain} rule {rule.decision} {shortened(rule.pattern)!r}: {self.message}" if rule else self.message

    @property
    def severity(self) -> Literal["error", "warning"]:
        """An invalid rule is an error, everything else a warning."""
        return "error" if self.kind == "invalid" else "warning"


def remarks(rules: Sequence[Rule]) -> Iterator[Remark]:
    """Yield remarks on the user's rules, in the order of the rules."""
    every = _Rules(rules)
    for place, compiled in enumerate(every.known):
        rule, pattern = compiled.rule, compiled.pattern
        problem = pattern.problem or mistake(rule, pattern)
        if problem:
            yield Remark("invalid" if pattern.problem else "dead", f"it can never match: {problem}", rule)
            continue
        if wider := wider_address(rule):
            message = f"its * stops at the next /, so it matches no address further down; write {shortened(wider)} for all"
            yield Remark("narrow", message, rule)
        if later := every.covering(place):
            what = "says the same" if rule.decision == later.decision else "always wins"
            message = f"it has no effect: the later {rule_words(later)} covers all of it and {what}"
            yield Remark("shadowed", message, rule, later)
        elif rule.decision == "allow":
            loose = _remark_on_file_allow(every, place) if rule.domain in ("read", "edit") else _remark_on_allow(compiled)
            if loose:
                yield Remark(*loose, rule)


def without_repeats(found: Iterable[Remark], each: int = 3) -> Iterator[Remark]:
    """Yield `found`, with only the first `each` remarks about rules that the same later rule shadows."""
    found = list(found)
    every, seen = Counter(remark.by for remark in found), Counter[Rule | None]()
    for remark in found:
        seen[remark.by] += 1
        more = every[remark.by] - each
        if remark.by is None or seen[remark.by] < each or (seen[remark.by] == each and more <= 0):
            yield remark
        elif seen[remark.by] == each:
            yield remark._replace(message=f"{remark.message}; so it does with {more} more, see `permission lint --json`")


# ---------------------------------------------------------------- rules that allow too much


def _remark_on_allow(compiled: CompiledRule) -> tuple[Kind, str] | None:
    """Return the kind and text of a remark if an allow for commands or tools opens more than its author may have meant."""
    rule, pattern = compiled.rule, compiled.pattern
    everything = rule.pattern in ("*", "**")
    if rule.domain in ("mcp", "tool") and everything:
        what = "every tool of every server" if rule.domain == "mcp" else "every tool that does not say what it touches"
        return "dangerous", f"it lets {what} run without a question, also those that come later"
    if rule.domain != "bash" or pattern.exact:
        return None
    if everything:
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


def _remark_on_file_allow(every: _Rules, place: int) -> tuple[Kind, str] | None:
    """Return the kind and text of a remark if an allow for files opens files that the defaults protect."""
    rule, exact = every.known[place].rule, every.known[place].pattern.exact
    elsewhere = ("fs:/etc/x", "fs:/usr/local/bin/x", "fs:/home/u/x.md")
    if rule.domain == "edit" and not exact and any(every.decides(place, target) for target in elsewhere):
        return "dangerous", "it lets files outside the vault be changed without a question"
    silenced = (
        text
        for text in _guarded_files(every.known[place].pattern)
        if every.decides(place, text) and _is_guarded(rule.domain, text)
    )
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


def _guarded_files(pattern: Pattern) -> Iterator[str]:
    """Yield protected files that the rule may cover: in the folder that its pattern begins with, and elsewhere."""
    kind, _, rest = pattern.literal.partition(":")
    if kind not in ("vault", "fs"):
        kind, rest = "vault", pattern.literal
    if pattern.exact:
        yield f"{kind}:/{rest.removeprefix('/')}"
        return
    folder = rest.rpartition("/")[0].rstrip("/")
    for place in dict.fromkeys((f"{kind}:{folder}", f"{kind}:{folder}/x", "vault:", "vault:/x", "fs:/home/u", "fs:/etc")):
        yield from (f"{place}/{name}" for name in _PROTECTED)


@click.command("lint")
@click.option("--strict", is_flag=True, help="Let warnings fail the check too.")
@click.pass_obj
def lint(context: CommandContext, strict: bool) -> None:
    """Report rules that are invalid, can never match, never decide, or allow too much.

    Exit code 3 when a rule is invalid; with --strict when there is any remark.
    """

    async def work(turn: Turn) -> tuple[int, list[Remark]]:
        rules = [rule for rule in turn.rules.all() if rule.source != "session" and not rule.problem]
        unread = [Remark("invalid", problem) for problem in turn.rules.problems()]
        return len(rules), [*unread, *remarks(rules)]

    count, found = context.run(work)
    errors = sum(remark.severity == "error" for remark in found)
    summary: dict[str, Any] = {"type": "summary", "rules": count, "errors": errors, "warnings": len(found) - errors}
    rows = [*map(_remark_json, found)]
    lines = [*map(_line, without_repeats(found)), f"{count} rules, {errors} errors, {len(found) - errors} warnings"]
    context.print({"v": 1, "type": "lint", "remarks": rows, "summary": summary}, text="\n".join(lines))
    if errors or (strict and found):
        raise SystemExit(3)


def rule_json(rule: Rule) -> dict[str, object]:
    """Return the fields of a rule that are set."""
    fields = ("source", "file", "line", "index", "domain", "pattern", "decision", "folder", "contents", "problem")
    return {name: thaw(value) for name in fields if (value := getattr(rule, name)) not in (None, {}, "")}


def _remark_json(remark: Remark) -> dict[str, Any]:
    rule = rule_json(remark.rule) if remark.rule else None
    return {"severity": remark.severity, "kind": remark.kind, "message": remark.message, "rule": rule}


def _line(remark: Remark) -> str:
    place = f"{place_of(remark.rule)}: " if remark.rule else ""
    return visible(f"{remark.severity:<7}  {remark.kind:<9}  {place}{remark.sentence}")


# ---------------------------------------------------------------- rules that cover others

# How many later rules a rule is compared with; without a limit, thousands of rules take minutes.
MAX_COMPARED = 100
_MAGIC = frozenset("*?[]{}\\")


class _Rules:
    """The rules that match commands, files and tools, in matching order; those about the sandbox are left out."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        compiled = compile_rules(rules)
        by_rule = {one.rule: one for domain in compiled.by_domain for one in compiled.of(domain)}
        sandbox = {("bash", COMMANDS), ("bash", NETWORK)}
        self.known = [by_rule[rule] for rule in rules if rule in by_rule and (rule.domain, rule.pattern) not in sandbox]
        self._alike: dict[tuple[str, str], list[int]] = {}
        for place, one in enumerate(self.known):
            for key in {one.rule.pattern, "" if _beginning(one.rule) is not None else one.rule.pattern, "all"}:
                self._alike.setdefault((one.rule.domain, key), []).append(place)

    def _after(self, place: int, key: str) -> list[int]:
        places = self._alike.get((self.known[place].rule.domain, key), [])
        start = bisect_right(places, place)
        return places[start : start + MAX_COMPARED]

    def covering(self, place: int) -> Rule | None:
        """Return the first later rule that surely matches all that the one at `place` does."""
        rule = self.known[place].rule
        later = sorted({*self._after(place, rule.pattern), *self._after(place, "")})
        return next((self.known[other].rule for other in later if _covers(self.known[other], rule)), None)

    def decides(self, place: int, target: str) -> bool:
        """Whether the rule at `place` matches `target` and no later one does."""
        if not self.known[place].matches(target):
            return False
        return not any(self.known[other].matches(target) for other in self._after(place, "all"))


def _beginning(rule: Rule) -> str | None:
    """Return the text whose every continuation `rule` matches; ``None`` if there is none."""
    pattern = rule.pattern
    if pattern in ("*", "**"):
        return ""
    if pattern.startswith("regex:"):
        return None
    text = pattern.removesuffix("**") if rule.domain in ("read", "edit", "web_fetch") else pattern.removesuffix("*")
    if text == pattern or not _MAGIC.isdisjoint(text):
        return None
    return text if rule.domain not in ("read", "edit", "web_fetch") or text.endswith(("/", ":")) else None


def _covers(later: CompiledRule, rule: Rule) -> bool:
    wide = later.rule
    if wide.folder not in (None, rule.folder) or wide.contents not in ({}, rule.contents) or later.pattern.problem:
        return False
    if wide.pattern == rule.pattern:  # an expression of an allow must match the whole text, that of another a part of it
        return not (wide.pattern.startswith("regex:") and wide.decision == "allow" != rule.decision)
    beginning = _beginning(wide)
    return beginning is not None and rule.pattern.startswith(beginning)


# ---------------------------------------------------------------- patterns that can match no target

_JOINED = re.compile(r"(?:^|\s)(?:&&|\|\||\||&)(?:\s|$)|;(?:\s|$)")
_REDIRECTED = re.compile(r"(?:^|\s)\d?(?:>>?|<)\s*\S")


def mistake(rule: Rule, pattern: Pattern) -> str:
    """Return why `rule` can never match; empty if it can, or if that is unknown."""
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
    if re.search(r"['\"\\]", body):
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


def wider_address(rule: Rule) -> str:
    """Return the pattern for addresses that was probably meant, if the last star of `rule` stops at a slash; else nothing."""
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


def trusted_program(rule: Rule) -> list[str]:
    """Return what to say of a rule that allows a program which the judge of commands does not know."""
    from moryflow_builtins.permission.shell.tables import UNKNOWN, program

    pattern = compile_rule(rule)
    name, blank, _ = pattern.literal.partition(" ")
    if (rule.domain, rule.decision, blank) != ("bash", "allow", " ") or pattern.exact or program(name) is not UNKNOWN:
        return []
    return [f"{name} is not known here, so the rule trusts it with all its options; the sandbox holds it, where one works"]

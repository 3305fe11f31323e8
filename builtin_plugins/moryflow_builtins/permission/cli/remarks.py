"""Remarks on a list of rules: invalid, dead, shadowed, dangerous, or silencing a default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from moryflow_sdk import Rule
from moryflow_sdk.sensitive import sensitive

from moryflow_builtins.permission.defaults import default_rules, protects
from moryflow_builtins.permission.judged import told
from moryflow_builtins.permission.rules import compile_rules, simple

from .covering import Shape, shapes
from .mistakes import mistake, stops_at_slash
from .nearby import Nearby

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
    return f"it has no effect: the later {told(later)} covers all of it and {what}"


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
    hit = compile_rules(default_rules()).last(domain, simple(target))
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

"""What a decision is made from: the rules in their order, the folders they depend on, and the answers.

The default rules come first, so every rule of the user is matched later and wins. ``permission lint`` reports a rule that
silences a default.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from moryflow_sdk import DOMAINS, Allow, Ask, Deny, FrozenDict, Remember, Rule, Target, Verdict
from moryflow_sdk.support.patterns import Pattern, compile_rule
from moryflow_sdk.support.protected_files import RUNS_LATER, SECRETS, Line, without_case
from moryflow_sdk.support.rule_entries import hidden_character
from moryflow_sdk.verdicts import Bypass, Cause

from .unusual import UNCOVERED, unusual

# ---------------------------------------------------------------- the default rules


# Files with plans; nothing there runs.
PLANS = "vault:/.moryflow/plans/*.md"

_EVERY = "vault:**/"
_SENSITIVE_FILES = _EVERY + "{" + ",".join(SECRETS.files) + "}"
_SENSITIVE_FOLDERS = _EVERY + "{" + ",".join(SECRETS.folders) + "}/**"
_LATER_FILES = _EVERY + "{" + ",".join(RUNS_LATER.files) + "}"
_LATER_FOLDERS = _EVERY + "{" + ",".join(RUNS_LATER.folders) + "}/**"

_GUARDS: dict[str, Callable[[str], Line | None]] = {
    _SENSITIVE_FILES: SECRETS.find_file,
    _SENSITIVE_FOLDERS: SECRETS.find_folder,
    _LATER_FILES: RUNS_LATER.find_file,
    _LATER_FOLDERS: RUNS_LATER.find_folder,
}

_FIXED: tuple[tuple[str, str, str], ...] = (
    ("read", "vault:**", "allow"),
    ("read", "fs:**", "ask"),
    ("read", "tool:*", "allow"),
    ("read", _SENSITIVE_FILES, "ask"),
    ("read", _SENSITIVE_FOLDERS, "ask"),
    ("edit", "vault:**", "allow"),
    ("edit", _LATER_FOLDERS, "ask"),
    ("edit", PLANS, "allow"),
    ("edit", _LATER_FILES, "ask"),
    ("edit", _SENSITIVE_FILES, "ask"),
    ("edit", _SENSITIVE_FOLDERS, "ask"),
    ("edit", "fs:**", "deny"),
    ("bash", "*", "ask"),
    ("web_fetch", "*", "allow"),
    ("web_search", "*", "allow"),
    ("task", "*", "allow"),
    ("tool", "*", "ask"),
    ("mcp", "*", "ask"),
)

# Patterns that say where a file is, not what it is called.
PLACES = frozenset({"vault:**", "fs:**"})


@lru_cache(maxsize=16)
def default_rules(home: str = "", servers: tuple[str, ...] = (), by_git: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the built-in rules.

    :param home: Moryflow's own folder; stored outputs below it are read without asking.
    :param servers: names of the configured MCP servers.
    :param by_git: paths in the vault that the configuration of git names, so that git runs or obeys them.
    """
    rows: list[tuple[str, str, str]] = list(_FIXED)
    if home:
        rows.append(("read", f"fs:{escape_path(home)}/agent-output/**", "allow"))
    for path in map(escape_path, by_git):
        rows += [("edit", f"vault:/{path}", "ask"), ("edit", f"vault:/{path}/**", "ask")]
    rows += [("mcp", f"mcp:{name}/*", "allow") for name in servers if re.fullmatch(r"[\w.@-]+", name)]
    return tuple(
        Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision, "source": "default", "index": index})
        for index, (domain, pattern, decision) in enumerate(rows)
    )


def escape_path(path: str) -> str:
    """Return the pattern that matches only `path`, for the domains ``read`` and ``edit``."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def protects(rule: Rule) -> bool:
    """Whether `rule` is a default that protects files by their name."""
    return rule.source == "default" and rule.pattern in _GUARDS


def guarded_line(rule: Rule, text: str) -> Line | None:
    """Return the line of the table that makes `rule` protect a target in the vault.

    The tables match more than the globs that the rule shows (``.env.bak``, ``.env.``). A folder counts like the files in
    it: to search, copy or move ``.ssh`` reaches every file below.
    """
    return _GUARDS[rule.pattern](text) if text.startswith("vault:") else None


def guards_sensitive(rule: Rule) -> bool:
    """Whether `rule` is one of the defaults for sensitive names."""
    return rule.source == "default" and rule.pattern in (_SENSITIVE_FILES, _SENSITIVE_FOLDERS)


@lru_cache(maxsize=4096)
def plain_text(text: str) -> str:
    """Return `text` as the most lenient volume compares names: no case, no invisible characters, no trailing dots."""
    return "/".join(part.rstrip(". ") or part for part in without_case(text).split("/"))


# ---------------------------------------------------------------- answers


Strength = Literal["allow", "ask", "deny"]
STRENGTH: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}
# How many reasons a question shows, and how many patterns one answer may store.
MAX_REASONS = 8


class Judgement(NamedTuple):
    """The decision about one target.

    :param target: the canonical text, for example ``vault:/a.md`` or ``shell:git status``.
    :param reason: why, in a few words; may be empty for *allow*.
    :param remember: the rule that *always* would store; ``None`` when no stored rule could answer the question.
    :param contents: the state of the files that a command runs, by name.
    :param lapsed: a stored rule allowed the command until one of these files changed.
    """

    domain: str
    target: str
    decision: Strength
    reason: str = ""
    cause: Cause = "policy"
    bypass: Bypass = "mode"
    rule: Rule | None = None
    remember: Remember | None = None
    next_step: str = ""
    contents: FrozenDict = FrozenDict()
    lapsed: bool = False

    @property
    def severity(self) -> tuple[int, bool]:
        """Deny is above ask, ask above allow; of two equals, the one that no mode lifts is above."""
        return STRENGTH[self.decision], self.bypass == "never"


class Decision(NamedTuple):
    """The judgements of everything that a call touches; never empty."""

    parts: tuple[Judgement, ...]

    @property
    def worst(self) -> Judgement:
        """The most severe part, the first of equals."""
        return max(self.parts, key=lambda part: part.severity)

    @property
    def verdict(self) -> Verdict:
        """The parts as one verdict of this gate."""
        worst = self.worst
        if worst.decision == "allow":
            return Allow(reason=worst.reason, rule=worst.rule)
        strong = [part for part in self.parts if part.severity == worst.severity]
        reason = _one_sentence([part.reason for part in strong if part.reason])
        if worst.decision == "deny":
            # A mode that lifts this denial must not lift another part together with it that no mode may lift.
            bypass: Bypass = (
                "never" if any(part.bypass == "never" and part.decision != "allow" for part in self.parts) else "mode"
            )
            return Deny(reason=reason, cause=worst.cause, bypass=bypass, next_step=worst.next_step, rule=worst.rule)
        contents = {name: state for part in strong for name, state in part.contents.items()}
        fields = {"cause": worst.cause, "bypass": worst.bypass, "rule": worst.rule}
        asked = [part for part in self.parts if part.decision == "ask"]
        return Ask(reason=reason, remember=self.remember, contents=contents, unusual=unusual(asked), **fields)

    @property
    def remember(self) -> tuple[Remember, ...]:
        """The rules that *always* would store, one for each question; none if one of the questions would come again."""
        asked = [part for part in self.parts if part.decision == "ask"]
        kept = tuple(dict.fromkeys(part.remember for part in asked if part.remember is not None))
        if len(kept) > MAX_REASONS or any(part.remember is None for part in asked):
            return ()
        return () if any(hidden_character(one.pattern) for one in kept) else kept  # the store would refuse such a rule


def _one_sentence(reasons: Sequence[str]) -> str:
    """Join the distinct reasons, at most :data:`MAX_REASONS`, into one sentence."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - MAX_REASONS} more" if len(different) > MAX_REASONS else ""
    return "; ".join(different[:MAX_REASONS]) + more


def decision_of(parts: Iterable[Judgement]) -> Decision:
    """Return the decision of `parts`; equal parts count once."""
    return Decision(tuple(dict.fromkeys(parts)))


def stricter(first: Judgement, second: Judgement) -> Judgement:
    """Return the more severe of two answers about the same thing."""
    return second if second.severity > first.severity else first


_OVERRULED = ("user", "inline", "session")


def stored_rule_answers(judgement: Judgement) -> bool:
    """Whether a rule that *always* stores would answer the question; it cannot if an agent's rule or a broken rule asks."""
    rule = judgement.rule
    if judgement.bypass == "never":
        return False
    return rule is None or rule.source == "default" or (rule.source in _OVERRULED and not compile_rule(rule).problem)


_PLACES = {"session": "granted for this session", "inline": "inline configuration"}


def shortened(text: str, most: int = 80) -> str:
    """Return `text`, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def place_of(rule: Rule) -> str:
    """Return where a rule is written, for people to read."""
    if rule.source == "default":
        return "built-in default"
    if rule.file and rule.line:
        return f"{rule.file}:{rule.line}"
    return rule.file or _PLACES.get(rule.source, rule.source)


def rule_words(rule: Rule) -> str:
    """Return a rule and its place in words."""
    if rule.problem:
        return f"rule that cannot be understood ({place_of(rule)})"
    return f"rule {rule.decision} {shortened(rule.pattern)!r}{f' in {rule.folder}' if rule.folder else ''} ({place_of(rule)})"


# ---------------------------------------------------------------- rules and places


# Whether upper and lower case usually name the same file; if so, rules that protect a file ignore case.
_VOLUME_FOLDS = sys.platform == "darwin"


class CompiledRule(NamedTuple):
    """A rule and its compiled pattern.

    :param plain: normalises a target's text before it is matched, where case and look-alikes are ignored.
    """

    rule: Rule
    pattern: Pattern
    plain: Callable[[str], str] | None = None

    def matches(self, text: str) -> bool:
        """Whether the rule's pattern matches a target's text."""
        return self.pattern.matches(self.plain(text) if self.plain else text)


class RuleHit(NamedTuple):
    """A rule that matched, and its decision here; `note` says why that is not the decision written in the rule."""

    rule: Rule
    decision: Strength
    note: str = ""


Probe = Callable[[CompiledRule], RuleHit | None]


class RuleSet(NamedTuple):
    """Compiled rules by domain, in order. Make one with :func:`compile_rules`."""

    rules: tuple[Rule, ...] = ()
    by_domain: Mapping[str, tuple[CompiledRule, ...]] = {}
    by_program: Mapping[str, tuple[int, ...]] = {}
    broken: tuple[CompiledRule, ...] = ()

    def of(self, domain: str) -> tuple[CompiledRule, ...]:
        """Return the rules of `domain`, in order."""
        return self.by_domain.get(domain, ())

    def last(self, domain: str, probe: Probe) -> RuleHit | None:
        """Return the hit of the last rule of `domain` for which `probe` returns one."""
        return next((hit for compiled in reversed(self.of(domain)) if (hit := probe(compiled))), None)

    def last_for(self, programs: Iterable[str], probe: Probe) -> RuleHit | None:
        """Do the same for the domain ``bash``, with only the rules that may be about one of `programs`."""
        rules = self.of("bash")
        places = set(self.by_program.get("", ())).union(*(self.by_program.get(name, ()) for name in programs))
        return next((hit for place in sorted(places, reverse=True) if (hit := probe(rules[place]))), None)


# The last few, those of the user and of the agents; finding them here is faster than hashing all rules.
_newest: list[RuleSet] = []


def text_probe(text: str) -> Probe:
    """Return the probe for a target that is one piece of text."""
    return lambda compiled: RuleHit(compiled.rule, compiled.rule.decision) if compiled.matches(text) else None


def compile_rules(rules: Iterable[Rule]) -> RuleSet:
    """Return `rules` compiled; equal rules give the same object while it is cached."""
    wanted = tuple(rules)
    found = next((one for one in _newest if one.rules == wanted), None) or _compile_all(wanted)
    _newest[:] = [found, *(one for one in _newest if one is not found)][:64]
    return found


def _compile_all(rules: tuple[Rule, ...]) -> RuleSet:
    compiled = [_compile(rule) for rule in rules]
    readable = [one for one in compiled if not one.rule.problem]
    by_domain = {domain: tuple(one for one in readable if one.rule.domain == domain) for domain in DOMAINS}
    broken = tuple(one for one in compiled if one.pattern.problem and (one.rule.problem or one.rule.decision != "allow"))
    programs: dict[str, list[int]] = {}
    for place, one in enumerate(by_domain["bash"]):
        programs.setdefault(_program(one.pattern), []).append(place)
    return RuleSet(rules, by_domain, {name: tuple(places) for name, places in programs.items()}, broken)


def _program(pattern: Pattern) -> str:
    """Return the first word of every command that `pattern` matches; empty if they may differ in it."""
    first, space, _ = pattern.literal.partition(" ")
    return first if space or pattern.exact else ""


def _compile(rule: Rule) -> CompiledRule:
    if rule.domain not in ("read", "edit"):
        return CompiledRule(rule, compile_rule(rule))
    if protects(rule):
        return CompiledRule(rule, Pattern(lambda text: guarded_line(rule, text) is not None))
    if rule.source == "default":
        return CompiledRule(rule, compile_rule(rule), plain_text)
    if _VOLUME_FOLDS and rule.decision != "allow" and not rule.pattern.startswith("regex:"):
        return CompiledRule(rule, compile_rule(rule.replace(pattern=plain_text(rule.pattern))), plain_text)
    return CompiledRule(rule, compile_rule(rule))


# Resolves (path, domain, base folder or `None` for the vault) to a target, as the host does for file arguments.
Resolve = Callable[[str, str, str | None], Target]


class Policy(NamedTuple):
    """The rules and the folders that one judgement uses.

    :param configured: defaults, then the user's, inline and session rules: the last match wins.
    :param narrowing: the rules of the agent and of the agents that started it, by source; each can only be stricter.
    :param home: Moryflow's own folder.
    :param vault: the folder the agent works in.
    :param watched: folders and files of plugin code that is loaded as soon as it is saved.
    :param confined: returns whether commands run in a sandbox.
    """

    configured: RuleSet
    home: Path
    vault: Path
    resolve: Resolve
    narrowing: tuple[RuleSet, ...] = ()
    watched: tuple[Path, ...] = ()
    confined: Callable[[], bool] = lambda: False

    @property
    def layers(self) -> tuple[RuleSet, ...]:
        """The configured rules, then the agents' rules."""
        return (self.configured, *self.narrowing)

    def by_text(self, domain: str, target: str) -> Judgement:
        """Judge a target that is one piece of text."""
        return self.by_probe(domain, target, text_probe(target))

    def by_probe(self, domain: str, target: str, probe: Probe) -> Judgement:
        """Judge `target` by the last configured rule that `probe` matches, and by every agent's own rules."""
        return self._combine(domain, target, lambda rules: rules.last(domain, probe))

    def by_command(self, target: str, programs: Iterable[str], probe: Probe) -> Judgement:
        """Judge a command that runs one of `programs`."""
        return self._combine("bash", target, lambda rules: rules.last_for(programs, probe))

    def denies(self, text: str) -> bool:
        """Whether a rule would deny `text` if it were a command."""
        hits = (rules.last_for((text.partition(" ")[0],), text_probe(f"shell:{text}")) for rules in self.layers)
        return any(hit is not None and hit.decision == "deny" for hit in hits)

    def _combine(self, domain: str, target: str, last: Callable[[RuleSet], RuleHit | None]) -> Judgement:
        answer = _answer(domain, target, last(self.configured))
        for layer in self.narrowing:
            own = last(layer)
            if own is not None:
                answer = _stricter_for_agents(answer, _answer(domain, target, own))
        for broken in (one for layer in self.layers for one in layer.broken):
            if broken.rule.domain == domain or broken.rule.domain not in DOMAINS:
                answer = _stricter_for_agents(answer, _question_about(answer, broken))
        return answer


def make_policy(
    rules: Iterable[Rule],
    *,
    home: Path,
    vault: Path,
    resolve: Resolve,
    agent: Sequence[Rule] = (),
    watched: tuple[Path, ...] = (),
    confined: Callable[[], bool] = lambda: False,
) -> Policy:
    """Return the policy of `rules` (defaults included) and of the agents' own rules, which are judged source by source."""
    sources = dict.fromkeys(rule.source for rule in agent)
    narrowing = tuple(compile_rules(rule for rule in agent if rule.source == source) for source in sources)
    return Policy(compile_rules(rules), home, vault, resolve, narrowing, watched, confined)


def _stricter_for_agents(first: Judgement, second: Judgement) -> Judgement:
    """Return the more severe of two answers; of two equal questions the second, which no rule of the user answers."""
    return second if second.decision == "ask" and second.severity == first.severity else stricter(first, second)


def _question_about(answer: Judgement, broken: CompiledRule) -> Judgement:
    """Return the question that replaces a broken rule; no mode lifts it if the rule was meant to deny."""
    rule = broken.rule
    what = f"the rule at {place_of(rule)} cannot be understood" if rule.problem else f"the {rule_words(rule)} cannot be used"
    reason = f"{what}: {broken.pattern.problem}"
    bypass = "never" if rule.decision == "deny" else "mode"
    return Judgement(answer.domain, answer.target, "ask", reason, bypass=bypass, rule=rule)


def _answer(domain: str, target: str, hit: RuleHit | None) -> Judgement:
    if hit is None:
        return Judgement(domain, target, "ask", f"{UNCOVERED} it")
    if hit.decision == "allow":
        return Judgement(domain, target, "allow", hit.note, rule=hit.rule)
    explicit = hit.decision == "deny" and hit.rule.source != "default"
    reason = hit.note or rule_words(hit.rule)
    return Judgement(domain, target, hit.decision, reason, bypass="never" if explicit else "mode", rule=hit.rule)

"""The verdicts that a gate returns, and the permission rules behind them.

Severity: ``Stop`` > ``Deny`` > ``Ask`` > ``Allow`` > ``None``. All gates run; the allow of one does not lift the ask of
another. Only the kernel applies the session's mode, and decides what happens when nobody can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ._frozen import Frozen, FrozenMapping

Decision = Literal["allow", "ask", "deny", "stop"]
Cause = Literal[
    "policy", "hook_failure", "gate_missing", "invalid_input", "doom_loop", "memory_bank", "hard_limit",
    "headless", "unresolved", "no_verdict", "mode", "user", "question",
]  # fmt: skip
"""Why a verdict was given. ``policy`` is a rule; ``hook_failure`` is a gate that raised or took too long;
``question`` is a question of the model to the user, and no permission."""

Bypass = Literal["mode", "never"]
"""Whether ``full_access`` may lift a verdict: ``mode`` yes, ``never`` no."""


class Rule(Frozen):
    """One permission rule, and the place where it is written.

    :param source: ``default``, ``user``, ``inline``, ``agent`` or ``session``.
    :param file: the file that contains the rule, if any; `line` is 1-based; `index` is its position in its list.
    :param problem: why the rule could not be understood. It matches nothing, and every call of its domain (``*``: of any)
        is asked about; a ``deny`` in every mode.
    :param folder: for commands, the only folder that the rule applies to, such as ``vault:/sub``; without it, every folder.
    :param contents: files that must not have changed since the rule was stored: each name, such as ``vault:/build.sh``, with
        its ``sha256:…``, or ``absent``.
    """

    domain: str
    pattern: str
    decision: Literal["allow", "ask", "deny"]
    source: str = "user"
    file: str | None = None
    line: int | None = None
    index: int | None = None
    problem: str = ""
    folder: str | None = None
    contents: FrozenMapping = {}


class Remember(Frozen):
    """What answering *always* would store.

    :param scope: ``user`` writes a rule to the configuration, ``session`` keeps it for this session, ``none`` stores nothing.
    :param pattern: the literal pattern.
    :param wider: a pattern that covers more, such as ``git log *``: *always* then stores it, *exact* the literal one. Empty
        if none is safe to offer.
    :param folder: for commands, the folder of the literal rule; ``contents``, its files, as in :class:``Rule``.
    :param says: an explanation of *always*, if the pattern is not clear.
    """

    scope: Literal["user", "session", "none"] = "none"
    domain: str = ""
    pattern: str = ""
    wider: str = ""
    folder: str | None = None
    contents: FrozenMapping = {}
    says: str = ""

    @property
    def sentence(self) -> str:
        """What would be stored, in words for people: the pattern, the folder, and the files that must not change."""
        return self.wider or stored_words(self.pattern, self.folder, self.contents)

    def rules(self, *, exact: bool = False) -> tuple[Rule, ...]:
        """Return the rules to store. A wider one that ends in `` *`` comes with one for the same words and nothing behind them.

        :param exact: return the rule of the literal pattern, though there is a wider one.
        """
        if exact or not self.wider:
            bound_to: dict[str, Any] = {"folder": self.folder, "contents": self.contents}
            return (Rule(domain=self.domain, pattern=self.pattern, decision="allow", **bound_to),)
        patterns = (self.wider.removesuffix(" *"), self.wider)
        return tuple(Rule(domain=self.domain, pattern=one, decision="allow") for one in dict.fromkeys(patterns))


class Offer(Frozen):
    """Rules that the user may add in answer to a question. Only the first such question of a folder shows it.

    :param name: the name of a preset of rules; the plugin with the presets returns its rules by ``preset_rules(name)``.
    :param says: what they do, in words that follow "from now on".
    """

    name: str
    says: str


def stored_words(pattern: str, folder: str | None, contents: Mapping[str, str]) -> str:
    """Return a rule's pattern with its conditions: ``make in vault:/sub, while vault:/sub/Makefile stays as it is``."""
    there = [name for name, state in contents.items() if state != "absent"]
    bound = f"{pattern} in {folder}" if folder else pattern
    if there:
        return f"{bound}, while {' and '.join(there)} {'stays as it is' if len(there) == 1 else 'stay as they are'}"
    return f"{bound}, while there is no {' or '.join(contents)}" if contents else bound


class _Spoken(Frozen):
    """Base of verdicts: the reason may be a positional argument, ``Deny("lock files are generated")``."""

    def __init__(self, *reason: str, **fields: Any) -> None:
        if len(reason) > 1:
            raise TypeError(f"{type(self).__name__} takes its reason without a name, and all else by name")
        super().__init__(**dict(zip(("reason",), reason, strict=False)), **fields)


class Allow(_Spoken):
    """This gate has no objection."""

    if TYPE_CHECKING:

        def __init__(self, reason: str = "", *, rule: Rule | None = None) -> None: ...

    reason: str = ""
    rule: Rule | None = None
    decision: Literal["allow"] = "allow"


class Ask(_Spoken):
    """The user must agree first.

    :param reason: one sentence shown in the question.
    :param remember: what *always* would store; without it the answer is for this call.
    :param contents: what else the answer covers, by name, such as the hash of a script that the call starts. Right before
        the call runs, the gates are asked again; if their questions or these contents have changed, the answer is void.
    :param opens: paths of files that the sandbox leaves readable and writable if the user agrees.
    :param unusual: what is unusual about the call, in one line, for the user; by default the reason.
    :param offer: rules that would answer this question and others like it.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            reason: str,
            *,
            cause: Cause = "policy",
            bypass: Bypass = "mode",
            remember: tuple[Remember, ...] = (),
            contents: Mapping[str, str] | None = None,
            opens: tuple[str, ...] = (),
            unusual: str | None = None,
            offer: Offer | None = None,
            rule: Rule | None = None,
        ) -> None: ...

    reason: str
    cause: Cause = "policy"
    bypass: Bypass = "mode"
    remember: tuple[Remember, ...] = ()
    contents: FrozenMapping = {}
    opens: tuple[str, ...] = ()
    unusual: str | None = None
    offer: Offer | None = None
    rule: Rule | None = None
    decision: Literal["ask"] = "ask"


class Deny(_Spoken):
    """The call must not run. The model reads `reason` and `next_step`, and the turn continues."""

    if TYPE_CHECKING:

        def __init__(
            self,
            reason: str,
            *,
            cause: Cause = "policy",
            bypass: Bypass = "never",
            next_step: str = "",
            rule: Rule | None = None,
        ) -> None: ...

    reason: str
    cause: Cause = "policy"
    bypass: Bypass = "never"
    next_step: str = ""
    rule: Rule | None = None
    decision: Literal["deny"] = "deny"


class Stop(_Spoken):
    """The call must not run and the turn ends.

    :param end_reason: how the turn ends.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            reason: str,
            *,
            cause: Cause = "policy",
            end_reason: Literal["denied", "doom_loop", "budget", "stopped"] = "denied",
            rule: Rule | None = None,
        ) -> None: ...

    reason: str
    cause: Cause = "policy"
    end_reason: Literal["denied", "doom_loop", "budget", "stopped"] = "denied"
    rule: Rule | None = None
    decision: Literal["stop"] = "stop"


Verdict = Allow | Ask | Deny | Stop
"""What a gate may return."""


class Ruling(Frozen):
    """The combined verdict of all gates, after mode and headless were applied, as ``tool_decided`` receives it.

    :param decision: what happens: the call runs (``allow``), is refused (``deny``), or ends the turn (``stop``);
        ``ask`` means that the user has not answered yet.
    :param verdicts: every gate's own verdict, by plugin name, in order.
    :param mode: the session's mode at the time of the decision.
    :param by: who decided: ``rule``, ``mode``, ``user`` or ``headless``.
    :param unusual: what a question says is unusual about the call; `offer`: the rules that it offers beside *always*.
    :param reply: what the user answered, if ``by`` is ``user``: ``once``, ``always``, ``exact``, ``preset``, ``reject`` or
        ``stop``; `message` is what they wrote with it.
    :param gate_us: microseconds that all gates took together.
    """

    decision: Decision
    cause: Cause = "policy"
    reason: str = ""
    next_step: str = ""
    rule: Rule | None = None
    remember: tuple[Remember, ...] = ()
    unusual: str = ""
    offer: Offer | None = None
    end_reason: Literal["denied", "doom_loop", "budget", "stopped"] | None = None
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    mode: str = "agent"
    by: Literal["rule", "mode", "user", "headless"] = "rule"
    reply: str = ""
    message: str = ""
    gate_us: int = 0


def settle(verdict: Verdict, *, mode: str, headless: bool) -> Decision:
    """Return the decision that `verdict` leads to in `mode`, with the user to ask or without one (`headless`).

    ``full_access`` turns a verdict that may be bypassed into allow; if nobody can be asked, ask becomes deny. The kernel and
    ``permission test`` both use this definition.
    """
    decision: Decision = verdict.decision
    if mode == "full_access" and isinstance(verdict, Ask | Deny) and verdict.bypass == "mode":
        return "allow"
    return "deny" if decision == "ask" and headless else decision

"""What a gate answers, and the rules it answers from.

Strength: ``Stop`` > ``Deny`` > ``Ask`` > ``Allow`` > ``None``. All gates run; an allow lifts no other gate's ask.
Only the kernel applies the session's mode and what happens when nobody can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ._frozen import Frozen, FrozenMapping

Decision = Literal["allow", "ask", "deny", "stop"]
Cause = Literal[
    "policy", "hook_failure", "gate_missing", "invalid_input", "doom_loop", "memory_bank", "hard_limit",
    "headless", "unresolved", "no_verdict", "mode", "user",
]  # fmt: skip
"""Why a verdict was given. ``policy`` is a rule; ``hook_failure`` is a gate that raised or took too long."""

Bypass = Literal["mode", "never"]
"""Whether ``full_access`` may lift a verdict: ``mode`` yes, ``never`` no."""


class Rule(Frozen):
    """One permission rule and where it stands.

    :param source: ``default``, ``user``, ``inline``, ``agent`` or ``session``.
    :param file: the file that holds it, if any; `line` is 1-based; `index` is its place in its list.
    :param problem: why it could not be understood as it is written. It then matches nothing, and every call of its domain
        (``*``: of any domain) is asked about; where its decision is ``deny``, in every mode.
    :param folder: for commands, the only folder that it is about, such as ``vault:/sub``; without one, every folder.
    :param contents: files that have to be as they were when the rule was stored: name, such as ``vault:/build.sh``, and
        ``sha256:…``, or ``absent``.
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
    :param pattern: the literal pattern, shown before it is saved.
    :param wider: a pattern that covers more, which may be offered instead; empty where none is safe to offer.
    :param folder: for commands, the folder that the rule will be about; `contents` what it will be bound to, as in
        :class:`Rule`.
    :param says: what *always* does, shown with the question when the pattern does not tell.
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
        """What would be stored, for people: the pattern, the folder, and the files that have to stay as they are."""
        return stored_words(self.pattern, self.folder, self.contents)


def stored_words(pattern: str, folder: str | None, contents: Mapping[str, str]) -> str:
    """Return a rule's pattern with what it is bound to: ``make in vault:/sub, while vault:/sub/Makefile stays as it is``."""
    there = [name for name, state in contents.items() if state != "absent"]
    bound = f"{pattern} in {folder}" if folder else pattern
    if there:
        return f"{bound}, while {' and '.join(there)} {'stays as it is' if len(there) == 1 else 'stay as they are'}"
    return f"{bound}, while there is no {' or '.join(contents)}" if contents else bound


class _Spoken(Frozen):
    """A verdict: its reason may be given without the field's name, ``Deny("lock files are generated")``."""

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
    """A person must agree first.

    :param reason: one sentence shown in the question.
    :param remember: what *always* would store; without it the answer counts once.
    :param contents: what else the answer covers, by name, such as the hash of a script that the call starts. After the answer,
        right before the call runs, the gates are asked again; if their questions or these contents have changed, the answer is
        void.
    :param opens: files that the question names, by their paths; a sandbox neither hides nor closes them when it is answered.
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
            rule: Rule | None = None,
        ) -> None: ...

    reason: str
    cause: Cause = "policy"
    bypass: Bypass = "mode"
    remember: tuple[Remember, ...] = ()
    contents: FrozenMapping = {}
    opens: tuple[str, ...] = ()
    rule: Rule | None = None
    decision: Literal["ask"] = "ask"


class Deny(_Spoken):
    """The call must not run; the model reads `reason` and `next_step` and the turn goes on."""

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
"""What a gate answers."""


class Ruling(Frozen):
    """The combined verdict of all gates, after mode and headless, as ``tool_decided`` sees it.

    :param decision: what happens: the call runs (``allow``), is refused (``deny``), or ends the turn (``stop``);
        ``ask`` stands only while a person has not answered.
    :param verdicts: every gate's own verdict, by plugin name, in order.
    :param mode: the session's mode when it was taken.
    :param by: who lifted or answered it: ``rule``, ``mode``, ``user`` or ``headless``.
    :param gate_us: microseconds all gates took together.
    """

    decision: Decision
    cause: Cause = "policy"
    reason: str = ""
    next_step: str = ""
    rule: Rule | None = None
    remember: tuple[Remember, ...] = ()
    end_reason: Literal["denied", "doom_loop", "budget", "stopped"] | None = None
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    mode: str = "agent"
    by: Literal["rule", "mode", "user", "headless"] = "rule"
    gate_us: int = 0


def settle(verdict: Verdict, *, mode: str, headless: bool) -> Decision:
    """Return the decision that `verdict` leads to in `mode`, and when nobody can be asked.

    ``full_access`` turns what may be bypassed into allow; without anybody to ask, ask becomes deny. Kernel and
    ``permission test`` use this one definition.
    """
    decision: Decision = verdict.decision
    if mode == "full_access" and isinstance(verdict, Ask | Deny) and verdict.bypass == "mode":
        return "allow"
    return "deny" if decision == "ask" and headless else decision

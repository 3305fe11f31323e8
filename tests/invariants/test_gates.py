"""How verdicts combine, over every combination of gates and modes (invariants 3 and 4)."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from moryflow.kernel.tool_executor import combine, default_verdicts, restrict
from moryflow_sdk import Allow, Ask, Deny, Remember, Stop, Verdict

STRENGTH = ("allow", "ask", "deny", "stop")
VERDICTS: tuple[Verdict, ...] = (
    Allow(),
    Ask("one", remember=(Remember(scope="session", domain="bash", pattern="one"),)),
    Ask("two", bypass="never"),
    Deny("three"),
    Deny("four", bypass="mode"),
    Stop("five"),
)
MODES = ("agent", "full_access")


def lifted(verdict: Verdict, mode: str) -> bool:
    return mode == "full_access" and getattr(verdict, "bypass", "") == "mode"


def given(verdicts: tuple[Verdict, ...]) -> list[tuple[str, Verdict]]:
    return [(f"gate{number}", verdict) for number, verdict in enumerate(verdicts)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_strictest_verdict_that_no_mode_lifts_decides(mode: str, count: int) -> None:
    """A deny or an ask that no mode may lift stays beside one that may; stop > deny > ask > allow (S0.41, R4, D2)."""
    for verdicts in product(VERDICTS, repeat=count):
        standing = ["allow" if lifted(one, mode) else one.decision for one in verdicts]
        ruling = combine(given(verdicts), mode=mode)
        assert ruling.decision == max(standing, key=STRENGTH.index), verdicts
        assert [one for _, one in ruling.verdicts] == [*verdicts], "what each gate said is kept"


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_gates_changes_no_decision(mode: str) -> None:
    """No plugin wins by coming first or last (S0.41)."""
    for verdicts in product(VERDICTS, repeat=3):
        decisions = {combine(given(order), mode=mode).decision for order in permutations(verdicts)}
        assert len(decisions) == 1, verdicts


def test_several_asks_are_one_question_with_every_reason_and_rule() -> None:
    """Answered once, and *always* stores what each gate wanted; a mode lifts only its own part (S0.41)."""
    rules = tuple(Remember(scope="session", domain="bash", pattern=name) for name in ("a", "b"))
    asks = (Ask("first", remember=rules[:1]), Ask("second", remember=rules[1:]), Ask("hard", bypass="never"))
    ruling = combine(given(asks), mode="agent")
    assert (ruling.decision, ruling.reason, ruling.remember) == ("ask", "first; second; hard", rules)
    full = combine(given(asks), mode="full_access")
    assert (full.decision, full.reason, full.remember) == ("ask", "hard", ())


@pytest.mark.parametrize("mode", MODES)
def test_a_second_opinion_only_tightens(mode: str) -> None:
    """What `tool_decided` returns is taken when it is stricter, whatever was decided (S0.41)."""
    for first, second in product(VERDICTS, repeat=2):
        before = combine(given((first,)), mode=mode)
        after = restrict(before, given((second,)), mode=mode)
        assert STRENGTH.index(after.decision) >= STRENGTH.index(before.decision), (first, second)
        if lifted(second, mode) or STRENGTH.index(second.decision) <= STRENGTH.index(before.decision):
            continue
        assert after.decision == second.decision, (first, second)


def test_no_gate_asks_and_a_missing_one_asks_in_every_mode() -> None:
    """No verdict is no allow, and a gate that is not loaded is not lifted by full access (invariant 4, D27)."""
    assert combine(default_verdicts((), []), mode="agent").cause == "no_verdict"
    allowed = given((Allow(),))
    for mode in MODES:
        ruling = combine([*allowed, *default_verdicts(("audit",), allowed)], mode=mode)
        assert (ruling.decision, ruling.cause) == ("ask", "gate_missing") and "audit" in ruling.reason


def test_a_failing_decided_hook_denies_in_full_access_and_asks_otherwise():
    """Nothing runs unrecorded: deny in full access, else ask (ARCHITECTURE §4, S0.73)."""
    broken = [("audit", Deny(reason="disk full", cause="hook_failure"))]
    allowed = combine([("p", Allow())], mode="agent")
    assert restrict(allowed, broken, mode="full_access").decision == "deny"
    assert restrict(allowed, broken, mode="agent").decision == "ask"

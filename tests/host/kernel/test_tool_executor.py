"""Combining gates, mode and headless."""

from hypothesis import given
from hypothesis import strategies as st
from moryflow.kernel.tool_executor import combine, default_verdicts, restrict
from moryflow_sdk import Allow, Ask, Deny, Remember, Stop

VERDICTS = st.one_of(
    st.just(Allow()),
    st.builds(Ask, reason=st.sampled_from(["a", "b"]), bypass=st.sampled_from(["mode", "never"])),
    st.builds(Deny, reason=st.just("no"), bypass=st.sampled_from(["mode", "never"])),
    st.builds(Stop, reason=st.just("stop")),
)
STRENGTH = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}


@given(st.lists(VERDICTS, min_size=1, max_size=6), VERDICTS, st.sampled_from(["agent", "full_access"]))
def test_another_gate_never_loosens_a_ruling(verdicts, extra, mode):
    """Stop > deny > ask > allow; an allow lifts no other gate's ask (ARCHITECTURE §3)."""
    before = combine([("g", v) for v in verdicts], mode=mode)
    after = combine([*(("g", v) for v in verdicts), ("x", extra)], mode=mode)
    assert STRENGTH[after.decision] >= STRENGTH[before.decision]


@given(st.lists(VERDICTS, min_size=1, max_size=6))
def test_full_access_lifts_only_what_may_be_bypassed(verdicts):
    """``full_access`` turns asks and default denies into allow; what says never stays (D2)."""
    ruling = combine([("g", v) for v in verdicts], mode="full_access")
    firm = [v for v in verdicts if isinstance(v, Stop) or getattr(v, "bypass", None) == "never"]
    assert (ruling.decision == "allow") == (not firm)


def test_several_asks_are_one_question_with_all_reasons_and_patterns():
    """Several asks become one question; always stores each one's own pattern (ARCHITECTURE §3)."""
    first = Ask(reason="outside the vault", remember=(Remember(scope="user", domain="read", pattern="fs:/a"),))
    second = Ask(reason="sensitive", remember=(Remember(scope="user", domain="read", pattern="fs:/b"),))
    ruling = combine([("p", first), ("q", Allow()), ("r", second)], mode="agent")
    assert ruling.decision == "ask"
    assert ruling.reason == "outside the vault; sensitive"
    assert [item.pattern for item in ruling.remember] == ["fs:/a", "fs:/b"]


def test_no_gate_means_ask_not_allow():
    """If no gate gives a verdict the call is asked about (invariant 4, D27)."""
    verdicts = default_verdicts((), [])
    assert combine(verdicts, mode="agent").decision == "ask"
    assert combine(verdicts, mode="agent").cause == "no_verdict"


def test_a_missing_gate_asks_under_an_allow_in_every_mode():
    """A gate that failed to load puts a floor of ask under every call, also in full access (invariant 4)."""
    given_verdicts = [("permission", Allow())]
    for mode in ("agent", "full_access"):
        ruling = combine([*given_verdicts, *default_verdicts(("audit",), given_verdicts)], mode=mode)
        assert (ruling.decision, ruling.cause) == ("ask", "gate_missing")
        assert "audit" in ruling.reason


def test_decided_may_only_tighten():
    """``tool_decided`` may make a ruling stricter, never looser (ARCHITECTURE §4)."""
    denied = combine([("p", Deny(reason="no"))], mode="agent")
    assert restrict(denied, [("audit", Allow())], mode="agent") is denied
    allowed = combine([("p", Allow())], mode="agent")
    assert restrict(allowed, [("audit", Ask(reason="cannot write"))], mode="agent").decision == "ask"


def test_a_failing_decided_hook_denies_in_full_access_and_asks_otherwise():
    """Nothing runs unrecorded: deny in full access, else ask (ARCHITECTURE §4, S0.73)."""
    broken = [("audit", Deny(reason="disk full", cause="hook_failure"))]
    allowed = combine([("p", Allow())], mode="agent")
    assert restrict(allowed, broken, mode="full_access").decision == "deny"
    assert restrict(allowed, broken, mode="agent").decision == "ask"

"""The counters of a run: what counts as the same call, and when a threshold is hit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins import doom_loop
from moryflow_builtins.doom_loop import DoomLoopSettings, Run, signature_of
from moryflow_sdk import Rule, Ruling, ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def call(number: int, tool: str = "t", **args) -> ToolCall:
    return ToolCall(id=f"c{number}", tool=tool, args=args)


def turned_around(value):
    """The same JSON with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned_around(value[key]) for key in reversed(value)}
    return [turned_around(item) for item in value] if isinstance(value, list) else value


class Turn(SimpleNamespace):
    """What the plugin needs of a turn."""

    def __init__(self, turn="t1", mode="agent", grants=(), headless=False, state=None, **settings):
        self.told = []
        super().__init__(
            id=turn, mode=mode, grants=grants, headless=headless, session_state={} if state is None else state,
            config=DoomLoopSettings(**settings), emit=lambda kind, **data: self.told.append((kind, data)),
        )  # fmt: skip


def answer(turn, made, verdict, by="user", decision="allow"):
    """Decide a call as the kernel does: an ask by a person, anything else as the gate said."""
    said = decision if verdict is not None and verdict.decision == "ask" else getattr(verdict, "decision", "allow")
    doom_loop.tool_decided(made, Ruling(decision=said, by=by), turn)


def judged(turn, numbers, **args):
    """Gate and decide one call after the other; return the verdicts."""
    verdicts = []
    for number in numbers:
        made = call(number, **args)
        verdicts.append(doom_loop.tool_gate(made, turn))
        answer(turn, made, verdicts[-1])
    return verdicts


def decisions(verdicts):
    return [getattr(verdict, "decision", "-") for verdict in verdicts]


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_the_order_of_keys_does_not_matter(args):
    """The signature is of stable, key-sorted JSON (S0.60)."""
    assert signature_of(call(1, a=args), 8192) == signature_of(call(2, a=turned_around(args)), 8192)


@given(JSON, JSON)
def test_other_arguments_are_another_signature(one, two):
    """Equal only when the JSON is equal (S0.60)."""
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (signature_of(call(1, a=one), 8192) == signature_of(call(2, a=two), 8192)) == same


def test_large_arguments_count_by_tool_name():
    """Over 8 KB they are not compared; exactly 8 KB are (S0.59)."""
    fits = "x" * (8192 - len('{"a":""}'))
    assert signature_of(call(1, a=fits), 8192) != signature_of(call(2, a=fits[:-1] + "y"), 8192)
    assert signature_of(call(1, a=fits + "x"), 8192) == signature_of(call(2, a=fits + "y"), 8192) == "t"


def test_the_fifth_equal_call_in_a_row_is_asked_about():
    """Same tool, same arguments, five times; another call in between starts anew (S0.59, S0.61)."""
    assert decisions(judged(Turn(), range(5), x=1)) == ["-"] * 4 + ["ask"]
    turn = Turn()
    judged(turn, range(4), x=1)
    judged(turn, [10], x=2)
    assert decisions(judged(turn, range(20, 25), x=1)) == ["-"] * 4 + ["ask"]


def test_the_sixty_first_call_of_a_run_is_asked_about():
    """Sixty calls are free, whatever they are (S0.58, S0.59)."""
    turn = Turn()
    verdicts = [doom_loop.tool_gate(call(n, x=n), turn) for n in range(61)]
    assert decisions(verdicts) == ["-"] * 60 + ["ask"]


def test_the_question_says_what_always_means():
    """``always`` is for the session, not stored, and the question says so (S0.62, D25)."""
    ask = judged(Turn(), range(5), x=1)[-1]
    assert (ask.cause, ask.bypass) == ("doom_loop", "never")
    assert [(item.scope, item.domain) for item in ask.remember] == [("session", "doom_loop")]
    assert "5 times in a row" in ask.reason
    [remember] = ask.remember
    assert all(said in remember.says for said in ("this session only", "not stored", "the counters start again at zero"))


def test_going_on_resets_the_count_and_leaves_three_calls_alone():
    """Continue: counts start anew after a short cooldown (S0.59, S0.64)."""
    verdicts = judged(Turn(), range(16), x=1)
    assert [index for index, verdict in enumerate(verdicts) if verdict] == [4, 11]


def test_calls_during_the_cooldown_count_towards_the_limit_of_the_run():
    """The cooldown skips checks, not the count of calls (D10)."""
    turn = Turn(max_tool_calls=5, same_tool_threshold=99)
    verdicts = [judged(turn, [n], x=n)[0] for n in range(14)]
    assert [index for index, verdict in enumerate(verdicts) if verdict] == [5, 11]


def test_a_person_may_agree_to_go_on_as_often_as_asked():
    """maxAttempts does not bound approvals (D10)."""
    verdicts = judged(Turn(), range(60), x=1)
    assert {verdict.decision for verdict in verdicts if verdict} == {"ask"}


GRANT = Rule(domain="doom_loop", pattern="*", decision="allow", source="session")


@pytest.mark.parametrize("before", [0, 2, 3])
def test_always_goes_on_without_a_question_and_starts_the_counters_again(before):
    """What the question says of always: in this session, each time from zero, whatever was refused before (S0.61, S0.62)."""
    turn = Turn()
    for number in range(5 + before):
        made = call(number, x=1)
        answer(turn, made, doom_loop.tool_gate(made, turn), decision="deny")
    turn.grants = (GRANT,)
    verdicts = [verdict for verdict in judged(turn, range(100, 180), x=1) if verdict]
    assert {verdict.decision for verdict in verdicts} == {"allow"} and len(verdicts) >= 9
    run = turn.session_state["run"]
    assert (run["attempts"], run["total"]) == (0, 85 + before) and max(run["calls"], run["repeats"]) < 8


def test_an_answer_of_always_itself_starts_the_counters_again():
    """As if the run had just begun, but for the count of all calls (S0.61)."""
    turn = Turn()
    judged(turn, range(5), x=1)
    run = turn.session_state["run"]
    assert {name: run[name] for name in ("calls", "repeats", "signature", "attempts")} == {
        "calls": 0, "repeats": 0, "signature": "", "attempts": 0,
    }  # fmt: skip


@pytest.mark.parametrize("headless", [False, True])
def test_full_access_goes_on_without_a_card_and_is_recorded(headless):
    """No question up to the attempts, then the run stops; each time something says so (D11, S0.71)."""
    turn = Turn(mode="full_access", headless=headless)
    verdicts = [verdict for verdict in judged(turn, range(40), x=1) if verdict]
    assert [verdict.decision for verdict in verdicts][:4] == ["allow", "allow", "allow", "stop"]
    assert "continued (1 of 3), because full_access" in verdicts[0].reason
    assert turn.told[0] == ("hit", turn.told[0][1]) and turn.told[0][1]["threshold"] == "same_tool"


def test_with_nobody_to_ask_the_run_ends_with_a_sentence():
    """The sentence says what happened and what to change (S0.63)."""
    stop = judged(Turn(headless=True), range(5), x=1)[-1]
    assert (stop.decision, stop.cause, stop.end_reason) == ("stop", "doom_loop", "doom_loop")
    assert "t was called 5 times in a row" in stop.reason and "say more precisely what you want" in stop.reason


def test_a_person_who_refuses_is_not_asked_for_ever():
    """Refusals count as attempts, so that an automatic no cannot loop either (D10)."""
    turn, seen = Turn(), []
    for number in range(12):
        made = call(number, x=1)
        verdict = doom_loop.tool_gate(made, turn)
        answer(turn, made, verdict, decision="deny")
        seen += [verdict.decision] if verdict else []
    assert seen[:4] == ["ask", "ask", "ask", "stop"]


def test_a_call_judged_again_after_a_restart_counts_once():
    """The question is still open in the new turn, and the counters go with it (S0.65, D65)."""
    state: dict = {}
    before = Turn("t1", state=state)
    verdicts = [doom_loop.tool_gate(call(n, x=1), before) for n in range(5)]
    stored = json.loads(json.dumps(state))
    after = Turn("t2", state=stored)
    again = doom_loop.tool_gate(call(4, x=1), after)
    assert verdicts[-1] == again
    answer(after, call(4, x=1), again)
    assert stored["run"]["attempts"] == 0 and stored["run"]["turn"] == "t2"


def test_a_new_prompt_starts_a_new_run():
    """State belongs to the run (D67)."""
    state: dict = {}
    judged(Turn("t1", state=state), range(4), x=1)
    assert decisions(judged(Turn("t2", state=state), range(10, 14), x=1)) == ["-"] * 4


def test_stored_state_of_another_version_is_no_obstacle():
    """Unknown and missing fields are fine."""
    state = {"run": {"turn": "t1", "calls": 3, "later": 1}}
    assert decisions(judged(Turn("t1", state=state), range(4), x=1)) == ["-"] * 4


def test_it_can_be_switched_off():
    """``enabled: false`` (S0.66)."""
    turn = Turn(enabled=False)
    assert decisions(judged(turn, range(80), x=1)) == ["-"] * 80 and turn.session_state == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=80), st.data())
def test_calls_in_one_message_count_as_calls_in_many(calls, data):
    """However calls are spread over steps, verdicts and counters are the same (S0.58, D67)."""
    serial, grouped = Turn(mode="full_access"), Turn(mode="full_access")
    made = [call(number, tool, x=argument) for number, (tool, argument) in enumerate(calls)]
    one = []
    for item in made:
        one.append(doom_loop.tool_gate(item, serial))
        answer(serial, item, one[-1], by="rule")
    many, rest = [], list(made)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        batch, rest = rest[:size], rest[size:]
        verdicts = [doom_loop.tool_gate(item, grouped) for item in batch]
        for item, verdict in zip(batch, verdicts, strict=True):
            answer(grouped, item, verdict, by="rule")
        many += verdicts
    assert one == many
    assert Run.load(serial.session_state, "t1", "") == Run.load(grouped.session_state, "t1", "")

"""Recorded changes lead from any value of a chain to every other, as far as they were written down."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from moryflow.authoring.recorded_inputs import UNKNOWN, _backward, _forward
from moryflow.authoring.replay import first_difference
from moryflow.hooks.checks import check_result
from moryflow_sdk import ChatParams, Message, ToolResult

TEXT = st.text(max_size=8)
RESULTS = st.builds(ToolResult, output=TEXT, title=TEXT, metadata=st.dictionaries(TEXT, st.integers(), max_size=2))
PARAMS = st.builds(ChatParams, temperature=st.none() | st.floats(0, 2), extra=st.dictionaries(TEXT, TEXT, max_size=2))
LISTS = st.lists(st.builds(Message, role=st.just("user"), text=TEXT), max_size=4).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def chain(hook: str, values: list[Any], withholding: int | None = None) -> list[Any]:
    """Return the ledger's rows for implementations that made each of `values` the next one."""
    marks = [SimpleNamespace(withholds=number == withholding) for number in range(len(values))]
    rows = []
    for number, (before, after) in enumerate(pairwise(values)):
        change = check_result(hook, before, after, marks[number:-1])
        rows.append(SimpleNamespace(outcome="changed" if change else "ok", delta=change and change[1]))
    return rows


@given(st.lists(RESULTS, min_size=1, max_size=4))
def test_results_are_rebuilt_from_the_last_one_backwards(values: list[ToolResult]) -> None:
    """What a tool returned is not stored; what became of it is (ARCHITECTURE §4, ledger)."""
    assert _backward(values[-1], chain("tool_after", values), {}) == values


@given(st.lists(PARAMS, min_size=1, max_size=4))
def test_parameters_are_rebuilt_in_both_directions(values: list[ChatParams]) -> None:
    rows = chain("chat_params", values)
    assert _forward(values[0], rows) == values == _backward(values[-1], rows, {})


@given(st.lists(LISTS, min_size=1, max_size=4))
def test_messages_are_rebuilt_from_the_first_list_forwards(values: list[tuple[Message, ...]]) -> None:
    assert _forward(values[0], chain("chat_messages", values)) == values


@given(st.lists(RESULTS, min_size=2, max_size=4, unique_by=lambda result: result.output), st.data())
def test_nothing_is_known_of_what_a_redactor_was_to_see(values: list[ToolResult], data: st.DataObject) -> None:
    """Behind it everything is, before it nothing that it may have removed (S2.20)."""
    place = data.draw(st.integers(0, len(values) - 2))
    found = _backward(values[-1], chain("tool_after", values, place), {})
    assert found[place + 1 :] == values[place + 1 :]
    assert all(value is UNKNOWN for value in found[: place + 1])


@given(JSON, JSON)
def test_two_values_differ_exactly_when_a_difference_is_found(before: Any, after: Any) -> None:
    """And the two sides of it do differ."""
    found = first_difference(before, after)
    assert (found is None) == (before == after)
    assert found is None or found.before != found.after

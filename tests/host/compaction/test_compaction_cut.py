"""Where a conversation is cut, and which outputs become one line."""

from __future__ import annotations

import json

from compaction_paths import calls, path_of, result, says, talk, texts, user
from hypothesis import given
from hypothesis import strategies as st
from moryflow.compaction.plan import Cut, find_cut, is_prepared, legal_places
from moryflow.compaction.prune import PruneLimits, placeholder, plan_pruning
from moryflow.config.schema import CompactionSettings
from moryflow.store.messages import ContextBuilder, pair_results

WIDE = 1e9


def cut(path, *, keep, room=WIDE, turns=3, sizes=None):
    return find_cut(path, sizes or [100.0] * len(path), keep=keep, room=room, turns=turns)


def test_the_newest_tokens_are_kept_from_the_start_of_their_turn():
    """From the tail to keep_recent_tokens, then to the start of that turn (S1.8, S1.9)."""
    path = path_of(*talk(5))
    assert cut(path, keep=350, turns=1) == Cut(6, 6)


def test_three_turns_stay_where_they_fit():
    """The earlier of the third-last turn and keep_recent_tokens (S0.18, D15)."""
    path = path_of(*talk(6))
    assert cut(path, keep=100) == Cut(6, 6)
    assert cut(path, keep=100, room=350) == Cut(10, 10)
    assert cut(path, keep=900) == Cut(2, 2)


def test_turns_are_given_up_one_by_one_and_the_last_only_if_it_alone_does_not_fit():
    """Fewer than three stay only where three do not fit (S0.18, D15)."""
    path = path_of(*talk(6), user())
    for room, at in ((700, 6), (600, 8), (300, 10)):
        assert find_cut(path, [100.0] * len(path), keep=0, room=room, turns=3) == Cut(at, at)
    assert find_cut(path, [100.0] * 11 + [900.0, 100.0], keep=0, room=300, turns=3) == Cut(12, 12)


def test_a_turn_that_is_too_large_is_split():
    """The cut falls inside the turn; where the turn begins is known (S1.11)."""
    path = path_of(user(), says(), user(), *[says() for _ in range(10)])
    assert cut(path, keep=300, room=400) == Cut(10, 2)


def test_a_turn_that_is_split_again_still_begins_at_its_prompt():
    """Of what came before the first split its prompt alone is left, and what is covered now belongs to it, too (S1.11)."""
    path = path_of(user(), *[says(f"part {n}") for n in range(12)])
    again = find_cut(path, [100.0] * len(path), keep=300, room=400, turns=3, start=4)
    assert again == Cut(10, 0)


def test_nothing_is_cut_when_everything_fits():
    """Few turns: everything stays (S0.18)."""
    assert cut(path_of(*talk(2)), keep=100) is None and cut([], keep=1) is None


def test_no_cut_between_a_call_and_its_result():
    """Only before a prompt, an answer or a note, and never while a call is open (S1.10)."""
    path = path_of(user(), calls("a", "b"), result("a"), ("note", {"text": "n"}), result("b"), says())
    assert legal_places(path) == [0, 1, 5]


STEP = st.one_of(
    st.integers(0, 3).map(lambda n: ("step", n)), st.just(("user", 0)), st.just(("note", 0)), st.just(("marker", 0))
)


@st.composite
def paths(draw):
    items, number = [user()], 0
    for kind, calls_made in draw(st.lists(STEP, max_size=25)):
        if kind == "step":
            ids = [f"c{number + i}" for i in range(calls_made)]
            number += calls_made
            items += [calls(*ids) if ids else says(), *[result(i) for i in ids]]
        else:
            items.append(user() if kind == "user" else (kind, {"text": "t", "label": "l"}))
    return path_of(*items)


@given(paths(), st.integers(1, 2000), st.integers(1, 3000), st.integers(1, 4))
def test_any_cut_leaves_a_request_that_every_provider_accepts(path, keep, room, turns):
    """Wherever it is cut, each kept call has its result and each kept result its call (S1.10, D22)."""
    found = cut(path, keep=keep, room=room, turns=turns)
    if found is None:
        return
    assert 0 < found.at < len(path) and found.turn <= found.at
    kept = path[found.at :]
    made = {call["id"] for node in kept if node.kind == "assistant" for call in node.payload["calls"]}
    assert made == {node.payload["call_id"] for node in kept if node.kind == "tool"}


@given(paths(), st.integers(0, 30))
def test_a_view_that_grew_is_the_view_made_anew(path, first):
    """The cache of the view never changes it; a step without a prune leaves the prefix as it was (invariant 7, D15)."""
    builder, known = ContextBuilder(), []
    for end in range(min(first, len(path)), len(path) + 1):
        view = builder.build(path[:end])
        assert view == ContextBuilder().build(path[:end])
        stable = [message for message in known if message.text != "interrupted: this call has no result"]
        assert [message for message in view if message in stable][: len(stable)] == stable
        known = view
    assert known == pair_results(known)


# -------------------------------------------------------------------- prune


def old_outputs(number=4, size=40_000, tool="read"):
    steps = [item for i in range(number) for item in (user(), calls(f"c{i}", tool=tool), result(f"c{i}", size=size, tool=tool))]
    return path_of(*steps, *talk(3))


def limits(protect=10_000, minimum=5000, turns=3):
    return PruneLimits(protect, minimum, turns, CompactionSettings().protected_tools)


def plan(path, given_limits=None, done=()):
    return plan_pruning(path, dict.fromkeys(done, "x"), given_limits or limits(), lambda text: len(text) / 4)


def test_old_outputs_are_pruned_and_the_newest_stay():
    """Newest outputs and turns stay, older ones become a line, saved tokens are known (S0.19, S2.8, S4.14, D15)."""
    pruning = plan(old_outputs())
    assert sorted(pruning.nodes) == ["n2", "n5", "n8"] and pruning.dropped == {"read": 3}
    assert 29_000 < pruning.saved < 30_000


def test_too_little_saved_is_not_worth_a_prompt_cache():
    """Below the minimum nothing is pruned; the defaults are 40,000 and 20,000 tokens (D15, S4.14)."""
    assert not plan(old_outputs(), limits(minimum=30_000))
    defaults = CompactionSettings()
    assert (defaults.prune_protect_tokens, defaults.prune_minimum_tokens) == (40_000, 20_000)


def test_the_outputs_of_some_tools_are_never_pruned():
    """task, tasks_*, write, edit, move, delete by default (S0.20)."""
    for tool in ("task", "tasks_list", "write", "edit", "move", "delete"):
        assert not plan(old_outputs(tool=tool))


def test_the_last_turns_are_left_alone():
    """Outputs of the three newest turns stay verbatim (S0.18)."""
    assert not plan(path_of(user(), calls("a"), result("a", size=400_000), *talk(2)))


def test_what_is_pruned_is_not_pruned_again():
    """A second pass adds nothing for the same nodes (D15)."""
    assert not plan(old_outputs(), done=["n2", "n5", "n8"])


def test_a_placeholder_keeps_tool_first_line_size_and_path():
    """One line: tool, first line, size, stored path; the call's own arguments stay in the call (S0.19, S0.28, D16)."""
    (kind, payload) = result("c", "\n  first line\nsecond", tool="grep", path=".agent-output/x.txt")
    assert kind == "tool"
    assert placeholder(payload) == "[pruned grep: first line · 20 characters · whole output: .agent-output/x.txt]"


def test_a_pruned_call_keeps_its_pair():
    """The view has the call with its arguments and, right behind it, the line (D16, S1.10)."""
    path = path_of(user(), calls("a", path="x.py"), result("a", "long"), ("prune", {"nodes": {"n2": "[pruned]"}}))
    view = ContextBuilder().build(path)
    assert [message.role for message in view] == ["user", "assistant", "tool"]
    assert json.loads(view[1].tool_calls[0].arguments) == {"path": "x.py"} and view[2].text == "[pruned]"


def test_prepared_is_told_by_the_nodes_alone():
    """Compacted and nothing but a prompt since: prepared; an answer, or an undo, ends that (S0.27, D59)."""
    compacted = ("compaction", {"summary": "S", "first_kept_node_id": "n0"})
    assert is_prepared(path_of(user(), says(), compacted)) and is_prepared(path_of(user(), says(), compacted, user()))
    assert not is_prepared(path_of(user(), compacted, says())) and not is_prepared(path_of(user(), says()))
    assert not is_prepared(path_of(user(), says(), compacted, ("marker", {"void": "n2"})))
    assert texts(path_of(user("a"), says("b"), compacted))[0].endswith("S")

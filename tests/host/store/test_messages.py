"""From the active path to messages."""

import json
from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from moryflow.store import messages as context
from moryflow.store.messages import ContextBuilder, effective, pair_results
from moryflow.store.records import Node
from moryflow_sdk import Message, freeze


def path_of(*items):
    """Return nodes n0, n1, … from (kind, payload)."""
    numbers = count()
    return [
        Node(f"n{i}", "s", i, f"n{i - 1}" if i else None, kind, freeze(payload), 1, "", "")
        for i, (kind, payload) in zip(numbers, items, strict=False)
    ]


def user(text):
    return ("user", {"text": text})


def says(text):
    return ("assistant", {"text": text, "calls": []})


def calls(*ids):
    return ("assistant", {"text": "", "calls": [{"id": i, "name": "read", "arguments": "{}"} for i in ids]})


def result(call_id, output="out"):
    return ("tool", {"call_id": call_id, "tool": "read", "status": "ok", "output": output})


def texts(path):
    return [message.text for message in ContextBuilder().build(path)]


def compaction(first, summary="S"):
    return ("compaction", {"summary": summary, "first_kept_node_id": first, "tokens_before": 9, "details": {}})


def test_a_compaction_shows_summary_then_kept_tail_then_what_came_after():
    """Summary, the tail from first_kept_node_id (inclusive), then new messages (S1.3, S1.4, D20)."""
    path = path_of(user("1"), says("2"), user("3"), says("4"), compaction("n2"), user("5"))
    assert texts(path) == ["[Conversation summary]\nS", "3", "4", "5"]


def test_the_last_valid_compaction_counts():
    """Several compactions: the last valid one wins (S1.5)."""
    path = path_of(user("1"), compaction("n0", "A"), user("2"), compaction("n2", "B"), user("3"))
    assert texts(path) == ["[Conversation summary]\nB", "2", "3"]
    broken = path_of(user("1"), compaction("n0", "A"), user("2"), compaction("elsewhere", "B"), user("3"))
    assert texts(broken) == ["[Conversation summary]\nA", "1", "2", "3"]


def test_a_voided_compaction_does_not_count():
    """Undoing a compaction appends a marker; the history is whole again (S1.6, ARCHITECTURE §5)."""
    path = path_of(user("1"), user("2"), compaction("n1"), ("marker", {"void": "n2"}), user("3"))
    assert texts(path) == ["1", "2", "3"]


def test_a_pruned_output_becomes_its_placeholder_and_stays_paired():
    """Pruning changes the view, never the node; a call keeps its result (S1.2, D16, invariant 7)."""
    path = path_of(user("q"), calls("a"), result("a", "x" * 100), ("prune", {"nodes": {"n2": "[pruned]"}}))
    messages = ContextBuilder().build(path)
    assert [m.role for m in messages] == ["user", "assistant", "tool"]
    assert messages[2].text == "[pruned]"
    assert path[2].payload["output"] == "x" * 100


def test_a_large_result_enters_only_as_its_preview_with_the_artifact():
    """Messages hold the preview and the artifact's reference, the file holds the rest (S1.1, D62)."""
    payload = {"call_id": "a", "tool": "bash", "status": "ok", "output": "head\n[cut; whole output: .agent-output/x.txt]"}
    path = path_of(user("q"), calls("a"), ("tool", {**payload, "output_id": "o1", "truncated": True}))
    assert ".agent-output/x.txt" in texts(path)[-1]


def test_broken_arguments_are_sent_back_as_an_empty_object():
    """What a model wrote wrongly never makes the next request invalid (S4.6)."""
    broken = {"id": "a", "name": "re\u200bad", "arguments": '{"path":'}
    path = path_of(user("q"), ("assistant", {"text": "", "calls": [broken]}), result("a", "invalid"))
    sent = ContextBuilder().build(path)[1].tool_calls[0]
    assert (sent.name, json.loads(sent.arguments)) == ("unknown_tool", {})


PAYLOADS = st.lists(st.sampled_from(["user", "say", "one", "two", "note", "marker"]), max_size=25)


def build(kinds):
    items = []
    for number, kind in enumerate(kinds, 1):
        match kind:
            case "user":
                items.append(user(f"u{number}"))
            case "say":
                items.append(says(f"a{number}"))
            case "one":
                items += [calls(f"c{number}"), result(f"c{number}")]
            case "two":
                items += [calls(f"c{number}", f"d{number}"), result(f"c{number}"), result(f"d{number}")]
            case "note":
                items.append(("note", {"text": "n"}))
            case _:
                items.append(("marker", {"label": "x"}))
    return path_of(*items)


@given(PAYLOADS, st.data())
def test_every_call_in_view_has_exactly_one_result_right_behind_it(kinds, data):
    """Wherever a path is cut or compacted, calls and results stay pairs (invariant 6, D16)."""
    path = build(kinds)
    if path:
        first = data.draw(st.sampled_from(path)).id
        number = len(path)
        path.append(Node(f"n{number}", "s", number, path[-1].id, "compaction", freeze(compaction(first)[1]), 1, "", ""))
    messages = ContextBuilder().build(path)
    asked = [call.id for message in messages for call in message.tool_calls]
    answered = [message.call_id for message in messages if message.role == "tool"]
    assert asked == answered


@given(PAYLOADS)
def test_the_view_is_a_pure_function_of_the_path(kinds):
    """Same path, same view, with and without the cache; the path is untouched (invariant 7)."""
    path = build(kinds)
    before = list(path)
    builder = ContextBuilder()
    first, second = builder.build(path), builder.build(path)
    assert first == second == ContextBuilder().build(path)
    assert path == before


def test_a_message_keeps_its_encoded_bytes():
    """Encoded bytes are kept per node, so a long session pays for what is new (invariant 7)."""
    path, builder = path_of(user("1")), ContextBuilder()
    made = []

    def encode(message):
        made.append(message.text)
        return message.text.encode()

    for _ in range(3):
        assert builder.build(path)[0].encoded("wire", encode) == b"1"
    assert made == ["1"]


def test_a_call_without_result_gets_a_sentence():
    """Even a damaged path makes a valid request (invariant 6)."""
    view = pair_results([m for m in ContextBuilder().build(path_of(user("q"), calls("a"))) if m])
    assert [m.role for m in view] == ["user", "assistant", "tool"]
    assert isinstance(view[-1], Message)
    assert "no result" in view[-1].text


def test_without_compaction_everything_is_visible():
    """Nothing is hidden that no node hides (S1.2)."""
    path = path_of(user("1"), says("2"))
    assert effective(path) == (None, path)


@given(
    st.one_of(
        st.text(max_size=40),
        st.recursive(
            st.none() | st.floats() | st.text(max_size=5), lambda inner: st.dictionaries(st.text(max_size=3), inner)
        ).map(json.dumps),
        st.sampled_from(
            ["{", "{}", " {}\n", '{"a":"\\ud800"}', '{"a":NaN}', "[]", "1", '{"a":1}x', '{"a":"\t"}', "{" * 100_000, "\ud800"]
        ),
    )
)
def test_stored_arguments_are_sent_back_exactly_when_they_are_an_object(text):
    """Both readers of JSON agree on what a provider can take (S0.95)."""
    try:
        expected = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        expected = False
    assert context._is_object(text) is expected

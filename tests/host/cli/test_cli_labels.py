"""Labels: a person names a node, sees the name where the node is shown, and uses it where an id is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture
def talked(cli: Any) -> str:
    """A session of two turns; its id."""
    model = cli.script("first answer", "second answer")
    session = json.loads(cli("run", "-m", model, "one", "--json").stdout)["session"]
    cli("run", "-c", "-m", model, "two")
    return session


def shown(cli: Any, session: str, verb: str = "show") -> dict[str, Any]:
    """Return what a session says of itself."""
    return json.loads(cli("session", verb, session, "--json").stdout)


def ids(cli: Any, session: str, kind: str) -> list[str]:
    """Return the ids of the nodes of a kind, in their order."""
    return [node["id"] for node in shown(cli, session, "tree")["nodes"] if node["kind"] == kind]


def test_a_label_names_what_was_said_last_and_is_shown(cli: Any, talked: str) -> None:
    """`session label TEXT` appends ``marker {label}``; tree and show have it, in JSON too (ARCHITECTURE §5, S1.2)."""
    before = shown(cli, talked, "tree")["nodes"]
    done = cli("session", "label", "good point", "--json")
    last = ids(cli, talked, "assistant")[-1]
    assert json.loads(done.stdout) == {"session": talked, "label": "good point", "node": last, "was": None}
    after = shown(cli, talked, "tree")
    assert (after["nodes"][:-1], after["labels"]) == (before, {"good point": last})
    marker = after["nodes"][-1]
    assert (marker["kind"], marker["payload"]) == ("marker", {"label": "good point", "node": last})
    assert after["active"] == marker["id"]
    assert shown(cli, talked)["labels"] == {"good point": last}
    assert json.loads(cli("session", "label", "best", "--json").stdout)["node"] == last  # and not the marker
    assert f"  {last[:8]} assistant (good point, best): " in cli("session", "tree").stdout
    assert "agent (good point, best): " in cli("session", "show").stdout
    assert cli("run", "-c", "-m", cli.script("on it goes"), "three").stdout == "on it goes\n"


def test_a_label_stands_where_an_id_is_asked_for(cli: Any, talked: str) -> None:
    """`switch`, `fork --node` and `label --node` take it, however its accents are composed (S1.7)."""
    first, second = ids(cli, talked, "user")
    assert cli("session", "label", talked, "caf\u00e9", "--node", second[:6]).returncode == 0
    assert json.loads(cli("session", "switch", talked, "cafe\u0301", "--json").stdout)["active"] == second
    assert cli("session", "label", talked, "beginning", "--node", first).returncode == 0
    assert json.loads(cli("session", "label", "start", "--node", "beginning", "--json").stdout)["node"] == first
    assert f"{first[:8]} user (beginning, start): one" in cli("session", "tree", talked).stdout
    copy = json.loads(cli("session", "fork", talked, "--node", "start", "--json").stdout)
    assert copy["origin"] == {"session": talked, "node": first}


def test_a_label_moves_and_can_be_taken_away(cli: Any, talked: str) -> None:
    """The newest wins and that is said; the same again writes nothing; `--remove` takes it (ARCHITECTURE §5)."""
    first, second = ids(cli, talked, "user")
    assert cli("session", "label", "x", "--node", first).stdout == f"{first[:8]} is called 'x' now\n"
    again = cli("session", "label", "x", "--node", first)
    assert (again.stdout, len(ids(cli, talked, "marker"))) == (f"{first[:8]} is called 'x' already\n", 1)
    moved = cli("session", "label", "x", "--node", second)
    assert moved.stdout == f"{second[:8]} is called 'x' now; {first[:8]} no longer has this label\n"
    assert shown(cli, talked)["labels"] == {"x": second}
    gone = json.loads(cli("session", "label", "x", "--remove", "--json").stdout)
    assert gone == {"session": talked, "label": "x", "node": None, "was": second}
    assert shown(cli, talked)["labels"] == {}
    assert "marker: label x removed" in cli("session", "tree").stdout
    assert cli("session", "switch", talked, "x").returncode == 2


def test_labels_in_a_conversation(cli: Any) -> None:
    """`/label TEXT` names the last answer, `/label` lists, `/label --remove TEXT` takes it away (ARCHITECTURE §5)."""
    lines = ["/label too soon", "hi", "/label my point", "/label", "/label a\tb", "/label --remove my", "again"]
    talk = cli("chat", "-m", cli.script("hello", "bye"), stdin="\n".join([*lines, "/label second", "/help", ""]))
    (row,) = json.loads(cli("session", "list", "--json").stdout)
    first, second = ids(cli, row["id"], "assistant")
    assert "there is nothing to label yet" in talk.stderr
    assert f"{first[:8]} is called 'my point' now" in talk.stderr
    assert f"my point  {first[:8]}" in talk.stderr
    assert "one line of visible characters" in talk.stderr
    assert "there is no label 'my'; there are 'my point'" in talk.stderr
    assert "/label" in talk.stderr.rpartition("is called 'second' now")[2]
    assert shown(cli, row["id"])["labels"] == {"my point": first, "second": second}
    assert cli("session", "label", row["id"], "my point", "--remove").returncode == 0
    assert shown(cli, row["id"])["labels"] == {"second": second}


def test_copies_keep_labels(cli: Any, talked: str) -> None:
    """Export and import keep every label; a fork has those of the nodes it copies, wherever they were given (S2.14)."""
    first, second = ids(cli, talked, "user")
    answers = ids(cli, talked, "assistant")
    for name, node in (("a", first), ("b", second), ("gone", first)):
        cli("session", "label", talked, name, "--node", node)
    cli("session", "switch", talked, answers[0])
    cli("session", "label", talked, "on a side branch", "--node", first)
    cli("session", "label", talked, "gone", "--remove")
    cli("session", "label", talked, "later", "--node", answers[1])
    exported = cli("session", "export", talked).stdout
    other = json.loads(cli("session", "import", "-", "--json", stdin=exported).stdout)["id"]
    assert shown(cli, other)["labels"] == shown(cli, talked)["labels"]
    copy = json.loads(cli("session", "fork", talked, "--node", answers[0], "--json").stdout)["id"]
    assert shown(cli, copy)["labels"] == {"a": first, "on a side branch": first}
    cli("session", "switch", talked, ids(cli, talked, "marker")[2])  # where `gone` was still said
    late = json.loads(cli("session", "fork", talked, "--json").stdout)["id"]
    assert shown(cli, late)["labels"] == {"a": first, "b": second, "on a side branch": first, "later": answers[1]}
    assert cli("run", "-r", copy, "-m", cli.script("fine"), "go on").stdout == "fine\n"

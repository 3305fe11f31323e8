"""Branches in a conversation: the same words and sentences as of the verbs of ``session``."""

from __future__ import annotations

import json
from typing import Any


def shown(cli: Any, *arguments: str) -> Any:
    """What a command prints as JSON."""
    return json.loads(cli(*arguments, "--json").stdout)


def test_a_conversation_goes_on_from_another_node(cli: Any) -> None:
    """/tree and /switch print what session tree and switch print; the next prompt stands on the other branch (S1.7)."""
    model = cli.script("one", "two", "three")
    cli("chat", "-m", model, stdin="first\nsecond\n")
    nodes = shown(cli, "session", "show")["nodes"]
    answer = nodes[1]["id"]
    tree = cli("session", "tree").stdout
    done = cli("chat", "-c", "-m", cli.script("three"), stdin=f"/tree\n/switch {answer[:8]}\nthird\n")
    assert (done.returncode, done.stdout) == (0, "three\n")
    assert tree in done.stderr
    after = shown(cli, "session", "show")
    assert [node["payload"]["text"] for node in after["nodes"]] == ["first", "one", "third", "three"]
    assert len(shown(cli, "session", "tree")["nodes"]) == 6
    said = cli("session", "switch", after["id"], answer).stdout
    assert said.partition(";")[0] in done.stderr and said.startswith(f"{after['id']} goes on from {answer}")
    assert cli("session", "switch", answer).stdout == said
    assert "give a SESSION, if any, and one NODE" in cli("session", "switch", after["id"], answer, answer).stderr


def test_a_label_names_the_node_to_go_on_from(cli: Any) -> None:
    """As everywhere else; and what names no node, or nothing, changes nothing (S1.7)."""
    model = cli.script("one", "two")
    done = cli("chat", "-m", model, stdin="first\n/label here\nsecond\n/switch here\n/switch\n/switch nowhere\n/tree\n")
    assert "/switch NODE" in done.stderr and "there is no node 'nowhere'" in done.stderr
    assert [node["payload"]["text"] for node in shown(cli, "session", "show")["nodes"]] == ["first", "one"]
    assert done.stderr.endswith(cli("session", "tree").stdout)


def test_a_conversation_goes_on_in_a_copy(cli: Any) -> None:
    """/branch prints the copy's id as session fork does; the original stays as it is, and /resume leads back (S1.7)."""
    model = cli.script("one", "two")
    done = cli("chat", "-m", model, stdin="first\n/branch\nsecond\n/mode\n")
    copy, original = (row["id"] for row in shown(cli, "session", "list"))
    assert f"{copy}\nthis conversation goes on in the copy; /resume {original} leads back" in done.stderr
    texts = {name: [n["payload"]["text"] for n in shown(cli, "session", "show", name)["nodes"]] for name in (copy, original)}
    assert texts == {copy: ["first", "one", "second", "two"], original: ["first", "one"]}
    first = shown(cli, "session", "show", copy)["nodes"][0]["id"]
    done = cli("chat", "-r", copy, "-m", model, stdin=f"/branch {first}\n/tree\n/branch nowhere\n/resume {original}\nthird\n")
    newest = next(row["id"] for row in shown(cli, "session", "list") if row["id"] not in (copy, original))
    assert [n["payload"]["text"] for n in shown(cli, "session", "show", newest)["nodes"]] == ["first"]
    assert shown(cli, "session", "show", newest)["mode"] == "agent" and "there is no node 'nowhere'" in done.stderr
    assert [n["payload"]["text"] for n in shown(cli, "session", "show", original)["nodes"]][2:] == ["third", "one"]

"""``moryflow trace``: who changed what, how long it took, from which file, and what it costs."""

from __future__ import annotations

import pytest

from .scripts import ANN, BOB, QUIET, SHOUT


@pytest.fixture(scope="module")
def shouted(shared_desk):
    """A desk with a session in which a plugin changed everything there is to change."""
    return shout(shared_desk)


def shout(desk):
    desk.plugin("shout", SHOUT)
    desk.plugin("quiet", QUIET)
    assert desk.turn({"calls": [ANN]}, "done").code == 0
    return desk


def rows(desk, *arguments: str):
    turns = desk("trace", "--json", *arguments).json["turns"]
    return [(row["step"], row["hook"], row["plugin"], row["outcome"]) for turn in turns for row in turn["hooks"]]


def test_each_change_is_shown_with_its_place(shouted) -> None:
    """Which implementation changed what, in order, with step, microseconds, file and line (ARCHITECTURE §4, ledger)."""
    assert [row for row in rows(shouted, "--plugin", "shout") if row[3] == "changed"] == [
        (1, "chat.messages", "shout", "changed"),
        (1, "chat.system", "shout", "changed"),
        (1, "system.blocks", "shout", "changed"),
        (1, "chat.params", "shout", "changed"),
        (1, "tool.before", "shout", "changed"),
        (1, "tool.after", "shout", "changed"),
        (2, "chat.messages", "shout", "changed"),
        (2, "chat.params", "shout", "changed"),
    ]
    (turn,) = shouted("trace", "--json").json["turns"]
    after = next(row for row in turn["hooks"] if (row["hook"], row["plugin"]) == ("tool.after", "shout"))
    assert after["delta"] == {"output": "HELLO ANN", "was": {"output": "hello Ann"}}
    assert after["file"] == str(shouted.home / "plugins" / "shout.py") and after["line"] > 20
    assert after["code_changed_since"] is False and after["us"] > 0 and after["tool"] == "greet"
    assert turn["prompt"] == "go" and turn["us"] >= after["us"]


def test_a_person_reads_it_in_one_line_each(shouted) -> None:
    """What changed nothing is a number until it is asked for (CONTRACT 1)."""
    text = shouted("trace").out
    assert 'output "hello Ann" → "HELLO ANN"' in text
    assert 'args {"name": "ann"} → {"name": "Ann"}' in text
    assert "more hook calls changed nothing (--hooks shows them)" in text
    every = shouted("trace", "--hooks").out
    assert "quiet" in every.partition("\nplugin ")[0] and "quiet" not in text.partition("\nplugin ")[0]


def test_code_that_changed_since_is_marked(desk) -> None:
    """The file is the one of now; that it is another says the hash (ARCHITECTURE §4). One that is gone stays on the bill."""
    shout(desk)
    desk.plugin("shout", SHOUT + "    LOUD = 1\n")
    (desk.home / "plugins" / "quiet.py").unlink()
    assert "shout.py" in (text := desk("trace").out) and "(changed since)" in text
    (bill,) = desk("trace", "--json", "--plugin", "quiet").json["plugins"]
    assert (bill["status"], bill["calls"]) == ("not loaded now", 1)


def test_a_denial_names_its_gate(desk) -> None:
    """A gate's verdict stands in the trace with its reason (invariant 10)."""
    desk.plugin("shout", SHOUT)
    desk.turn({"calls": [BOB]}, "done")
    assert "deny" in (text := desk("trace").out) and "bob is asleep" in text


def test_the_bill_counts_calls_and_time(shouted) -> None:
    """Of each plugin: how often it was called, changed something or failed, and how long that took (S2.25)."""
    bills = {row["plugin"]: row for row in shouted("trace", "--json").json["plugins"]}
    assert (bills["shout"]["changed"], bills["shout"]["failed"], bills["quiet"]["changed"]) == (8, 0, 0)
    assert bills["shout"]["tier"] == "user" and bills["shout"]["us"] > 0


def test_one_turn_of_several(shouted) -> None:
    """By its number; a number that is not there is said with how many there are (CONTRACT 1)."""
    assert [turn["turn"] for turn in shouted("trace", "--json", "--turn", "1").json["turns"]] == [1]
    refused = shouted("trace", "--turn", "2")
    assert (refused.code, "it has 1 turn" in refused.err) == (2, True)


def test_an_unknown_plugin_gets_a_did_you_mean(shouted) -> None:
    refused = shouted("trace", "--plugin", "shoot")
    assert (refused.code, "did you mean 'shout'" in refused.err) == (2, True)

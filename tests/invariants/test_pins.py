"""What a server of tools may offer is what the user reviewed, tool by tool (R40)."""

from __future__ import annotations

from itertools import permutations

from moryflow_builtins.mcp.lock import Pin, note_withheld, read_lock, store_pin

TOOLS = tuple(
    {"name": name, "description": name, "inputSchema": {"type": "object"}, "hash": name} for name in ("one", "two", "three")
)


def test_a_tool_that_changed_stays_withheld_whatever_changes_after_it(tmp_path) -> None:
    """In any order of changes, until a review stores a new pin; the others stay offered."""
    for number, order in enumerate(permutations(["one", "two"])):
        home = tmp_path / str(number)
        home.mkdir()
        pin = Pin(configured="c", shown="s", identity={}, server={}, tools=TOOLS)
        store_pin(home, "server", pin)
        for name in order:
            note_withheld(home, "server", {name: "its description changed"})
        kept = read_lock(home)["server"]
        assert [each["name"] for each in kept.tools if not kept.why_withheld(each)] == ["three"]
        store_pin(home, "server", pin)
        assert not read_lock(home)["server"].withheld

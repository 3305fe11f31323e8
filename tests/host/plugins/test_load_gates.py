"""A gate that is known and not there must not open the door (invariant 4, this side of it)."""

from __future__ import annotations

import json
from typing import Any

import pytest

GATE = "@hookimpl\ndef tool_gate(call): ...\n"
OTHER = "@hookimpl\ndef tool_after(result): ...\n"


def test_a_loaded_gate_is_not_missing(bench: Any):
    bench.user("guard", GATE)
    assert bench.load().missing_gates == ()


@pytest.mark.parametrize(
    "source",
    [
        "import not_there_at_all\n" + GATE,
        "gate = True\nraise ValueError\n",
        "raise ValueError\n@hookimpl(specname='tool_gate')\ndef judge(call): ...\n",
        GATE + "@hookimpl\ndef no_such_hook(call): ...\n",
        GATE + "api = 3\n",
        "async def tool_gate(call): ...\nsyntax error here\n",
    ],
)
def test_a_gate_that_fails_to_load_is_missing(bench: Any, source: str):
    """A plugin known to gate that failed to load puts a floor under every call (invariant 4)."""
    bench.user("guard", source)
    loaded = bench.load()
    assert bench.record("guard", loaded).status == "failed"
    assert loaded.missing_gates == ("guard",)


def test_a_gate_in_another_file_of_a_package_is_missing_too(bench: Any):
    """The whole source is looked at, not only its first file (invariant 4)."""
    folder = bench.home / "plugins" / "pack"
    folder.mkdir(mode=0o755)
    for name, text in (("__init__.py", "from .gates import *\nraise ValueError\n"), ("gates.py", GATE)):
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o644)
    assert bench.load().missing_gates == ("pack",)


def test_a_plugin_that_does_not_gate_is_not_missing_when_it_fails(bench: Any):
    bench.user("other", "raise ValueError\n" + OTHER)
    assert bench.load().missing_gates == ()


@pytest.mark.parametrize("manifest", ["gate = true\n", 'hooks = ["tool_gate"]\n', 'gate = true\nservices = ["nope"]\n'])
def test_a_manifest_says_that_a_plugin_gates(bench: Any, manifest: str):
    """Known to gate by its manifest, whatever its code would have said (invariant 4)."""
    bench.installed("guard", "raise ValueError\n", manifest=manifest)
    assert bench.load().missing_gates == ("guard",)


def test_a_gate_is_remembered_from_its_last_good_load(bench: Any):
    """The last good load says who gates, when nothing else does any more (invariant 4)."""
    path = bench.user("guard", GATE)
    bench.load()
    path.write_text("raise ValueError('emptied')\n", "utf-8")
    assert bench.load().missing_gates == ("guard",)
    path.write_text("from moryflow_sdk import *\n" + OTHER, "utf-8")
    assert bench.load().missing_gates == (), "it loads well and gates no more: the author took the gate out"
    path.write_text("raise ValueError\n", "utf-8")
    assert bench.load().missing_gates == ()


def test_a_gate_whose_file_is_gone_is_missing_until_it_is_disabled_by_name(bench: Any):
    """Deleting a gate does not open the door; a person disabling it by name does, and for good (invariant 4)."""
    path = bench.user("guard", GATE)
    bench.load()
    path.unlink()
    loaded = bench.load()
    found = bench.record("guard", loaded)
    assert (loaded.missing_gates, found.status, found.gate) == (("guard",), "failed", True)
    assert "moryflow plugin disable guard" in found.hint
    assert bench.load(disabled=["guard"]).missing_gates == ()
    assert bench.load().missing_gates == ()


def test_a_gate_that_fails_is_not_missing_once_disabled_by_name(bench: Any):
    """Only a person disabling it by name lifts the floor (invariant 4)."""
    bench.user("guard", "gate = True\nraise ValueError\n")
    assert bench.load(disabled=["other"]).missing_gates == ("guard",)
    assert bench.load(disabled=["guard"]).missing_gates == ()


def test_safe_mode_and_a_list_of_plugins_do_not_open_the_door(bench: Any):
    """Safe mode likewise lists the gating plugins that it skips (invariant 4)."""
    bench.user("guard", GATE)
    bench.installed("judge", GATE)
    bench.user("other", OTHER)
    assert bench.load(safe_mode=True).missing_gates == ("guard", "judge")
    assert bench.load(only=["judge"]).missing_gates == ("guard",)
    assert bench.load(only=[]).missing_gates == ("guard", "judge")


def test_a_gate_behind_a_name_that_is_taken_is_missing(bench: Any):
    """An installed package cannot push a user's gate aside by taking its name (invariant 4)."""
    bench.installed("guard", OTHER)
    bench.user("guard", GATE)
    assert bench.load().missing_gates == ("guard",)


async def test_a_gate_that_does_not_start_is_missing(bench: Any):
    """Failing at start is failing to load (invariant 4)."""
    bench.user("guard", GATE + "@hookimpl\ndef plugin_start(ctx):\n    raise ValueError('no')\n")
    started = await bench.start()
    assert started.missing_gates == ("guard",)
    assert started.ordered("tool_gate") == () and "guard" not in started.plugins


def test_a_built_in_line_that_is_removed_leaves_no_floor(bench: Any):
    """Removing a line of the built-in table removes the feature and nothing else (ARCHITECTURE §1, rule 3)."""
    bench.builtin("guard", GATE)
    bench.load()
    bench.builtins.clear()
    assert bench.load().missing_gates == ()


def test_installed_gates_are_remembered_per_environment(bench: Any):
    """Two environments may share a home; a gate installed in one is not missing in the other."""
    bench.installed("guard", GATE)
    bench.load()
    memory = bench.home / "cache" / "gates.json"
    entries = json.loads(memory.read_text("utf-8"))
    memory.write_text(json.dumps([[tier, "/another/environment", f"{name}-there"] for tier, _, name in entries]), "utf-8")
    assert bench.load().missing_gates == ()


@pytest.mark.parametrize("content", ["", "[", '{"a": 1}', "[[1]]", "null", "[5]"])
def test_a_broken_memory_stops_nothing(bench: Any, content: str):
    bench.user("guard", GATE)
    (bench.home / "cache").mkdir()
    (bench.home / "cache" / "gates.json").write_text(content, "utf-8")
    assert bench.load().missing_gates == ()


@pytest.mark.parametrize("name", ["permission", "Permission", "memory-bank", "MEMORY_BANK"])
@pytest.mark.parametrize("source", [GATE, "raise ValueError\n" + GATE, OTHER])
async def test_a_plugin_with_the_name_of_a_built_in_one_neither_loads_nor_stands_for_it(bench: Any, name: str, source: str):
    """Its record says what helps, which is not to switch off the built-in gate; no call is asked about for it (invariant 4)."""
    for own in ("permission", "memory_bank"):
        bench.builtin(own, GATE)
    bench.installed(name, source)
    bench.user(name, source)
    loaded = await bench.start()
    ours = [record for record in loaded.records if record.tier == "builtin"]
    others = [record for record in loaded.records if record.tier != "builtin"]
    assert [record.status for record in ours] == ["loaded", "loaded"] and loaded.missing_gates == ()
    assert [(record.status, record.stage, record.gate) for record in others] == [("failed", "discover", False)] * 2
    assert all("belongs to a built-in plugin" in record.error for record in others)
    assert all("disable" not in record.hint for record in others)
    assert "moryflow plugin uninstall workbench" in others[0].hint and "another name" in others[1].hint
    disabled = await bench.start(disabled=[name])
    assert [record.status for record in disabled.records if record.tier != "builtin"] == ["failed", "failed"]

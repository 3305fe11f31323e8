"""A broken plugin can always be listed, disabled and removed: these commands import no plugin (R18, invariant 5)."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow.plugins.consent import Consents

MARK = "from pathlib import Path; import os; Path(os.environ['MARK']).write_text('ran')\n"
BROKEN = {
    "hangs": f"{MARK}while True: pass\n",
    "exits": f"{MARK}os._exit(7)\n",
    "raises": f"{MARK}raise SystemExit('no')\n",
    "does_not_parse": "def (\n",
}


@pytest.mark.parametrize("tier", ["user", "installed"])
def test_broken_plugins_are_listed_disabled_and_removed_unseen(place: Any, tier: str) -> None:
    """Whatever they do at import, none of these commands lets them; `list`, `info`, `disable`, `uninstall` (R18)."""
    mark = place.work / "mark"
    place.environ["MARK"] = str(mark)
    for name, source in BROKEN.items():
        _put(place, tier, name, source)
    rows = {row["name"]: row for row in place.json("plugin", "list")}
    assert {rows[name]["status"] for name in BROKEN} == {"pending"} and {rows[name]["tier"] for name in BROKEN} == {tier}
    assert "not loaded yet" in place.run("plugin", "info", "exits").stdout
    assert "hangs is disabled" in place.run("plugin", "disable", "hangs").stdout
    assert place.row("hangs")["reason"] == "disabled"
    assert "hangs" in place.run("plugin", "uninstall", "hangs").stdout
    assert place.names() & set(BROKEN) == set(BROKEN) - {"hangs"}
    assert not mark.exists()


def _put(place: Any, tier: str, name: str, source: str) -> None:
    """Lay a plugin out as its tier wants it."""
    if tier == "user":
        place.file(name, source)
        return
    (place.site / f"{name}.py").write_text(source, "utf-8")
    info = place.site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[moryflow.plugins]\n{name} = {name}\n", "utf-8")
    listed = [f"{name}.py", *(f"{info.name}/{file}" for file in ("METADATA", "entry_points.txt", "RECORD"))]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in listed), "utf-8")


def test_check_and_enable_try_it_in_the_probe(place: Any) -> None:
    """Exit code 3 with stage and file; nothing is enabled; the command itself lives (ARCHITECTURE §4)."""
    place.environ["MARK"] = str(place.work / "mark")
    file = place.file("exits", BROKEN["exits"])
    place.configure(disabledPlugins=["exits"])
    document = place.json("plugin", "check", "exits", code=3)
    assert not document["ok"] and document["error"]
    done = place.run("plugin", "enable", "exits", code=3)
    assert "exits failed" in done.stdout and str(file) in done.stdout
    assert place.row("exits")["reason"] == "disabled"


def test_check_finds_what_the_manifest_keeps_quiet_about(place: Any) -> None:
    """People agree to the manifest, so a hook that it does not name is a failed check (R18)."""
    source = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_after(result):\n    return None\n"
    folder = place.home / "plugins" / "sly"
    folder.mkdir(parents=True, mode=0o700)
    (place.home / "plugins").chmod(0o700)
    (folder / "__init__.py").write_text(source, "utf-8")
    (folder / "plugin.toml").write_text('name = "sly"\napi = 1\nhooks = ["tools"]\n', "utf-8")
    done = place.run("plugin", "check", "sly", code=3)
    assert "not declared in plugin.toml: tool_after" in done.stdout
    (folder / "plugin.toml").write_text('name = "sly"\napi = 1\nhooks = ["tool_after"]\n', "utf-8")
    assert "sly: ok" in place.run("plugin", "check", str(folder)).stdout


def test_an_error_of_several_lines_does_not_look_like_a_verdict(place: Any) -> None:
    """What a plugin says is set in below the line that names it (invariant 5)."""
    (place.home / "plugins").mkdir(parents=True, exist_ok=True)
    (place.home / "plugins" / "forger.py").write_text('raise RuntimeError("no\\nforger: ok, 1 ms in the probe")\n')
    lines = place.run("plugin", "check", "forger", code=3).stdout.splitlines()
    assert lines[0].startswith("forger failed (import): ") and lines[0].endswith("RuntimeError: no")
    assert lines[1] == "    forger: ok, 1 ms in the probe"


def test_safe_mode_and_moryflow_plugins_hold_for_the_list(place: Any) -> None:
    """What would be loaded is what is shown (CONTRACT §1)."""
    place.file("mine", "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    return []\n")
    rows = {row["name"]: row for row in place.json("plugin", "list", "--safe-mode")}
    assert (rows["mine"]["status"], rows["files"]["status"]) == ("skipped", "loaded")
    assert "safe mode" in rows["mine"]["reason"]
    place.environ["MORYFLOW_PLUGINS"] = "other"
    assert "MORYFLOW_PLUGINS" in place.row("mine")["reason"]
    place.environ["MORYFLOW_PLUGINS"] = "mine"
    assert place.row("mine")["status"] == "pending"
    place.environ["MORYFLOW_SAFE_MODE"] = "1"
    assert place.row("mine")["status"] == "skipped"


def test_info_shows_every_plugin_of_a_name(place: Any) -> None:
    """Two files claim one name: the first is loaded, both are shown (invariant 5)."""
    source = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    return []\n"
    place.file("files", source)
    document = place.json("plugin", "info", "files")
    assert document["tier"] == "builtin" and [row["tier"] for row in document["same_name"]] == ["user"]
    assert "2 plugins have the name 'files'" in place.run("plugin", "info", "files").stdout
    assert "belongs to a built-in plugin" in document["same_name"][0]["error"]


def test_a_file_that_appeared_while_a_host_ran_waits_for_enable(place: Any) -> None:
    """The list names the command, and that command is the yes (SECURITY R18, ARCHITECTURE §7)."""
    file = place.file("mine", "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    return []\n")
    Consents(place.home).hold(file)
    row = place.row("mine")
    assert row["status"] == "pending" and "moryflow plugin enable mine" in row["reason"]
    assert "your consent is recorded" in place.run("plugin", "enable", "mine").stdout
    assert Consents(place.home).waiting() == {}
    assert "not loaded yet" in place.row("mine")["reason"]

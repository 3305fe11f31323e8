"""Code that runs as soon as it is saved is not changed by a tool unasked, in any mode (R21)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moryflow import RunOptions
from moryflow.plugins.entry_points import linked_settings

RULE = {"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}
WITHOUT_SANDBOX = json.dumps({"agents": {"runtime": {"permission": {"rules": [RULE]}}}})
PLUGIN = "from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params): ...\n"


@pytest.mark.parametrize("mode", ["agent", "full_access"])
async def test_a_write_to_a_plugin_that_is_being_written_asks_in_every_mode(home, mode):
    """Every watched path outside the home is an R21 path (ARCHITECTURE §7, R21)."""
    code = home.vault / "mine"
    code.mkdir()
    (code / "__init__.py").write_text(PLUGIN)
    for path in (code, code / "__init__.py"):
        path.chmod(path.stat().st_mode & ~0o022)
    async with home.open(development=[code]) as host:
        assert home.record("mine").status == "loaded"
        options = RunOptions(on_ask="deny")
        given = {"path": "mine/__init__.py", "content": "x = 1\n"}
        outcome = await host.call_tool("write", given, vault=home.vault, mode=mode, options=options)
        assert (outcome.result.status, outcome.ruling.decision) == ("denied", "deny")
        assert "used as soon as it is saved" in outcome.ruling.reason
        assert (code / "__init__.py").read_text() == PLUGIN
        removed = await host.call_tool(
            "bash", {"command": "echo x > mine/new.py"}, vault=home.vault, mode=mode, options=options
        )
        assert removed.ruling.decision == "deny"
        free = {"path": "notes.md", "content": "x\n"}
        assert (await host.call_tool("write", free, vault=home.vault, mode=mode, options=options)).result.status == "ok"


async def test_code_behind_a_link_is_watched_and_a_write_to_it_asks(home):
    """A link in ``plugins/`` is as good as the file it leads to, which may lie in the vault (ARCHITECTURE §7, R21)."""
    code = home.vault / "mine.py"
    home.tool().rename(code)
    (home.path / "plugins" / "mine.py").symlink_to(code)
    async with home.open() as host:
        given = {"path": "mine.py", "content": code.read_text().replace("one", "two")}
        outcome = await host.call_tool("write", given, vault=home.vault, mode="full_access", options=RunOptions(on_ask="deny"))
        assert outcome.result.status == "denied" and "used as soon as it is saved" in outcome.ruling.reason
        home.reloader._shells.add("call_1_1")
        code.write_text(given["content"])
        await home.until(lambda: home.reloader.asking)
        assert await home.says() == "one"
        await home.reloader.give(home.reloader.asking[0])
        assert await home.says() == "two"


@pytest.mark.parametrize("name", ["config.jsonc", "agents/writer.md", "agents"])
async def test_a_write_to_what_a_link_in_the_home_leads_to_asks(home, name):
    """Also where the whole folder is a link: a tool does not change its own rules by another path (R21)."""
    place = home.path / name
    target = home.vault / "dotfiles" / name
    target.parent.mkdir(parents=True)
    if name == "agents":
        place.rename(target)
        written = target / "writer.md"
    else:
        written = target
        written.write_text("{}")
    place.symlink_to(target)
    async with home.open() as host:
        given = {"path": str(written.relative_to(home.vault)), "content": "x"}
        outcome = await host.call_tool("write", given, vault=home.vault, mode="full_access", options=RunOptions(on_ask="deny"))
        assert outcome.result.status == "denied" and "used as soon as it is saved" in outcome.ruling.reason
        free = {"path": "dotfiles/notes.md", "content": "x"}
        assert (await host.call_tool("write", free, vault=home.vault, mode="full_access")).result.status == "ok"


async def test_what_is_saved_right_before_a_call_holds_although_the_system_has_not_told_of_it(home, monkeypatch):
    """Of a plugin that is being written elsewhere as of one in the home; a busy system tells late (S0-i, issue 5)."""
    alone, package = home.vault / "mine.py", home.vault / "pack"
    home.tool().rename(alone)
    home.tool(name="packed").rename(home.write("../vault/pack/__init__.py", ""))
    async with home.open(wait=60, development=[alone, package]):
        monkeypatch.setattr(home.reloader._watcher, "_on_change", lambda _: None)
        alone.write_text(alone.read_text().replace("one", "another"))
        assert (await home.says(), await home.says("packed")) == ("another", "one")
        (package / "__init__.py").write_text((package / "__init__.py").read_text().replace("one", "other"))
        assert await home.says("packed") == "other"
        taken = home.reloader._taken
        assert (await home.says(), home.reloader._taken) == ("another", taken), "nothing was saved since"


async def test_what_a_shell_command_changed_waits_although_the_system_has_not_told_of_it(home, monkeypatch):
    """The next turn does not take it for what the person saved (ARCHITECTURE §7, R21)."""
    code = home.vault / "mine.py"
    home.tool().rename(code)
    async with home.open(wait=60, development=[code]):
        monkeypatch.setattr(home.reloader._watcher, "_on_change", lambda _: None)
        home.reloader._shells.add("call_1_1")
        code.write_text(code.read_text().replace("one", "two"))
        assert await home.says() == "one" and home.reloader.asking == [str(code)]


async def test_what_changed_while_a_shell_command_ran_waits_for_a_person(home):
    """The command may have written it: the version before goes on until a yes (ARCHITECTURE §7, R21)."""
    code = home.vault / "mine.py"
    home.tool().rename(code)
    home.write("config.jsonc", WITHOUT_SANDBOX)
    async with home.open(development=[code]) as host:
        sed = "python3 - <<'END'\nopen('mine.py', 'r+').write(open('mine.py').read().replace('one', 'two'))\nEND"
        outcome = await host.call_tool("bash", {"command": sed}, vault=home.vault, mode="full_access")
        assert outcome.result.status == "ok", outcome.result
        await home.until(lambda: home.reloader.asking)
        await home.reloader.settled()
        assert home.reloader.asking == [str(code)] and await home.says() == "one"
        assert home.record("mine").kept and "while a shell command ran" in home.record("mine").error
        await home.reloader.give(str(code))
        assert await home.says() == "two"


def test_only_a_plain_file_counts_as_the_configuration_elsewhere(tmp_path):
    """``MORYFLOW_CONFIG=/dev/null`` takes nothing from a command; a missing file, or one out of reach, stops nothing (R21)."""
    own = tmp_path / "own.jsonc"
    own.write_text("{}")
    found = [linked_settings(tmp_path / "home", path) for path in (Path("/dev/null"), tmp_path / "none.jsonc", own)]
    assert found == [[], [], [own]]

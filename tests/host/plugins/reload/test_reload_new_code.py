"""Code that appears while a host runs does not run until a person says yes; what plugins ask to be told of is told."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
from moryflow import RunOptions, open_host
from moryflow.plugins.consent import Consents
from moryflow.plugins.reload import FileWatcher

MARKER = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


async def test_a_new_file_never_becomes_running_code_unasked(home):
    """Seen by the watcher, recorded, not imported, not even probed; over restarts until a yes (ARCHITECTURE §7, R18)."""
    async with home.open():
        home.write("plugins/new.py", MARKER)
        report = await home.report()
        assert "plugin new: waits" in report.lines()[0] and "moryflow plugin enable new" in report.lines()[0]
        assert home.reloader.asking == ["plugins/new.py"]
        assert (home.record("new").status, home.record("new").stage) == ("pending", "consent")
    async with home.open():
        assert home.record("new").status == "pending"
        assert not (home.path / "plugins" / "new.ran").exists()
        Consents(home.path).give("plugins/new.py")
        assert "plugin new: loaded" in (await home.report()).lines()[0]
        assert (home.path / "plugins" / "new.ran").exists()
        home.write("plugins/new.py", "x = 1\n")
        assert "plugin new: code" in (await home.report()).lines()[0], "edits reload freely after the yes"


@pytest.mark.parametrize("switched_on", [True, False])
async def test_a_new_file_with_tools_is_told_of_at_the_save(home, switched_on):
    """At once, with its path and what says yes, also while external tools are off (ARCHITECTURE §7, R18)."""
    home.write(
        "config.jsonc", f'{{"agents": {{"runtime": {{"tools": {{"external": {{"enabled": {str(switched_on).lower()}}}}}}}}}}}'
    )
    async with home.open():
        file = home.write("tools/new.py", MARKER)
        report = await home.report()
        assert report.lines() == [f"{file} waits: it appeared while Moryflow ran; moryflow tool allow new.py"]
        assert report.as_event()["waiting"] == [{"file": str(file), "next": "moryflow tool allow new.py"}]
        home.write("tools/new.py", MARKER + "x = 1\n")
        await asyncio.sleep(0.2)
        assert home.reports == [], "it is said once"
        assert not (home.path / "tools" / "new.ran").exists()


async def test_the_first_file_of_a_folder_that_was_not_there_waits_too(home):
    """The folder is made and filled before it is watched (ARCHITECTURE §7, R18)."""
    (home.path / "plugins").rmdir()
    async with home.open():
        (home.path / "plugins").mkdir(mode=0o700)
        await asyncio.sleep(0.03)  # heard of while it was empty
        home.write("plugins/new.py", MARKER)
        await home.report()
        assert home.record("new").status == "pending"
        assert home.reloader.asking == ["plugins/new.py"]
        assert not (home.path / "plugins" / "new.ran").exists()


async def test_a_person_says_yes_in_the_same_program(home):
    """The question of ``chat`` and ``dev`` (ARCHITECTURE §7)."""
    async with home.open():
        home.tool(plugin="new")
        await home.report()
        await home.reloader.give("plugins/new.py")
        assert await home.says() == "one"


async def test_what_appears_during_a_turn_waits_without_a_watcher_too(home):
    """``run`` compares the folders at its end with those at its beginning (ARCHITECTURE §7)."""
    home.write("config.jsonc", '{"agents": {"runtime": {"permission": {"rules": []}}}}')
    home.tool(plugin="old")
    writer = """
        from pathlib import Path
        from moryflow_sdk import hookimpl, tool

        @tool(domain="read")
        def drop() -> str:
            "Leave code behind, as a command without a sandbox might."
            for folder in ("plugins", "tools"):
                Path(__file__).parents[1].joinpath(folder, "dropped.py").write_text("x = 1")
            return "done"

        @hookimpl
        def tools():
            return [drop]
    """
    home.write("plugins/writer.py", writer)
    async with await open_host(home.path, environ={}) as host:
        await host.call_tool("drop", {}, vault=home.vault, options=RunOptions(on_ask="deny"))
        assert list(Consents(home.path).waiting()) == ["plugins/dropped.py", "tools/dropped.py"]
    async with home.open():
        assert home.record("dropped").status == "pending"


async def test_an_editor_that_saves_by_renaming_makes_no_new_code(home):
    """Write beside, remove, rename: the plugin is the one it was (S0.85)."""
    file = home.tool()
    async with home.open():
        for word in ("two", "three"):
            beside = home.write("plugins/mine.py.new", file.read_text().replace("one", word).replace("two", word))
            file.unlink()
            await asyncio.sleep(0.1)
            beside.rename(file)
            await home.until(lambda word=word: "hello" in home.host.tools and home.host.tools["hello"].tool.function() == word)
        assert Consents(home.path).waiting() == {}


async def test_a_plugin_is_told_of_the_changes_it_asked_for(home):
    """``watch`` calls back on the loop, ``invalidate`` builds a new generation (SDK, PluginContext)."""
    source = """
        from pathlib import Path
        from moryflow_sdk import hookimpl, tool

        FOLDER = Path({folder!r})

        @hookimpl
        def plugin_start(ctx):
            return ctx.watch(FOLDER, lambda path: ctx.invalidate())

        @hookimpl
        def tools():
            for path in sorted(FOLDER.glob("*.word")):
                def body() -> str:
                    "Say the word."
                    return "x"
                yield tool(domain="read", name=path.stem)(body)
    """
    words = home.path.parent / "words"
    words.mkdir()
    home.write("plugins/mine.py", source.format(folder=str(words)))
    async with home.open() as host:
        (words / "first.txt").write_text("")
        (words / "first.word").write_text("")
        os.utime(words / "first.txt")
        await home.until(lambda: "first" in host.tools)
        assert "tool first: added" in (await home.report()).lines()[0]


@pytest.mark.parametrize("body", ["1 / 0", "raise SystemExit(3)", "raise KeyboardInterrupt"])
async def test_a_plugin_that_fails_over_a_change_is_named(home, caplog, body):
    """The function runs on the loop: whatever it raises, the host and its reloading go on (invariant 5)."""
    words = home.path.parent / "words"
    words.mkdir()
    source = f"""
        from pathlib import Path
        from moryflow_sdk import hookimpl

        def heard(path):
            {body}

        @hookimpl
        def plugin_start(ctx):
            return ctx.watch(Path({str(words)!r}), heard)
    """
    file = home.write("plugins/mine.py", source)
    async with home.open():
        (words / "one.txt").write_text("")
        await home.until(lambda: "plugin mine failed" in caplog.text)
        assert f"({file}:5); moryflow plugin info mine" in caplog.text and "Traceback" not in caplog.text
        (words / "two.txt").write_text("")
        home.tool("two")
        assert await home.says() == "two"
        await asyncio.sleep(0.2)
        assert caplog.text.count("plugin mine failed") == 1  # a folder may change all the time


async def test_a_folder_that_cannot_be_watched_is_reported_once(home, caplog, monkeypatch):
    """Each reload tries again, in silence; the saved files are taken before the next turn all the same (invariant 5)."""

    def started(_):
        raise OSError(errno.ENOSPC, "the limit of watches is reached")

    monkeypatch.setattr(FileWatcher, "_started", started)
    home.tool("one")
    async with home.open() as host:
        for text in ("two", "three"):
            home.tool(text)
            await home.reloader.settled()
            await host.refresh()
            home.reloader._rewatch()
        said = [record.getMessage() for record in caplog.records if "is not watched" in record.getMessage()]
        assert said and len(said) == len(set(said))


async def test_a_storm_of_saves_ends_in_the_last_one(home):
    """Many saves, some half-written: the host answers all the time and ends with what was saved last (issue 5)."""
    file = home.tool("start")
    whole = file.read_text()
    async with home.open() as host:
        for number in range(100):
            text = whole.replace("start", f"save-{number}")
            file.write_text(text if number % 3 else text[: len(text) // 2])
            await asyncio.sleep(0.005)
            if number % 25 == 0:
                assert "hello" in host.tools
        file.write_text(whole.replace("start", "the end"))
        await home.until(lambda: host.tools["hello"].tool.function() == "the end")
        assert home.record().error == ""

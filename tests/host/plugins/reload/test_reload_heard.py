"""A host takes what was saved, between turns."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref

import pytest
from moryflow import open_host
from moryflow.authoring.fire import fire
from moryflow.plugins.file_states import file_states, is_source
from moryflow.plugins.reload import FileWatcher, Reloader
from moryflow.runtime import generation

from .conftest import TOOL

CLEANING = """
from pathlib import Path
from moryflow_sdk import hookimpl

@hookimpl
def plugin_start(ctx):
    def end():
        {body}
    return end
"""


async def test_a_saved_plugin_is_there_from_the_next_turn(home):
    """A new generation is built beside the old one and swapped between turns (invariant 8)."""
    home.tool(name="first")
    async with home.open() as host:
        before = host.plugin_set
        home.tool("two", name="second")
        assert await host.refresh()
        assert "first" in before.tools and "second" not in before.tools
        assert "second" in host.tools and "first" not in host.tools
        assert await home.says("second") == "two"
        assert not await host.refresh()


async def test_a_turn_that_runs_keeps_its_generation_until_it_ends(home):
    """In-flight turns finish on theirs, and only then is it disposed of (invariant 8)."""
    source = """
        from pathlib import Path
        import time
        from moryflow_sdk import hookimpl, tool

        HERE = Path(__file__).parent
        VERSION = "{version}"

        @tool(domain="read")
        def hello() -> str:
            "Wait to be let go."
            (HERE / "began").touch()
            while VERSION == "old" and not (HERE / "go").exists():
                time.sleep(0.005)
            return VERSION

        @hookimpl
        def tools():
            return [hello]

        @hookimpl
        def plugin_start():
            return lambda: (HERE / f"ended-{{VERSION}}").touch()
    """
    home.write("plugins/mine.py", source.format(version="old"))
    folder = home.path / "plugins"
    async with home.open() as host:
        running = asyncio.create_task(home.says())
        await home.until(lambda: (folder / "began").exists())
        home.write("plugins/mine.py", source.format(version="new"))
        await host.refresh()
        assert await home.says() == "new"
        assert not (folder / "ended-old").exists()
        (folder / "go").touch()
        assert await running == "old"
        await home.until(lambda: (folder / "ended-old").exists())


async def test_cleaning_up_is_given_a_second(home):
    """Disposal is bounded: a disposer that hangs holds up nobody for longer (invariant 9)."""
    home.write("plugins/mine.py", CLEANING.format(body="import time; time.sleep(30)"))
    async with home.open() as host:
        home.write("plugins/mine.py", CLEANING.format(body="pass"))
        async with asyncio.timeout(300):
            await host.refresh()
        assert home.record().status == "loaded"


ENDS = ("1 / 0", "raise SystemExit(3)", "raise KeyboardInterrupt", "raise asyncio.CancelledError", "raise GeneratorExit")
DEAF = """while not Path(__file__).with_name("go").exists():
            try: await asyncio.sleep(0.01)
            except BaseException: pass"""


@pytest.mark.parametrize("kind", ["", "async "])
@pytest.mark.parametrize("body", [*ENDS, DEAF])
async def test_cleaning_up_ends_neither_the_host_nor_its_reloading(home, caplog, kind, body):
    """Whatever it raises or ignores; the warning names the line (invariants 5 and 9)."""
    if body == DEAF and not kind:
        body = "import time; time.sleep(30)"
    source = (
        CLEANING.format(body=body)
        .replace("def end", f"{kind}def end")
        .replace("import hookimpl", "import hookimpl\nimport asyncio")
    )
    file = home.write("plugins/mine.py", source)
    async with home.open():
        home.tool("two")
        async with asyncio.timeout(60):
            assert await home.says() == "two"
            home.tool("three")
            assert await home.says() == "three"
    file.with_name("go").touch()
    await asyncio.sleep(0.1)
    said = [record.getMessage() for record in caplog.records if "did not clean up" in record.getMessage()]
    assert len(said) == 1 and (f"({file}:8)" in said[0] if body in ENDS else "longer than 1 s" in said[0])


async def test_modules_of_an_old_generation_are_freed(home):
    """What nobody uses any more leaves the memory, a plugin's helper modules too (ARCHITECTURE §4)."""
    home.write(
        "plugins/pack/__init__.py", "from moryflow_sdk import hookimpl\nfrom .part import word\n@hookimpl\ndef tools(): ...\n"
    )
    home.write("plugins/pack/part.py", "word = 'one'\n")
    async with home.open() as host:
        old = [weakref.ref(host.plugin_set.plugins["pack"].object)]
        old.append(weakref.ref(sys.modules[f"{old[0]().__name__}.part"]))
        home.write("plugins/pack/part.py", "word = 'two'\n")
        await home.report()
        assert host.plugin_set.plugins["pack"].object.word == "two"
        await home.reloader.settled()
        gc.collect()
        assert [reference() for reference in old] == [None, None]


async def test_garbage_is_collected_while_reloads_go_on(home):
    """The command line starts with thresholds at which old modules, which are cycles, would never be freed (S0-i)."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 10, 10)
    try:
        async with home.open():
            assert gc.get_threshold()[0] <= 700
    finally:
        gc.set_threshold(*before)


async def test_the_order_stays_and_does_not_depend_on_who_was_saved_last(home):
    """Order is by tier and name, never by registration time (ARCHITECTURE §4)."""
    for name in ("a", "b", "c"):
        home.write(f"plugins/{name}.py", "from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params): ...\n")
    async with home.open() as host:
        for name in ("a", "c", "b"):
            home.write(
                f"plugins/{name}.py", "from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params): return None\n"
            )
            assert not (await home.report()).order_changed
        order = [item.plugin for item in host.plugin_set.ordered("chat_params") if item.tier == "user"]
        assert order[-3:] == ["a", "b", "c"]


def test_editors_own_files_do_not_matter():
    """Swap files, back-ups and byte code are nobody's plugin (S0.85)."""
    assert all(map(is_source, ("/h/plugins/x.py", "/h/config.jsonc", "/h/agents/a.md")))
    noise = (".x.py.swp", "4913", "x.py~", "#x.py#", ".#x.py", "x.pyc", "__pycache__/x.py", "sessions.db-wal")
    assert not any(is_source(f"/h/plugins/{name}") for name in noise)


async def test_editors_own_files_are_no_part_of_a_package(home):
    """Emacs leaves a link that leads nowhere beside each file with changes that were not saved (issue 5, hot reload)."""
    main = home.tool("one")
    package = home.path / "plugins" / "mine"
    package.mkdir(mode=0o700)
    main.rename(package / "__init__.py")
    async with home.open() as host:
        (package / ".#words.py").symlink_to("me@host.123:456")
        (package / "#words.py#").write_text("not saved (")
        home.tool("two").rename(package / "__init__.py")
        await home.until(lambda: "hello" in host.tools and host.tools["hello"].tool.function() == "two", seconds=20)
        assert (home.record("mine").status, home.record("mine").error) == ("loaded", "")


async def test_the_watch_hears_saves_in_folders_that_come_later(home):
    """A folder that did not exist when watching began is watched once it is asked for (S0.85)."""
    heard = []
    watcher = FileWatcher(heard.append)
    try:
        watcher.watch({home.path: False, home.path / "later": True})
        (home.path / "later").mkdir()
        await home.until(lambda: home.path / "later" in heard)
        heard.clear()
        watcher.watch({home.path: False, home.path / "later": True})
        (home.path / "later" / "x.py").write_text("")
        assert await home.until(lambda: home.path / "later" / "x.py" in heard)
    finally:
        watcher.stop()


async def test_what_is_saved_right_before_a_call_holds_in_it(home):
    """Somebody saves and types at once: the newest good version, as at a turn (S0-i, issue 5)."""
    home.tool("zero")
    async with home.open(wait=60) as host:
        for word in ("one", "two", "three"):
            home.tool(word)
            assert await home.says() == word
        home.write("plugins/mine.py", "def broken(:\n")
        assert await home.says() == "three"
        home.write(
            "plugins/mine.py",
            """
            from moryflow_sdk import hookimpl
            @hookimpl
            def chat_params(params):
                return params.replace(temperature=0.5)
            """,
        )
        fired = await fire(host, "chat_params", {"params": {}})
        assert fired.value["temperature"] == 0.5


async def test_what_is_saved_right_before_a_call_holds_although_the_system_has_not_told_of_it(home, monkeypatch):
    """A busy one tells late; the files themselves say at once what was saved (S0-i, issue 5)."""
    home.tool("zero")
    home.write("plugins/package/__init__.py", TOOL.format(name="packed", text="zero", parameters=""))
    async with home.open(wait=60) as host:
        monkeypatch.setattr(home.reloader._watcher, "_on_change", lambda _: None)
        home.tool("one")
        assert await home.says() == "one"
        home.write("plugins/package/__init__.py", TOOL.format(name="packed", text="in place", parameters=""))
        assert await home.says("packed") == "in place"
        home.write("config.jsonc", '{"disabledPlugins": ["package"]}')
        assert await home.says() == "one"
        assert "packed" not in host.tools
        home.tool("new", name="new", plugin="appeared")
        assert await home.says() == "one"
        assert "new" not in host.tools, "it waits for a yes"
        taken = home.reloader._taken
        assert (await home.says(), home.reloader._taken) == ("one", taken), "nothing was saved since"


@pytest.mark.parametrize("moment", ["while it is loaded", "before it is watched"])
async def test_what_is_saved_before_anyone_watches_is_taken_all_the_same(home, tmp_path, monkeypatch, moment):
    """The host has read the files, and its watcher does not stand yet: no save is lost, and new code waits (S0-i, R14)."""
    home.tool("zero")
    elsewhere = tmp_path / "mine.jsonc"
    elsewhere.write_text("{}")
    read = generation.load_config

    def save():
        home.tool("one")
        home.tool("new", name="new", plugin="appeared")
        home.write("agents/late.md", "---\ndescription: x\n---\nSay it.\n")
        elsewhere.write_text('{"language": "zh"}')

    def read_then_save(*args, **kwargs):
        monkeypatch.setattr(generation, "load_config", read)
        found = read(*args, **kwargs)
        save()
        return found

    if moment == "while it is loaded":
        monkeypatch.setattr(generation, "load_config", read_then_save)
    async with await open_host(home.path, environ={}, config=str(elsewhere), wait=60) as host:
        if moment == "before it is watched":
            save()
        home.host, home.reloader = host, Reloader(host, home.reports.append)
        home.reloader.start()
        try:
            await home.until(lambda: host.config.get("language") == "zh" and "late" in host.agents)
            assert await home.says() == "one"
            assert moment == "while it is loaded" or "new" not in host.tools, "it waits for a yes"
            taken = home.reloader._taken
            assert (await home.says(), home.reloader._taken) == ("one", taken), "nothing was saved since"
        finally:
            await home.reloader.aclose()


async def test_a_host_that_starts_in_peace_loads_once(home):
    """What did not change since it was loaded is not loaded again (S0-i)."""
    home.tool("zero")
    home.write("config.jsonc", "{}")
    async with home.open(wait=60) as host:
        first = host.plugin_set
        assert await home.says() == "zero"
        assert (home.reloader._saved, host.plugin_set) == (0, first)


@pytest.mark.parametrize("place", ["MORYFLOW_CONFIG", "--config", "link"])
async def test_settings_that_lie_elsewhere_are_heard_too(home, tmp_path, place):
    """The file that the variable or the flag names, and what a link leads to, like the file in the home (S0-i)."""
    file = tmp_path / "dotfiles" / "mine.jsonc"
    file.parent.mkdir(mode=0o700)
    file.write_text("{}")
    file.chmod(0o600)
    options = {"config": str(file)} if place == "--config" else {}
    if place == "link":
        (home.path / "config.jsonc").symlink_to(file)
    environ = {"MORYFLOW_CONFIG": str(file)} if place == "MORYFLOW_CONFIG" else {}
    async with home.open(environ=environ, **options) as host:
        file.write_text('{"agents": {"runtime": {"truncation": {"maxLines": 7}}}}')
        await home.until(lambda: home.reports, seconds=20)
        assert "maxLines: set" in (await home.report()).lines()[0]
        assert host.config.get("agents.runtime.truncation.maxLines") == 7


async def test_saves_in_a_folder_that_came_to_the_place_of_another_are_heard(home):
    """A checkout, or a link that is set anew, puts another folder there: the old watch hears nothing of it (S0.85)."""
    agent = '---\n{"id": "w", "name": "W"}\n---\n%s\n'
    home.write("agents/w.md", agent % "one")
    async with home.open() as host:
        (home.path / "agents").rename(home.path / "agents.old")
        home.write("agents/w.md", agent % "two")
        await home.until(lambda: host.agents["w"].prompt == "two", seconds=20)
        home.write("agents/w.md", agent % "three")
        await home.until(lambda: host.agents["w"].prompt == "three", seconds=20)
        (home.path / "agents").rename(home.path / "agents.new")
        (home.path / "agents").symlink_to(home.path / "agents.old")
        assert await home.until(lambda: host.agents["w"].prompt == "one", seconds=20)


@pytest.mark.parametrize("place", ["config.jsonc", "."])
async def test_what_others_may_write_from_now_on_allows_nothing_in_the_next_turn(home, place):
    """Although nothing was saved: the mode of the file and of the home count (R17, SECURITY §4)."""
    allow = '[{"domain": "bash", "pattern": "ls", "decision": "allow"}]'
    home.write("config.jsonc", f'{{"agents": {{"runtime": {{"permission": {{"rules": {allow}}}}}}}}}')
    async with home.open() as host:
        home.write("config.jsonc", (home.path / "config.jsonc").read_text().replace('"ls"', '"*"'))
        (home.path / place).chmod(0o777)
        await host.refresh_if_changed()
        assert [rule.pattern for rule in host.config.rules()] == ["ls"], "what was read before holds, and nothing else"


@pytest.mark.parametrize("place", ["plugins/big/__init__.py", "plugins/big", "plugins", "."])
async def test_code_that_others_may_write_from_now_on_is_told_of_at_the_next_turn(home, place):
    """Although nothing was saved: the mode of each folder above it counts (R17); so does that it is mended."""
    home.tool("one", plugin="big/__init__")
    async with home.open() as host:
        (home.path / place).chmod(0o777)
        await host.refresh_if_changed()
        assert home.record("big").kept and "everybody can write to" in home.reports.pop().lines()[-1]
        (home.path / place).chmod(0o700)
        await host.refresh_if_changed()
        assert "plugin big: fixed" in home.reports.pop().lines()[0]


async def test_a_row_of_saves_without_end_holds_up_no_call(home):
    """A reload storm: what was saved before the call holds, what is saved meanwhile is not waited for (issue 5)."""
    home.tool("zero")

    async def saving() -> None:
        for number in range(10_000):
            home.tool(f"number {number}")
            await asyncio.sleep(0.01)

    async with home.open():
        storm = asyncio.create_task(saving())
        try:
            async with asyncio.timeout(300):
                for _ in range(3):
                    await home.says()
            assert not storm.done()
        finally:
            storm.cancel()
        home.tool("last")
        assert await home.says() == "last"


async def test_a_folder_that_takes_the_place_of_one_under_development_is_watched(home):
    """A checkout or a build replaces the folder, not its files: the new code is taken, and later saves too (S0-i)."""
    package = home.path.parent / "mine"
    main, other = package / "__init__.py", package.with_name("other")
    package.mkdir(mode=0o700)
    main.write_text(TOOL.format(name="hello", parameters="", text="one"))
    async with home.open(development=[package]) as host:
        other.mkdir(mode=0o700)
        (other / "__init__.py").write_text(main.read_text().replace("one", "two"))
        package.rename(package.with_name("old"))
        other.rename(package)
        for word, after in (("two", "three"), ("three", "four"), ("four", "five")):
            await home.until(lambda word=word: host.tools["hello"].tool.function() == word, seconds=20)
            main.write_text(main.read_text().replace(word, after))
        await home.until(lambda: host.tools["hello"].tool.function() == "five", seconds=20)
        assert host.tools["hello"].tool.function() == "five"


def test_what_others_have_written_is_not_looked_through(tmp_path):
    """Before each turn the files of a project are looked at, but not its packages and virtual environments."""
    for name in ("mine.py", "inner/pyvenv.cfg", "inner/lib/theirs.py", "node_modules/one/package.json", "below/also.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    states = file_states(tmp_path / "home", [tmp_path])
    assert {path.relative_to(tmp_path).as_posix() for path in states} == {".", "mine.py", "below", "below/also.py"}

"""Installed plugins that are being written: all their modules are imported again, from source, or none (ARCHITECTURE §4)."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow.runtime.documents import plugins_json

PLUGIN = """
from moryflow_sdk import hookimpl, tool
from .words import word

@tool(domain="read")
def say() -> str:
    "Say it."
    from . import late
    return f"{{word}} {{late.word}} {more}"

@hookimpl
def tools():
    return [say]
"""


class Package:
    """A plugin installed from its sources, as pip does it: metadata, a ``.pth`` file, the sources elsewhere."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.site, self.source = root / "site", root / "project" / "src"
        self.folder = self.source / name

    def install(self) -> None:
        info = self.site / f"{self.name}-1.0.dist-info"
        self.save()
        info.mkdir(parents=True)
        line = str(self.source)
        (self.site / f"{self.name}.pth").write_text(f"{line}\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {self.name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{self.name}.pth,,\n")
        url = {"url": self.source.parent.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(url))
        groups = {"moryflow.plugins": self.name, "moryflow.manifest": f"{self.name}:plugin.toml"}
        points = "".join(f"[{group}]\n{self.name} = {value}\n" for group, value in groups.items())
        (info / "entry_points.txt").write_text(points)
        (self.folder / "plugin.toml").write_text(f'name = "{self.name}"\napi = 1\nhooks = ["tools"]\n')

    def save(self, words: str = "word = 'one'\n", late: str = "word = 'late'\n", more: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {"words": words, "late": late, "__init__": PLUGIN.format(more=more)}
        for name, text in files.items():
            path = self.folder / f"{name}.py"
            if not path.exists() or path.read_text() != text:
                path.write_text(text)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: Any, request: Any) -> Iterator[Package]:
    name = f"pack_{abs(hash(request.node.name)) % 10**8}"
    made = Package(tmp_path, name)
    (made.site / "other-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(made.site))
    yield made
    for key in [key for key in sys.modules if key.partition(".")[0] == name]:
        del sys.modules[key]
    sys.path[:] = [entry for entry in sys.path if entry not in (str(made.source), str(made.source.parent))]


async def test_helper_modules_reload_with_their_plugin(home, package):
    """One saved helper: all modules of the package are made anew, those imported late too."""
    package.install()
    async with home.open():
        assert await home.says("say") == "one late "
        package.save("word = 'two'\n")
        assert f"plugin {package.name}: code" in (await home.report()).lines()[0]
        assert await home.says("say") == "two late "
        package.save("word = 'two'\n", "word = 'later'\n")
        await home.report()
        assert await home.says("say") == "two later "


async def test_editors_own_files_are_no_part_of_an_installed_package(home, package):
    """Likewise: its code is taken, and has a hash (issue 5, hot reload)."""
    package.install()
    async with home.open() as host:
        (package.folder / ".#late.py").symlink_to("me@host.123:456")
        package.save("word = 'two'\n")
        await home.until(lambda: host.tools["say"].tool.function() == "two late ", seconds=20)
        assert host.plugin_set.plugins[package.name].hash


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_file_that_cannot_be_read_is_named(home, package, kind):
    """It is not said that the package joins at the next turn: the version before stays, and a start names it (R18)."""
    package.install()
    file = package.folder / "more.py"
    async with home.open():
        os.mkfifo(file) if kind == "pipe" else file.symlink_to("nowhere.py")
        package.save("word = 'two'\n")
        [line] = (await home.report()).lines()
        assert line.startswith(f"kept the previous version: {file}: ")
        assert await home.says("say") == "one late "
    async with home.open():
        record = home.record(package.name)
        assert (record.status, record.file) == ("failed", str(file)) and record.hint


async def test_byte_code_is_never_stale(home, package, monkeypatch):
    """Two saves of one size and one time give one ``.pyc``; sources are compiled themselves (ARCHITECTURE §4)."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    package.install()
    moment = time.time() - 100
    async with home.open():
        for word in ("two", "six", "ten"):
            package.save(f"word = '{word}'\n")
            os.utime(package.folder / "words.py", (moment, moment))
            await home.until(lambda word=word: home.host.tools["say"].tool.function() == f"{word} late ")
        assert await home.says("say") == "ten late "


@pytest.mark.parametrize("probe", [True, False])
async def test_the_old_modules_return_when_the_new_ones_fail(home, package, probe):
    """All or nothing: what was imported half leaves again (ARCHITECTURE §4)."""
    package.install()
    async with home.open(probe=probe):
        before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package.name}
        package.save("word = 'two'\n1 / 0\n")
        report = await home.report()
        assert f"{package.folder / 'words.py'}:2: ZeroDivisionError" in report.lines()[-1]
        assert await home.says("say") == "one late "
        after = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package.name}
        assert all(after[name] is module for name, module in before.items())
        package.save("word = 'three'\n")
        await home.report()
        assert await home.says("say") == "three late "


async def test_old_modules_are_freed(home, package):
    """What the last turn of a generation has left leaves the memory (issue, hot reload)."""
    package.install()
    async with home.open():
        old = [weakref.ref(sys.modules[name]) for name in (package.name, f"{package.name}.words")]
        package.save("word = 'two'\n")
        await home.report()
        await home.reloader.settled()
        gc.collect()
        assert [reference() for reference in old] == [None, None]


async def test_a_compiled_module_takes_a_restart(home, package, monkeypatch):
    """One process can load it once; the version before goes on and says so (ARCHITECTURE §4)."""
    package.install()
    async with home.open():
        compiled = type(sys)(f"{package.name}.fast")
        compiled.__file__ = str(package.folder / "fast.abi3.so")
        monkeypatch.setitem(sys.modules, compiled.__name__, compiled)
        package.save("word = 'two'\n")
        assert "takes a restart" in (await home.report()).lines()[-1]
        assert await home.says("say") == "one late "


async def test_a_plugin_that_is_installed_meanwhile_is_there_at_the_next_turn(home, package):
    """Also one installed from its sources, whose ``.pth`` file Python has not read (issue, plugins)."""
    async with home.open() as host:
        package.install()
        await asyncio.wait_for(home.until(lambda: "say" in host.tools), 300)
        assert await home.says("say") == "one late "
        package.save("word = 'two'\n")
        await home.until(lambda: host.tools["say"].tool.function() == "two late ")


async def test_a_project_is_taken_by_the_entry_points_it_declares(home, package):
    """``dev PATH`` takes a folder with a ``pyproject.toml``, installed or not (CONTRACT §1)."""
    package.save()
    project = package.source.parent
    points = f'[project.entry-points."moryflow.plugins"]\n{package.name} = "{package.name}"\n'
    (project / "pyproject.toml").write_text(f'[project]\nname = "{package.name}"\nversion = "0.1"\n{points}')
    async with home.open(development=[project]) as host:
        assert (home.record(package.name).tier, await home.says("say")) == ("installed", "one late ")
        rows = await asyncio.to_thread(plugins_json, host)
        assert [row["status"] for row in rows if row["name"] == package.name] == ["loaded"]
        package.save("word = 'two'\n")
        await home.report()
        assert await home.says("say") == "two late "


@pytest.mark.parametrize(
    "text", ["project = 5\n", "[project]\nentry-points = 5\n", "[project.entry-points]\n'moryflow.plugins' = [1]\n"]
)
async def test_a_project_whose_table_is_wrong_for_a_moment_is_named_and_comes_back(home, package, text):
    """A value that is half typed ends neither the host nor its reloading (invariant 5)."""
    package.save()
    project = package.source.parent
    points = f'[project.entry-points."moryflow.plugins"]\n{package.name} = "{package.name}"\n'
    (project / "pyproject.toml").write_text(text)
    async with home.open(development=[project]):
        record = home.record("project")
        assert (record.status, record.hint) == ("failed", "fix it") and "of the wrong kind" in record.error
        (project / "pyproject.toml").write_text(f'[project]\nname = "{package.name}"\nversion = "0.1"\n{points}')
        await home.report()
        (project / "pyproject.toml").write_text(text)
        [line] = (await home.report()).lines()
        assert line.startswith(f"kept the previous version: {project / 'pyproject.toml'}: it cannot be read: ")
        assert await home.says("say") == "one late "


@pytest.mark.parametrize(
    ("torn", "said"),
    [
        ("", ": it declares no entry points of moryflow.plugins; "),
        ('[project]\nname = "o', ": it cannot be read: "),
        ("[project]\nname = \n", ":2: it cannot be read: "),
        (None, ": there is no plugin here: "),
    ],
)
async def test_a_project_that_is_saved_in_pieces_keeps_its_plugins(home, package, torn, said):
    """A torn or missing ``pyproject.toml`` takes no plugin away (S0-i)."""
    package.save()
    project = package.source.parent
    points = f'[project.entry-points."moryflow.plugins"]\n{package.name} = "{package.name}"\n'
    text, file = f'[project]\nname = "other"\nversion = "0.1"\n{points}', project / "pyproject.toml"
    file.write_text(text)
    async with home.open(development=[project]) as host:
        file.unlink() if torn is None else file.write_text(torn)
        [line] = (await home.report()).lines()
        assert line.startswith(f"kept the previous version: {project if torn is None else file}{said}")
        assert line.endswith(f"; moryflow plugin check {package.name}") and await home.says("say") == "one late "
        assert [record.name for record in host.plugin_set.records if record.tier != "builtin"] == [package.name]
        package.save("word = 'two'\n")
        file.write_text(text)
        assert f"plugin {package.name}: fixed" in (await home.report()).lines()[0]
        assert await home.says("say") == "two late "


async def test_a_reload_that_fails_in_any_way_is_named_and_the_next_save_is_taken(home, monkeypatch, caplog):
    """A fault of the host's own does not end its reloading (invariant 5)."""
    home.tool("one")
    async with home.open() as host:
        with monkeypatch.context() as broken:
            broken.setattr("moryflow.runtime.generation.wanted_plugins", lambda *_, **__: 1 / 0)
            home.tool("two")
            await home.until(lambda: "the saved changes could not be loaded: ZeroDivisionError" in caplog.text)
        home.tool("three")
        await home.until(lambda: host.tools["hello"].tool.function() == "three")
        assert caplog.text.count("the saved changes could not be loaded") == 1


async def test_an_editable_installation_appears_while_a_host_runs(home, package):
    """Its metadata comes file by file; what is written last is heard of too (issue, dev)."""
    async with home.open() as host:
        package.install()
        await home.until(lambda: "say" in host.tools)
        assert await home.says("say") == "one late "
        package.save("word = 'two'\n")
        await home.until(lambda: host.tools["say"].tool.function() == "two late ")


async def test_an_installation_is_looked_at_again_when_the_installer_has_ended(home, package, monkeypatch):
    """A slow installer says only at the end, in a folder that nobody watches, where the sources are (issue, dev)."""
    monkeypatch.setattr("moryflow.plugins.reload.INSTALLED", 1.0)
    async with home.open() as host:
        first = host.plugin_set.number
        package.install()
        info = package.site / f"{package.name}-1.0.dist-info"
        late = {name: (info / name).read_bytes() for name in ("RECORD", "direct_url.json", "entry_points.txt")}
        for name in late:
            (info / name).unlink()
        await home.until(lambda: host.plugin_set.number > first)
        assert "say" not in host.tools
        for name, data in late.items():
            (info / name).write_bytes(data)
        await home.until(lambda: "say" in host.tools)

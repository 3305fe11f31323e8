"""Which files become tools, and what is said of those that do not (S0.92, D57)."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

TOOL = "from moryflow_sdk import tool\n@tool\ndef shout(text: str) -> str:\n    'Shout.'\n    return text.upper()\n"
PLAIN = "def shout(text: str) -> str:\n    'Shout.'\n    return text.upper()\n"
EXPORTS = {
    "a marked function": TOOL,
    "tools": TOOL + "tools = [shout]\n",
    "tools of plain functions": PLAIN + "tools = [shout]\n",
    "tools by name": TOOL + "tools = {'shout': shout}\n",
    "tools as a function": TOOL + "def tools():\n    return [shout]\n",
    "tool": TOOL.replace("import tool", "import tool as mark").replace("@tool", "@mark") + "tool = shout\n",
    "default": TOOL + "default = shout\n",
    "default as a plain function": PLAIN + "default = shout\n",
    "default as a list": TOOL + "default = [shout]\n",
    "a factory": TOOL + "def create_tools(ctx):\n    assert ctx.home and ctx.data_dir\n    return [shout]\n",
    "a factory without the context": TOOL + "create_tools = lambda: [shout]\n",
    "an asynchronous factory": TOOL + "async def create_tools(ctx):\n    return [shout]\n",
    "a factory that yields": TOOL + "def create_tools(ctx):\n    yield shout\n",
    "several at once": TOOL + "tools = [shout]\ntool_ = shout\ndefault = shout\n",
}


@pytest.mark.parametrize("source", EXPORTS.values(), ids=EXPORTS.keys())
async def test_every_way_to_export_is_understood(box, source):
    """`tools`, `create_tools(ctx)`, `tool`, `default`, or just functions marked with `@tool` (S0.92)."""
    file = box.write("mine", source)
    box.enable()
    tools, notes = await box.loaded()
    assert (list(tools), notes) == (["shout"], ())
    assert tools["shout"].source == str(file)
    assert list(tools["shout"].parameters["properties"]) == ["text"]
    assert (await box.call("shout", text="a")).output == "A"


async def test_they_are_off_until_they_are_switched_on(box):
    """No file is even read before (S0.92, D57)."""
    marker = box.bench.home / "ran"
    box.write("mine", f"{TOOL}\nopen({str(marker)!r}, 'w')\n")
    assert await box.loaded() == ({}, ())
    for value in (False, "true", 1, None):
        box.bench.config(tools={"external": {"enabled": value}})
        assert await box.loaded() == ({}, ())
    assert not marker.exists()
    box.enable()
    assert list((await box.loaded())[0]) == ["shout"]
    assert marker.exists()


@pytest.mark.parametrize("by", ["flag", "configuration"])
async def test_the_profile_remote_never_loads_them(box, by):
    """One notice, even though the configuration switches them on (S0.6, D71)."""
    box.write("mine", TOOL)
    box.write("more", TOOL)
    box.enable()
    if by == "configuration":
        file = box.bench.home / "config.jsonc"
        file.write_text('{"profile": "remote",' + file.read_text(encoding="utf-8")[1:], encoding="utf-8")
    tools, notes = await box.loaded(**({"profile": "remote"} if by == "flag" else {}))
    assert tools == {}
    [notice] = notes
    assert "remote" in notice and str(box.bench.home / "tools") in notice


async def test_safe_mode_loads_none_and_says_so(box):
    """Safe mode runs no code but the built-in plugins' (CONTRACT §1)."""
    box.write("mine", TOOL)
    box.enable()
    tools, [notice] = await box.loaded(safe_mode=True)
    assert tools == {} and "safe mode" in notice


WRONG = {
    "syntax": ("def broken(:\n", 1, "SyntaxError"),
    "import": ("import nothing_of_this_name\n", 1, "nothing_of_this_name"),
    "raise": ("x = 1\nraise ValueError('no')\n", 2, "ValueError: no"),
    "exit": ("import sys\nsys.exit(3)\n", 2, "sys.exit"),
    "interrupt": ("raise KeyboardInterrupt\n", 1, "KeyboardInterrupt"),
    "nothing": ("x = 1\n", None, "it exports no tool"),
    "not a tool": ("tools = [5]\n", None, "5 is not a tool"),
    "not a list": ("tools = 5\n", None, "5 is not a tool"),
    "no hints": ("def f(a):\n    return a\ntools = [f]\n", 1, "needs a type hint"),
    "bad hints": ("from moryflow_sdk import tool\n@tool\ndef f(a: 'Nowhere') -> str:\n    return a\n", 2, "Nowhere"),
    "factory raises": ("\ndef create_tools(ctx):\n    raise ValueError('no')\n", 3, "create_tools: ValueError: no"),
    "factory is none": ("create_tools = 5\n", None, "create_tools is not a function"),
    "bad name": (
        "from moryflow_sdk import tool\n@tool(name='a b')\ndef f() -> str:\n    return ''\n",
        None,
        "'a b' is not a tool name",
    ),
    "latin-1": (b"x = '\xe9'\n", None, "utf-8"),
}


@pytest.mark.parametrize("probe", [True, False], ids=["probed", "at once"])
async def test_each_mistake_is_named_with_file_and_line_and_the_rest_works(box, probe):
    """Every file is loaded alone; what is wrong with the others is nobody's harm (D57, SECURITY §4)."""
    for number, (source, _, _) in enumerate(WRONG.values()):
        file = box.write(f"bad{number:02}", source if isinstance(source, str) else "")
        if isinstance(source, bytes):
            file.write_bytes(source)
    box.write("good", TOOL)
    box.enable()
    tools, notes = await box.loaded(probe=probe, wait=60)
    assert list(tools) == ["shout"]
    for number, (name, (_, line, text)) in enumerate(WRONG.items()):
        said = [note for note in notes if f"bad{number:02}.py" in note]
        assert said and text.casefold() in said[0].casefold(), (name, said)
        assert line is None or f"bad{number:02}.py:{line}:" in said[0], (name, said)


async def test_one_bad_tool_does_not_take_its_neighbours_with_it(box):
    """A file's other tools still load (D57)."""
    box.write("mine", TOOL + "@tool\ndef bad(a: 'Nowhere') -> str:\n    return a\n")
    box.enable()
    tools, notes = await box.loaded()
    assert list(tools) == ["shout"] and "bad:" in notes[0]


@pytest.mark.parametrize(
    "source", ["import time\ntime.sleep(30)\n", "import time\ndef create_tools(ctx):\n    time.sleep(30)\n"]
)
async def test_loading_has_a_time_limit(box, source, monkeypatch):
    """Imports and factories that hang cost their file and not the host; they are not tried again (D57)."""
    monkeypatch.setattr("moryflow_builtins.external_tools.loader.LIMIT", 0.2)
    box.write("slow", source)
    box.write("good", TOOL)
    box.enable()
    async with box.bench.host(probe=False) as host:
        for _ in range(2):
            record = next(record for record in host.plugin_set.records if record.name == "external_tools")
            assert "shout" in host.tools
            [note] = record.notes
            assert "slow.py: it took longer than 0.2 s to load" in note
            await host.refresh()


@pytest.mark.parametrize("name", ["read", "write"])
async def test_a_tool_cannot_take_the_name_of_a_built_in_one(box, name):
    """The built-in one stays, and the file is named (D57)."""
    box.write("aaa", f"from moryflow_sdk import tool\n@tool\ndef {name}(path: str) -> str:\n    'Mine.'\n    return 'mine'\n")
    box.enable()
    async with box.bench.host() as host:
        assert host.tools[name].plugin == "files"
        record = next(record for record in host.plugin_set.records if record.name == "external_tools")
    assert f"aaa.py:2: the name '{name}' is taken by the builtin plugin files" in record.notes[0]


async def test_of_two_files_with_one_name_the_first_has_it(box):
    """Files are loaded by name, and the second is told who was first (D57)."""
    first, _ = box.write("a", TOOL), box.write("b", TOOL)
    box.enable()
    tools, notes = await box.loaded()
    assert tools["shout"].source == str(first)
    assert f"b.py: the name 'shout' is taken by {first}" in notes[0]


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
async def test_files_that_others_can_write_are_refused(box, mode):
    """Their code is not run, and the command that fixes it is said (D57, R17)."""
    box.write("mine", TOOL, mode=mode)
    box.enable()
    tools, [note] = await box.loaded()
    assert tools == {} and "chmod go-w" in note


async def test_a_folder_that_others_can_write_is_refused(box):
    """Whoever may replace a file may write it (D57, R17)."""
    folder = box.write("mine", TOOL).parent
    box.enable()
    folder.chmod(0o777)
    tools, [note] = await box.loaded()
    assert tools == {} and f"chmod go-w {folder}" in note


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_files_of_somebody_else_are_refused(box):
    """Foreign-owned files are not run (D57, R17)."""
    os.chown(box.write("mine", TOOL), 12345, 12345)
    box.enable()
    tools, [note] = await box.loaded()
    assert tools == {} and "belongs to another user" in note


async def test_a_file_that_waits_for_consent_is_not_run_and_is_named(box):
    """What appeared while a host ran may be an agent's work: no code of it runs before a person said yes (ARCHITECTURE §7)."""
    from moryflow.plugins.consent import Consents

    marker = box.bench.home / "ran"
    file = box.write("mine", f"{TOOL}\nopen({str(marker)!r}, 'w')\n")
    box.enable()
    Consents(box.bench.home).hold(file)
    tools, [note] = await box.loaded()
    assert tools == {} and not marker.exists()
    assert f"{file}: it appeared" in note and "moryflow tool allow mine.py" in note
    done = box.bench.cli("tool", "allow", "mine")
    assert (done.returncode, done.stdout) == (0, f"{file} may run\n")
    assert list((await box.loaded())[0]) == ["shout"]


async def test_edits_are_taken_and_what_is_unchanged_is_not_run_again(box):
    """A new generation has the new code, the old module is let go of, the neighbour is the very same object (invariant 8)."""
    file, _ = box.write("mine", TOOL), box.write("other", TOOL.replace("shout", "other"))
    box.enable()
    async with box.bench.host() as host:
        before, identity = dict(host.tools), host.plugin_set.id
        old = weakref.ref(before["shout"].tool.function)
        assert not await host.refresh()
        assert host.tools["shout"].tool.function is old()
        file.write_text(TOOL.replace("upper", "lower"), encoding="utf-8")
        assert await host.refresh()
        assert host.plugin_set.id != identity
        assert host.tools["shout"].tool.function("A") == "a"
        assert host.tools["other"].tool.function is before["other"].tool.function
        del before
        gc.collect()
        assert old() is None
        file.unlink()
        await host.refresh()
        assert "shout" not in host.tools and "other" in host.tools

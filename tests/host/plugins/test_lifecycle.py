"""Start, contribute, dispose: once per plugin object, item by item, bounded, and nothing is kept."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from typing import Any

from moryflow.kernel.tool_call import Deadline, run_body
from moryflow.plugins import dispose, load_plugin_set, start

TOOL = """
@tool
def {name}(text: str) -> str:
    "Say it."
    return text

@hookimpl
def tools(ctx):
    return [{name}]
"""


def log_of(bench: Any, name: str) -> list[str]:
    file = bench.home / f"{name}.log"
    return file.read_text("utf-8").split() if file.exists() else []


def logging_plugin(body: str = "") -> str:
    return (
        "def say(ctx, what):\n    with open(ctx.home / f'{ctx.name}.log', 'a') as log: log.write(what + ' ')\n"
        "@hookimpl\ndef plugin_start(ctx):\n    say(ctx, 'start')\n    return lambda: say(ctx, 'end')\n" + body
    )


async def test_a_plugin_starts_once_and_ends_when_its_last_generation_ends(bench: Any):
    """A set that replaces another keeps what has not changed; the disposer runs after the last user (invariant 8)."""
    bench.user("mine", logging_plugin())
    first = await start(bench.load())
    second = await start(bench.load(previous=first))
    assert second.plugins["mine"].object is first.plugins["mine"].object
    await dispose(first)
    await dispose(first)
    assert log_of(bench, "mine") == ["start"]
    await dispose(second)
    assert log_of(bench, "mine") == ["start", "end"]


async def test_a_changed_file_is_a_new_object_beside_the_old_one(bench: Any):
    """A turn sees one generation: the old set goes on unchanged while the new one exists (invariant 8)."""
    source = "@hookimpl\ndef tool_after(result):\n    return result.replace(output='{}')\n"
    bench.user("mine", source.format("old"))
    first = await bench.start()
    bench.user("mine", source.format("new"))
    second = await bench.start(previous=first)
    assert first.id != second.id
    assert first.plugins["mine"].hash != second.plugins["mine"].hash
    from moryflow_sdk import ToolResult

    outputs = [each.ordered("tool_after")[0].function(ToolResult()).output for each in (first, second)]
    assert outputs == ["old", "new"]


async def test_changed_settings_start_a_plugin_again(bench: Any):
    bench.user("mine", logging_plugin())
    first = await start(bench.load())
    bench.config.values["plugins.mine"] = {"x": 1}
    second = await start(bench.load(previous=first))
    await dispose(first)
    module = second.plugins["mine"].object
    assert sys.modules[module.__name__] is module, "the module is still in use"
    await dispose(second)
    assert module.__name__ not in sys.modules
    assert log_of(bench, "mine") == ["start", "start", "end", "end"]


async def test_the_same_plugins_give_the_same_id_and_another_one_another(bench: Any):
    """A set has a content hash; every turn records it (invariant 8)."""
    bench.user("mine", TOOL.format(name="hello"))
    first, second = await bench.start(), await bench.start()
    assert first.id == second.id and first.number != second.number
    bench.user("more", TOOL.format(name="other"))
    assert (await bench.start()).id != first.id


async def test_a_started_set_does_not_change(bench: Any):
    """A turn holds one set, and nobody can add to it (invariant 8)."""
    import pytest

    bench.user("mine", TOOL.format(name="hello"))
    started = await bench.start()
    for mapping in (started.plugins, started.tools, started.hooks, started.agents, started.commands):
        with pytest.raises(TypeError):
            mapping["x"] = 1
    with pytest.raises(AttributeError):
        started.id = "other"


async def test_a_plugin_that_does_not_start_fails_with_its_line(bench: Any):
    bench.user("mine", TOOL.format(name="hello") + "@hookimpl\ndef plugin_start(ctx):\n    raise OSError('no port')\n")
    before = set(sys.modules)  # another test's plugin may have had this name
    started = await bench.start()
    found = bench.record("mine", started)
    assert (found.status, found.stage, found.error, found.line) == ("failed", "start", "OSError: no port", 13)
    assert started.tools == {} and "mine" not in started.plugins
    assert not [name for name in sys.modules.keys() - before if name.startswith("moryflow_plugins.mine")]


async def test_what_plugin_start_returns_must_be_a_function(bench: Any):
    bench.user("mine", "@hookimpl\ndef plugin_start(ctx):\n    return 5\n")
    assert "must return a function or None" in bench.record("mine", await bench.start()).error


NAMELESS = """
class Nameless(type):
    @property
    def __name__(cls): raise RuntimeError("no name")

class Returned(metaclass=Nameless):
    pass

@hookimpl
def plugin_start(ctx):
    return Returned()
"""


async def test_a_class_whose_name_cannot_be_read_is_named_all_the_same(bench: Any):
    """A metaclass of a plugin's own is not the host's trouble (invariant 5)."""
    bench.user("mine", NAMELESS)
    assert "must return a function or None, not Returned" in bench.record("mine", await bench.start()).error


async def test_a_disposer_that_hangs_or_raises_is_left_behind(bench: Any):
    """Clean-up is bounded: nothing waits for ever (invariant 9)."""
    bench.user("hangs", "import time\n@hookimpl\ndef plugin_start(ctx):\n    return lambda: time.sleep(3000)\n")
    bench.user(
        "waits",
        """
        import asyncio
        @hookimpl
        async def plugin_start(ctx):
            async def end(): await asyncio.sleep(3000)
            return end
        """,
    )
    bench.user("raises", "@hookimpl\ndef plugin_start(ctx):\n    def end(): raise ValueError\n    return end\n")
    bench.user("mine", logging_plugin())
    started = await start(bench.load())
    await dispose(started)
    assert log_of(bench, "mine") == ["start", "end"]


async def test_disposing_of_a_set_that_was_never_started_does_nothing(bench: Any):
    bench.user("mine", logging_plugin())
    await dispose(bench.load())
    assert log_of(bench, "mine") == []


async def test_an_unloaded_plugin_can_be_freed(bench: Any):
    """Unloading frees: module, tools and threads go when the set goes."""
    bench.user("mine", TOOL.format(name="hello") + "@hookimpl\ndef tool_gate(call): ...\n")
    started = await start(bench.load())
    await bench.dispatcher.gates(_scope(started), "tool_gate", call=_call())
    await run_body(Deadline(started.tools["hello"]), {"text": "x"})
    module = weakref.ref(started.plugins["mine"].object)
    await dispose(started)
    del started
    for _ in range(1000):
        gc.collect()
        if module() is None:
            break
        await asyncio.sleep(0.02)
    assert module() is None


def _scope(plugin_set: Any) -> Any:
    from types import SimpleNamespace

    from moryflow.hooks.ledger import Ledger, Quarantine

    return SimpleNamespace(
        plugin_set=plugin_set, ledger=Ledger(), quarantine=Quarantine(), session="s", turn="t", step=1, view=lambda name: None
    )


def _call() -> Any:
    from moryflow_sdk import ToolCall

    return ToolCall(id="c", tool="t", args={})


# ---------------------------------------------------------------- contributions


async def test_tools_agents_models_and_commands_are_owned_by_their_plugin(bench: Any):
    bench.user(
        "mine",
        TOOL.format(name="hello")
        + """
class Provider(BaseProvider):
    name = "mine"
    def stream(self, request): ...

@hookimpl
async def agents():
    return [Agent(id="writer")]

@hookimpl
def models(ctx):
    return (Provider(),)

@hookimpl
def commands(ctx):
    yield Command("say", "Say it", aliases=("tell",))
""",
    )
    started = await bench.start()
    assert [(owned.tool.name, owned.plugin, owned.tier) for owned in started.tools.values()] == [("hello", "mine", "user")]
    assert list(started.agents) == ["writer"] and [item.name for item in started.providers] == ["mine"]
    assert list(started.commands) == ["say"]
    found = bench.record("mine", started)
    assert (found.status, found.error, found.tools) == ("loaded", "", ("hello",))


async def test_an_item_that_cannot_be_used_is_left_out_and_named(bench: Any):
    """The item is left out, the plugin stays (ARCHITECTURE §4)."""
    bench.user(
        "mine",
        """
        @tool
        def good(text: str) -> str:
            "x"
            return text
        @tool(name="bad name")
        def bad(text: str) -> str:
            "x"
            return text
        class Odd: ...
        @tool
        def schemaless(text: Odd) -> str:
            "x"
            return ""
        @hookimpl
        def tools():
            return [good, 5, bad, schemaless, good]
        @hookimpl
        def agents():
            return [Agent(id="default_compact_agent", internal=True), Agent(id="taken"), "x"]
        @hookimpl
        def models():
            return [object()]
        @hookimpl
        def commands():
            return [Command("run", "x"), None]
        """,
    )
    started = await start(bench.load(), reserved={"agents": frozenset({"taken"}), "commands": frozenset({"run"})})
    bench.sets.append(started)
    found = bench.record("mine", started)
    assert list(started.tools) == ["good"] and not started.agents and not started.providers and not started.commands
    assert (found.status, found.stage) == ("loaded", "contribute") and found.file.endswith("mine.py") and found.line
    for text in ("5 is not a tool", "'bad name' is not a tool name", "Odd", "'good' is taken", "internal agents",
                 "'taken' is taken by the host", "not a model provider", "'run' is taken by the host",
                 "not a Command"):  # fmt: skip
        assert text in found.error


async def test_a_model_provider_that_lacks_methods_is_told_which(bench: Any):
    """By name, and what has them already; the rest of the plugin is there (invariant 5)."""
    bench.user(
        "mine",
        "class Echo:\n    name = 'echo'\n    def find(self, model): ...\n@hookimpl\ndef models():\n    return [Echo()]\n",
    )
    found = bench.record("mine", await bench.start())
    said = "Echo is not a model provider: it lacks default, available, prepare, stream, aclose"
    assert (found.status, found.stage) == ("loaded", "contribute") and said in found.error and "BaseProvider" in found.error


async def test_a_contribute_hook_that_fails_costs_only_its_items(bench: Any):
    bench.user(
        "mine", TOOL.format(name="hello") + "@hookimpl\ndef agents():\n    yield Agent(id='a')\n    raise ValueError('half')\n"
    )
    bench.user("text", "@hookimpl\ndef tools():\n    return 'hello'\n")
    started = await bench.start()
    assert list(started.tools) == ["hello"] and not started.agents
    assert "agents: ValueError: half" in bench.record("mine", started).error
    assert "a list of items is expected, not str" in bench.record("text", started).error


async def test_a_tool_cannot_take_the_name_of_an_earlier_one(bench: Any):
    """A built-in tool's name is refused to anyone else, and so is that of an earlier tier (D57)."""
    bench.builtin("inside", TOOL.format(name="read"))
    bench.installed("package", TOOL.format(name="read"))
    bench.user("mine", TOOL.format(name="read"))
    started = await bench.start()
    assert started.tools["read"].plugin == "inside"
    for name in ("package", "mine"):
        assert "'read' is taken by the builtin plugin inside" in bench.record(name, started).error


async def test_a_refused_command_takes_no_name_from_another(bench: Any):
    """Its names are free for the next plugin (D57); a command may repeat its own name as an alias."""
    body = "@hookimpl\ndef commands():\n    return [Command({!r}, 'x', aliases={!r})]\n"
    bench.user("first", body.format("free", ("run",)))
    bench.user("second", body.format("free", ("Free",)))
    started = await start(bench.load(), reserved={"commands": frozenset({"run"})})
    bench.sets.append(started)
    assert "'run' is taken by the host" in bench.record("first", started).error
    assert started.command_owners == {"free": "second"} and not bench.record("second", started).error


async def test_a_contribute_hook_that_hangs_holds_up_nobody_for_ever(bench: Any):
    """Deadlines by default, for contribute hooks too (invariant 9)."""
    bench.user("slow", "import time\n@hookimpl(timeout=0.2)\ndef tools():\n    time.sleep(30)\n")
    bench.user("mine", TOOL.format(name="hello"))
    started = await bench.start()
    assert list(started.tools) == ["hello"]
    assert "took longer than 0.2 s" in bench.record("slow", started).error


def test_loading_needs_no_loop_and_no_home(bench: Any, tmp_path: Any):
    from moryflow.plugins.discovery import PluginSettings

    missing = tmp_path / "not" / "there"
    loaded = load_plugin_set(home=missing, builtins=(), settings=PluginSettings(), config=bench.config)
    assert loaded.id


async def test_the_id_tells_generations_apart_whose_contributions_differ(bench: Any):
    """What a plugin contributes may change while its code does not; the id says so (invariant 8)."""
    source = """
    @hookimpl
    def tools(ctx):
        @tool(name=(ctx.home / 'name').read_text())
        def made(text: str) -> str:
            "x"
            return text
        return [made]
    """
    bench.user("mine", source)
    (bench.home / "name").write_text("one", "utf-8")
    first, again = await bench.start(), await bench.start()
    (bench.home / "name").write_text("two", "utf-8")
    second = await bench.start()
    assert first.id == again.id != second.id

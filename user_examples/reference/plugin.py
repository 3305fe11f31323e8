"""Examples of what a plugin is made of. The reference on the site shows them; the tests run them in a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moryflow_sdk import (
    API,
    APIS,
    HOOKS,
    Ask,
    Command,
    CommandContext,
    Denied,
    Deny,
    HookOptions,
    PluginContext,
    SlashResult,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    Turn,
    config_of,
    file_target,
    hookimpl,
    tool,
)
from pydantic import BaseModel

services = ["emit", "files"]


# example of: hookimpl
@hookimpl(on_failure="withhold", timeout=0.5)
def tool_after(call: ToolCall, result: ToolResult) -> ToolResult | None:
    if call.tool != "secret":
        return None
    return result.replace(output=result.output.replace("swordfish", "[hidden]"))


# example of: HookOptions
def example_hook_options() -> None:
    options: HookOptions = tool_after.moryflow_options  # type: ignore[attr-defined]
    assert (options.on_failure, options.timeout) == ("withhold", 0.5)


# example of: HOOKS, HookInfo
def example_hooks() -> None:
    info = HOOKS["tool_gate"]
    assert (info.dotted, info.kind, info.timeout) == ("tool.gate", "gate", 2.0)


# example of: API, APIS
def example_api() -> None:
    assert API == 1 and API in APIS  # what plugin.toml names: api = 1


# example of: tool
@tool(domain="read", targets=lambda args: file_target(args["path"]), parallel_safe=True)
def count_lines(path: str, context: ToolContext, limit: int = 1_000_000) -> dict[str, int]:
    """Count the lines of a text file."""
    data = context.files.read(context.call.targets[0])
    return {"lines": min(len(data.splitlines()), limit)}


# example of: Tool
def example_tool() -> None:
    @tool
    def shout(text: str, times: int = 1) -> str:
        """Say TEXT in capitals."""
        return text.upper() * times

    assert isinstance(shout, Tool)
    assert (shout.name, shout.description, shout.domain) == ("shout", "Say TEXT in capitals.", "tool")
    assert shout.parameters["required"] == ["text"]
    assert shout.validate({"text": "hi"}) == {"text": "hi"}
    assert shout.function("hi") == "HI"


# example of: PluginContext
@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], None]:
    ctx.log.info("%s keeps its files in %s", ctx.name, ctx.data_dir)
    lock = ctx.data_dir / "running"
    lock.touch()
    return lock.unlink  # undoes it when the plugin goes


# example of: Turn
@hookimpl
def tool_before(call: ToolCall, turn: Turn) -> None:
    turn.session_state["calls"] = turn.session_state.get("calls", 0) + 1
    if turn.session_state["calls"] == 1:
        turn.emit("first_call", tool=call.tool, vault=turn.vault.name)


class Settings(BaseModel):
    read_only: bool = False


config_model = Settings


# example of: config_of
@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    settings = config_of(turn, Settings)  # an editor knows read_only, and that it is a bool
    return Deny("this plugin was set to read_only") if settings.read_only and call.domain == "edit" else None


# example of: ToolContext
@tool(domain="tool")
async def publish(version: str, context: ToolContext) -> str:
    """Publish VERSION, after a question."""
    context.progress(f"checking {version}")
    try:
        await context.ask(Ask(f"publish {version}?"))
    except Denied as refused:
        raise ToolError(f"not published: {refused.message}", code="denied") from refused
    context.metadata(version=version)
    return f"published {version}"


@tool
def secret() -> str:
    """Say a secret."""
    return "it is swordfish"


@hookimpl
def tools() -> list[Tool]:
    return [count_lines, publish, secret]


# example of: CommandContext
def greet_command() -> Any:
    import click

    @click.command()
    @click.argument("name")
    @click.pass_obj
    def command(context: CommandContext, name: str) -> None:
        """Say hello on the command line."""
        document: Mapping[str, str] = {"name": name, "vault": context.vault.name}
        context.print(document, text=f"Hello, {name}, in {context.vault.name}")

    return command


# example of: Command, SlashResult
@hookimpl
def commands() -> list[Command]:
    async def slash(text: str, turn: Turn) -> SlashResult:  # /greet Ada
        return SlashResult(text=f"Hello, {text}, in {turn.vault.name}")

    return [Command(name="greet", help="Say hello", cli=greet_command, slash=slash)]

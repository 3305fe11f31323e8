"""One example for each service, as tools of one plugin. The reference on the site shows them; the tests call them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moryflow_sdk import (
    Agent,
    ChatParams,
    Diagnostic,
    Event,
    PluginContext,
    PluginError,
    Rule,
    Tool,
    ToolContext,
    file_target,
    hookimpl,
    tool,
)
from moryflow_sdk.services import SERVICES, Observer

services = ["artifacts", "code_loader", "complete", "emit", "files", "history", "info", "rules", "spawn", "watch"]


# example of: SERVICES
def example_services() -> None:
    assert sorted(services) == sorted(SERVICES)  # what this plugin declares: services = ["artifacts", "code_loader", …]


# example on the page of: Files, Entry
@tool(domain="edit", targets=lambda args: file_target(args["path"], "edit"))
def tidy(path: str, context: ToolContext) -> str:
    """Remove blanks at the ends of lines; say what else is in the folder."""
    target = context.call.targets[0]
    lines = context.files.read(target).splitlines()
    context.files.write(target, b"".join(line.rstrip() + b"\n" for line in lines))
    folder = context.files.resolve(".")
    return ", ".join(f"{entry.name} ({entry.size} bytes)" for entry in context.files.entries(folder) if entry.kind == "file")


# example of: Artifacts, Artifact
@tool
async def keep(text: str, context: ToolContext) -> str:
    """Store TEXT for a week and read its beginning back."""
    stored = await context.artifacts.store(text, call_id=context.call.id, tool="keep", ttl_days=7)
    beginning = await context.artifacts.read(stored.id, limit=5)
    return f"{stored.size} bytes, beginning with {beginning.decode()}"


# example of: History, NodeView, SessionView, StoredCall
@tool
async def recall(context: ToolContext) -> str:
    """Say what was asked first, and which tools have run."""
    nodes = await context.history.path()
    first = next(node.payload["text"] for node in nodes if node.kind == "user")
    calls = await context.history.calls(session=context.session)
    sessions = await context.history.sessions(limit=10)
    return f"{first!r}, {len(calls)} calls, {len(sessions)} session"


# example of: Rules
@tool
async def allow_make(context: ToolContext) -> int:
    """Allow ``make`` for this session; return how many rules there are then."""
    await context.rules.append(Rule(domain="bash", pattern="make *", decision="allow"), scope="session")
    return len(context.rules.all())


# example of: Spawn, SpawnResult, Spawned
@tool
async def review(path: str, context: ToolContext) -> str:
    """Let another agent read PATH."""
    reader = Agent(id="reader", mode="subagent", prompt="You read and never write.", tools=("read",))
    result = await context.spawn(reader, f"Review {path}.", metadata={"path": path})
    return f"{result.end_reason}: {result.text}"


# example of: Complete
@tool
async def translate(text: str, context: ToolContext) -> str:
    """Translate TEXT into French."""
    return await context.complete(text, system="Translate into French.", params=ChatParams(temperature=0))


# example of: SessionInfo
@tool
def rename(title: str, context: ToolContext) -> str:
    """Give the session a title, and leave the model a note."""
    context.info.set_title(title)
    context.info.note(f"The session is called {title} now.", title="renamed")
    return "done"


# example of: Emit
@tool
def announce(text: str, context: ToolContext) -> str:
    """Tell observers something; the user at a terminal sees a notice."""
    context.emit("announced", text=text)  # the event plugin.NAME.announced
    context.emit("notice", text=text)
    return "told"


# example of: Watch
@hookimpl
def plugin_start(ctx: PluginContext) -> Callable[[], None]:
    def changed(path: Path) -> None:
        ctx.log.info("%s has changed", path.name)
        ctx.invalidate()  # tools() and the like are asked again

    return ctx.watch(ctx.data_dir, changed)  # ends the watch when the plugin goes


# example of: CodeLoader
def recipes(ctx: PluginContext) -> list[Tool | Diagnostic]:
    found: list[Tool | Diagnostic] = []
    for path in sorted((ctx.home / "recipes").glob("*.py")):
        try:
            found.append(tool(ctx.code_loader.load(path).cook))
        except PluginError as error:  # nobody has consented to this file, or it does not load
            found.append(Diagnostic(file=str(path), message=error.message, next_step=error.next_step))
    return found


# example of: Observer
def example_observer() -> None:
    seen: list[str] = []

    def observe(event: Event) -> None:
        seen.append(event.type)

    observer: Observer = observe  # what session.subscribe takes
    observer(Event(type="turn.start", session="s1"))
    assert seen == ["turn.start"]


@hookimpl
def tools(ctx: PluginContext) -> list[Tool | Diagnostic]:
    return [tidy, keep, recall, allow_make, review, translate, rename, announce, *recipes(ctx)]

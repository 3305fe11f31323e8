"""``moryflow tool``: list, show and run tools without a model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError, Tool
from moryflow_sdk.support.texts import did_you_mean

from moryflow.base.events import now
from moryflow.cli.failures import allowing
from moryflow.cli.open_host import from_host, with_host
from moryflow.cli.options import MODE, ON_ASK, Flags, InputCommand, document_options, host_options, json_object, noun
from moryflow.cli.terminal import as_json, at_terminal, columns, plain, say, show
from moryflow.cli.terminal.streams import stdout
from moryflow.runtime.documents import tool_json

from .tool_files import allow, check, missing_hint

if TYPE_CHECKING:
    from moryflow.hooks.plugin_set import RegisteredTool
    from moryflow.kernel.outcome import OnAsk
    from moryflow.runtime.host import Host
    from moryflow.runtime.turn_task import DirectResult


# Columns to which `tool show` sets fields in: a schema may refer to itself.
MAX_INDENT = 10

command = noun("tool", "List, show and run tools without a model; check and allow files with tools.")

for verb in (allow, check):
    command.add_command(verb)


@command.command("list")
@document_options
def list_tools(flags: Flags) -> None:
    """List the tools, with the plugin each belongs to."""

    rows = from_host(flags, lambda host: [tool_json(owned) for _, owned in sorted(host.tools.items())])
    show(flags, rows, columns((row["name"], row["domain"], row["plugin"], row["description"]) for row in rows))


@command.command("show")
@click.argument("name")
@document_options
def show_tool(flags: Flags, name: str) -> None:
    """Show a tool's parameters and description."""

    owned = from_host(flags, lambda host: _find(host, name))
    tool = owned.tool
    document = {**tool_json(owned), "description": tool.description, "parameters": dict(tool.parameters)}
    show(flags, document, _described(document))


def _described(document: dict[str, Any]) -> str:
    head = f"{document['name']}  ({document['domain']}, plugin {document['plugin']})"
    table = columns(_parameters(document["parameters"], document["parameters"].get("$defs", {}), "  --"))
    return "\n\n".join(part for part in (head, plain(document["description"]), table) if part)


def _parameters(schema: Mapping[str, Any], defs: Mapping[str, Any], indent: str) -> Iterator[tuple[str, str, str, str]]:
    for key, given in schema.get("properties", {}).items():
        kind, inner = _type_of(given, defs)
        yield f"{indent}{key}", kind, "required" if key in schema.get("required", ()) else "", given.get("description", "")
        if inner and len(indent) < MAX_INDENT:
            yield from _parameters(inner, defs, " " * (len(indent) + 2))


def _type_of(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the type of a value in words, and the schema of the object that it is or holds, if any."""
    if "$ref" in schema:
        return _type_of(defs.get(schema["$ref"].rpartition("/")[2], {}), defs)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        kinds = [_type_of(option, defs) for option in options]
        return "/".join(dict.fromkeys(kind for kind, _ in kinds)), next((inner for _, inner in kinds if inner), {})
    if "enum" in schema:
        return "/".join(map(str, schema["enum"])), {}
    if "const" in schema:
        return str(schema["const"]), {}
    if schema.get("type") == "array" and "items" in schema:
        kind, inner = _type_of(schema["items"], defs)
        return f"list of {kind}", inner
    named = schema.get("type") or "any"
    return "/".join(named) if isinstance(named, list) else str(named), schema if schema.get("properties") else {}


def _find(host: Host, name: str) -> RegisteredTool:
    if name in host.tools:
        return host.tools[name]

    hint, step = missing_hint(host, name)
    later = "" if hint else host.plugin_set.pending_hint()
    step = step or ("moryflow plugin check" if later else "moryflow tool list")
    raise ConfigError(f"there is no tool {name!r}{hint or later or did_you_mean(name, host.tools)}", next_step=step)


@command.command("run", cls=InputCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("name")
@click.option("--args", "given", metavar="JSON", help="The arguments as a JSON object; - reads it from standard input.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--mode", type=MODE, help="What the call may do.")
@click.option("--on-ask", type=ON_ASK, help="What to do with a question.")
@click.option("--agent", help="The agent whose tools and rules hold.")
@click.option("-y", "--yes", "sure", is_flag=True, help="Confirm --mode full_access.")
@host_options
@click.pass_context
def run_tool(
    ctx: click.Context,
    flags: Flags,
    name: str,
    given: str | None,
    output: str,
    mode: str | None,
    on_ask: OnAsk | None,
    agent: str | None,
    sure: bool,
) -> int:
    """Run one tool through the whole chain: gates, question, audit, body, truncation.

    Arguments are given one by one (--path README.md; moryflow tool show NAME lists them) or all at once (--args
    '{"path": "README.md"}'). -v and --json show every hook on the way: which plugin, what came of it, how long it took.
    """
    from .run import confirm_mode

    async def work(host: Host) -> int:
        from moryflow.cli.terminal.approval_prompt import TerminalAsker
        from moryflow.cli.terminal.render import TerminalView
        from moryflow.kernel.outcome import RunOptions

        confirm_mode(mode, flags._replace(yes=flags.yes or sure))
        tool = _find(host, name).tool
        form = "json" if flags.as_json else output
        args = tool_arguments(tool, given, ctx.args)
        view = TerminalView(quiet=flags.quiet, verbose=flags.verbose, answers=False)
        asks: OnAsk = on_ask or ("prompt" if at_terminal() else "deny")
        host.bus.subscribe(TerminalAsker(host.approvals, view) if asks == "prompt" else view)
        started = time.perf_counter()
        done = await host.call_tool(name, args, vault=flags.vault, mode=mode, agent=agent, options=RunOptions(on_ask=asks))
        view.finish("")
        ms = round((time.perf_counter() - started) * 1000)
        if flags.verbose and form == "text":
            shown = (call for call in done.chain if call["hook"] != "event")
            rows = ((f"  {c['hook'].replace('_', '.', 1)}", c["plugin"], c["outcome"], f"{c['us']} µs") for c in shown)
            click.echo(columns(rows), err=True)
        return _print(done, name, ms, form)

    return with_host(flags, work)


def _print(done: DirectResult, name: str, ms: int, output: str) -> int:
    from moryflow.runtime.turn_result import EXIT_CODES

    result = done.result
    failed = result.status != "ok"
    if output == "json":
        click.echo(as_json(_event(done, name, ms)), file=stdout())
    elif failed:
        click.echo(plain(f"moryflow: {name}: {result.output}"), err=True)  # as the tool laid it out
        if result.code == "invalid_args":
            click.echo(f"  next: moryflow tool show {name}", err=True)
        elif done.ruling is not None and done.ruling.by == "headless":
            rules = allowing((item.domain, item.pattern) for item in done.ruling.remember if item.scope == "user")
            click.echo(plain(f"  next: the same at a terminal, where it asks{f'; or: {rules}' if rules else ''}"), err=True)
    else:
        click.echo(plain(result.output), file=stdout(), nl=not result.output.endswith("\n"))
    if done.exit_code == EXIT_CODES["plugin_failed"]:
        message = "a plugin failed on the way, and --strict makes that an error"
        say(f"moryflow: {message}\n  next: moryflow plugin list")
        return done.exit_code
    if result.status == "error" and not done.exit_code:
        return 2 if result.code == "invalid_args" else 1
    return done.exit_code


def _event(done: DirectResult, name: str, ms: int) -> dict[str, Any]:
    result, ruling = done.result, done.ruling
    event = {
        "v": 1,
        "type": "tool.result",
        "ts": now(),
        "session": done.session,
        "call_id": done.call_id,
        "tool": name,
        "state": "completed" if result.status == "ok" else "error",
        "status": result.status,
        "code": result.code,
        "output": result.output,
        "truncated": result.truncated,
        "output_id": result.output_id,
        "path": result.path,
        "title": result.title,
        "metadata": result.model_dump(mode="json", include={"metadata"})["metadata"],
        "decision": ruling.decision if ruling else None,
        "cause": ruling.cause if ruling else None,
        "ms": ms,
        "chain": [call for call in done.chain if call["hook"] != "event"],
    }
    return {key: value for key, value in event.items() if value is not None}


def tool_arguments(tool: Tool, text: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments in `text` (JSON) and those in `words` (``--path README.md``), which take precedence.

    :raises ConfigError: the JSON is not an object, or a word is not one of the tool's parameters.
    """
    given = {} if text is None else json_object(text, "--args", 'for example --args \'{"path": "README.md"}\'')
    return {**given, **_from_words(tool, list(words))}


def _from_words(tool: Tool, words: list[str]) -> dict[str, Any]:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    found: dict[str, Any] = {}
    while words:
        key, schema, value = _next(tool, properties, words)
        if _kind(schema) == "array" and isinstance(found.get(key), list):
            found[key] += value if isinstance(value, list) else [value]
        else:
            found[key] = value
    return found


def _next(tool: Tool, properties: Mapping[str, Any], words: list[str]) -> tuple[str, Any, Any]:
    word = words.pop(0)
    if not word.startswith("--"):
        raise ConfigError(f"unexpected argument {word!r}", next_step=_usage(tool))
    name, equals, text = word[2:].partition("=")
    key = name.replace("-", "_")
    if key not in properties and key.startswith("no_") and _kind(properties.get(key[3:])) == "boolean":
        return key[3:], properties[key[3:]], False
    if key not in properties:
        raise ConfigError(f"{tool.name} takes no --{name}{did_you_mean(key, properties, '--')}", next_step=_usage(tool))
    schema = properties[key]
    if not equals:
        if _kind(schema) == "boolean" and (not words or words[0].casefold() not in ("true", "false")):
            return key, schema, True
        if not words:
            raise ConfigError(f"--{name} needs a value", next_step=_usage(tool))
        text = words.pop(0)
    return key, schema, _value(schema, text)


def _value(schema: object, text: str) -> Any:
    """Read `text` as the schema's type. Text that does not fit stays text, and the tool's validation reports it."""
    kind = _kind(schema)
    if kind == "string":
        return text
    if kind == "array" and isinstance(schema, Mapping) and not text.lstrip().startswith("["):
        return [_value(schema.get("items", {}), text)]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kind(schema: object) -> str:
    if not isinstance(schema, Mapping):
        return ""
    kinds = [schema.get("type"), *(part.get("type") for part in schema.get("anyOf", ()) if isinstance(part, Mapping))]
    named = [kind for kind in kinds if kind not in (None, "null")]
    return str(named[0]) if len(named) == 1 else ""


def _usage(tool: Tool) -> str:
    return f"moryflow tool show {tool.name}"

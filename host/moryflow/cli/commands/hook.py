"""``moryflow hook``: list the hooks, and call one hook's chain with a given input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.open_host import from_host, with_host
from moryflow.cli.options import Flags, InputCommand, document_options, host_options, json_object, noun
from moryflow.cli.terminal import as_json, columns, plain, say, show
from moryflow.cli.terminal.streams import stdout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moryflow_sdk.hookspecs import HookInfo

    from moryflow.authoring.fire import FireResult
    from moryflow.hooks.plugin_set import Implementation
    from moryflow.runtime.host import Host


command = noun("hook", "List the hooks; call one hook chain with a given input.")


@command.command("list")
@document_options
def list_hooks(flags: Flags) -> None:
    """List every hook and who implements it, in the order they are called."""
    from moryflow_sdk import HOOKS

    rows = from_host(flags, lambda host: [_row(info, host.plugin_set.ordered(info.name)) for info in HOOKS.values()])
    text = columns((row["name"], row["kind"], " → ".join(item["plugin"] for item in row["plugins"]) or "-") for row in rows)
    show(flags, rows, text)


def _row(info: HookInfo, implementations: Iterable[Implementation]) -> dict[str, Any]:
    plugins = [
        {"plugin": item.plugin, "tier": item.tier, "position": item.position, "timeout": item.timeout}
        for item in implementations
    ]
    return {"name": info.dotted, "python": info.name, "kind": info.kind, "timeout": info.timeout, "plugins": plugins}


@command.command("fire", cls=InputCommand)
@click.argument("hook")
@click.option("--args", "given", metavar="JSON", help="The hook's arguments by name, as JSON; - reads standard input.")
@click.option("--output", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.argument("value", required=False)
@host_options
def fire(flags: Flags, hook: str, given: str | None, value: str | None, output: str) -> int:
    """Call the implementations of HOOK, in order, with a given input.

    HOOK is spelled either way (chat.params or chat_params). The input is a JSON object of the hook's arguments:
    moryflow hook fire tool.before '{"call": {"tool": "read", "args": {"path": "a.md"}}}'
    """
    from moryflow.authoring.fire import fire
    from moryflow.runtime.selection import refuse_failed
    from moryflow.runtime.turn_result import EXIT_CODES

    text = given if given is not None else value
    arguments = json_object(text or "{}", "the input", 'for example \'{"params": {"temperature": 0.2}}\'')

    async def work(host: Host) -> tuple[FireResult, bool]:
        if host.strict:
            refuse_failed(host.plugin_set)
        result = await fire(host, hook, arguments, vault=flags.vault)
        return result, host.strict and any(call["outcome"] not in ("ok", "changed") for call in result.chain)

    result, failed = with_host(flags, work)
    if output == "json" or flags.as_json:
        document = {"v": 1, "type": "hook.result", "hook": result.hook, "value": result.value, "chain": result.chain}
        click.echo(as_json(document), file=stdout())
    else:
        click.echo(plain(as_json(result.value)), file=stdout())
        if not result.chain and not flags.quiet:
            say("moryflow: no plugin implements it, or none asks for this event")
        for call in result.chain:
            click.echo(f"  {call['plugin']}: {call['outcome']} ({call['us']} µs)", err=True)
    return EXIT_CODES["plugin_failed"] if failed else 0

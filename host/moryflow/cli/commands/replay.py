"""``moryflow replay``: a stored session's hook inputs against a changed plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moryflow.cli.options import Flags, document_options, find
from moryflow.cli.terminal import plain, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moryflow.authoring.replay import HookDifference, Replay

_PLUGIN = click.Path(path_type=Path, exists=True)


@click.command("replay")
@click.argument("session", required=False)
@click.option("--with", "path", required=True, type=_PLUGIN, help="A plugin: a file, a package or a project.")
@click.option("--turn", metavar="N", help="Only this turn (a number from 1, or its id).")
@click.option("--as", "recorded_as", metavar="NAME", help="The plugin of the session that it replaces, if the names differ.")
@click.option("--all", "everything", is_flag=True, help="Show every difference, not only the first.")
@document_options
def command(flags: Flags, session: str | None, path: Path, turn: str | None, recorded_as: str | None, everything: bool) -> int:
    """Call the hooks of a changed plugin with what they were given in a stored SESSION (default: the last one) and in its
    sub-agents. What they were given is kept under moryflow dev, and with the setting keepInputs.

    Shows the first thing that it would have done differently: turn, step, hook, the place in the value, before and after.
    No model and no tool is called and nothing is stored. Exit code 0 when nothing differs, 3 when something does.
    """
    from moryflow.cli.terminal.interrupts import run_on_loop

    name, result = run_on_loop(lambda: _replay(flags, session, path, turn, recorded_as))
    shown = result.found if everything else result.found[:1]
    document = {
        "v": 1,
        "type": "replay",
        "session": name,
        "plugin": result.recorded_as,
        "compared": result.compared,
        "differences": [found.as_json() for found in shown],
        "skipped": [{"where": place, "reason": reason} for place, reason in result.skipped],
    }
    show(flags, document, plain(_text(result, shown)))
    return 3 if result.found else 0


async def _replay(
    flags: Flags, session: str | None, path: Path, turn: str | None, recorded_as: str | None
) -> tuple[str, Replay]:
    """Replay in a host with only the built-in plugins, so that no other plugin's code runs beside the changed one."""
    from moryflow.authoring.replay import replay
    from moryflow.authoring.trace import chosen, recorded_family
    from moryflow.runtime.host import open_host

    async with open_host(config=flags.config, plugins=(), profile=flags.profile) as host:
        row = await find(host.store, session, flags)
        family = await recorded_family(host.store, row.id)
        return row.id, await replay(host, chosen(family, turn), path, recorded_as)


def _text(result: Replay, shown: Sequence[HookDifference]) -> str:
    lines: list[str] = []
    for found in shown:
        change = found.difference
        lines += [f"{found.place}: {change.path or 'the verdict'}", *(f"  {line}" for line in change.lines())]
        lines += [f"  {found.file}:{found.line}" if found.line else f"  {found.file}"] if found.file else []
    if len(result.found) > len(shown):
        lines.append(f"and {len(result.found) - len(shown)} more (--all shows them)")
    count = f"{result.compared} hook call{'s' if result.compared != 1 else ''} of {result.recorded_as} compared"
    lines.append(f"{count}, {f'{len(result.found)} differ' if result.found else 'nothing differs'}")
    if result.skipped:
        place, reason = result.skipped[0]
        lines.append(f"{len(result.skipped)} could not be compared; the first: {place}: {reason}")
    return "\n".join(lines)

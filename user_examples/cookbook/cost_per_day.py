"""A log of what each day costs.

The plugin writes one line for each model call into its own folder, which an update keeps; a command adds the lines up.

Try it: ``moryflow costs``, or ``moryflow costs --json``.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import Command, CommandContext, Event, PluginContext, Turn, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl(events="step.finish")
def event(event: Event, turn: Turn | None) -> None:
    """Write down the cost of a step, where the price of the model is known."""
    if turn is None or event.data.get("cost") is None:
        return
    turn.data_dir.mkdir(parents=True, exist_ok=True)
    with (turn.data_dir / "costs.tsv").open("a", encoding="utf-8") as file:
        file.write(f"{event.ts[:10]}\t{turn.model.id if turn.model else ''}\t{event.data['cost']}\n")


def per_day(folder: Path) -> dict[str, float]:
    """Return what each day has cost, in US dollars."""
    days: dict[str, float] = defaultdict(float)
    file = folder / "costs.tsv"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        day, _, cost = line.split("\t")
        days[day] += float(cost)
    return dict(days)


@hookimpl
def commands(ctx: PluginContext) -> list[Command]:
    """Offer ``moryflow costs``; click is imported when it is used."""

    def made() -> click.Command:
        import click

        @click.command()
        @click.pass_obj
        def costs(obj: CommandContext) -> None:
            """Say what each day has cost."""
            days = per_day(ctx.data_dir)
            obj.print(days, text="\n".join(f"{day}  ${cost:.2f}" for day, cost in days.items()) or "nothing yet")

        return costs

    return [Command(name="costs", help="Say what each day has cost.", cli=made)]

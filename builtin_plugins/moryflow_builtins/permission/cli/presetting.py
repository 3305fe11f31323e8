"""``permission preset``: write a set of rules to the configuration, having shown what changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import click
from moryflow_sdk import CommandContext, Rule, Turn
from moryflow_sdk.inside_tool import refuse_inside_tool

from moryflow_builtins.permission.judged import told

from .covering import shapes
from .presets import PRESETS, Preset
from .text import table, visible


@click.command()
@click.argument("name", required=False, type=click.Choice(tuple(PRESETS)), metavar="[NAME]")
@click.pass_obj
def command(context: CommandContext, name: str | None) -> None:
    """Add a set of rules to your configuration: readonly, develop or trusting. Without NAME list them.

    What would be added is shown first. They are ordinary rules at the end of yours; take them out again in config.jsonc.
    """
    if name is None:
        context.print([_json(key, preset) for key, preset in PRESETS.items()], text=_listed())
        return

    refuse_inside_tool("moryflow permission preset")

    async def read(turn: Turn) -> list[Rule]:
        return [rule for rule in turn.rules.all() if rule.source == "user"]

    mine: list[Rule] = context.run(read)
    new = missing(mine, PRESETS[name])
    if not context.as_json or not context.yes:
        click.echo("\n".join(_diff(mine, PRESETS[name], new)), err=context.as_json)
    if new and not context.yes:
        _confirm(len(new))
    context.run(lambda turn: _write(turn, new))
    text = f"{len(new)} rules added; `moryflow config path` says where" if new else "nothing to do"
    document = {"v": 1, "type": "preset", "name": name, "added": [_row(rule) for rule in new]}
    context.print(document, text=text)


def missing(mine: Sequence[Rule], preset: Preset) -> list[Rule]:
    """Return the rules of `preset` that have to be added for it to hold, domain by domain, in order."""
    added: list[Rule] = []
    for domain in dict.fromkeys(rule.domain for rule in preset.rules):
        held = [rule for rule in mine if rule.domain == domain]
        wanted = [rule for rule in preset.rules if rule.domain == domain]
        if [_key(rule) for rule in held[-len(wanted) :]] == [_key(rule) for rule in wanted]:
            continue
        for rule in wanted:
            if not in_force(held, rule):
                held.append(rule)
                added.append(rule)
    return added


def in_force(held: Sequence[Rule], rule: Rule) -> bool:
    """Whether `rule` is among those of its domain and none after it may overrule it, as when an *always* is stored."""
    tail = takewhile(lambda one: one.decision == rule.decision, reversed(held))
    return _key(rule) in map(_key, tail)


async def _write(turn: Turn, new: Sequence[Rule]) -> None:
    for rule in new:
        await turn.rules.append(rule, scope="user")


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; -y writes without asking")
    click.confirm(f"Add these {count} rules?", abort=True, err=True)


def _key(rule: Rule) -> tuple[object, ...]:
    return rule.domain, rule.pattern, rule.decision, rule.folder, rule.contents


def _row(rule: Rule) -> dict[str, str]:
    return {"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision}


def _diff(mine: Sequence[Rule], preset: Preset, new: Sequence[Rule]) -> Iterator[str]:
    """Yield what changes: rules that are added, and rules of the person that no longer decide."""
    if not new:
        yield "all of its rules are in force already"
        yield from _left(mine, preset)
        return
    yield from table(("+", rule.domain, rule.decision, visible(rule.pattern, 90)) for rule in new)
    added = shapes(new)
    for old in shapes(mine):
        later = next((one for one in added if one.rule.domain == old.rule.domain and one.covers(old)), None)
        if later is not None and later.rule.decision != old.rule.decision:
            yield f"! your {told(old.rule)} no longer decides; {later.rule.decision} {later.rule.pattern!r} comes after it"
    yield from _left(mine, preset)


def _left(mine: Sequence[Rule], preset: Preset) -> Iterator[str]:
    """Yield rules over a whole domain that the preset leaves as they are, such as the denial of another preset."""
    spoken = {rule.domain for rule in preset.rules}
    for shape in shapes(mine):
        if shape.everything and shape.rule.decision != "allow" and shape.rule.domain not in spoken:
            yield f"! your {told(shape.rule)} for {shape.rule.domain} still holds; delete it there if you do not want it"


def _json(name: str, preset: Preset) -> dict[str, Any]:
    return {"name": name, "about": preset.about, "rules": [_row(rule) for rule in preset.rules]}


def _listed() -> str:
    rows = [(name, f"{len(preset.rows)} rules", preset.about) for name, preset in PRESETS.items()]
    return "\n".join([*table(rows), "", "moryflow permission preset NAME shows its rules and asks before it writes them"])

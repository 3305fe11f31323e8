"""``permission preset``: sets of rules to begin with. They are ordinary rules; what a person writes after them wins."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import click
from moryflow_sdk import CommandContext, Rule, Turn
from moryflow_sdk.inside_tool import refuse_inside_tool
from moryflow_sdk.protected_files import SECRETS

from moryflow_builtins.permission.judgement import rule_words

from .overlap import shapes
from .text import table, visible


@dataclass(frozen=True)
class Preset:
    """A named set of rules.

    :param about: one sentence for the list.
    """

    about: str
    rows: tuple[tuple[str, str, str], ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order."""
        return tuple(
            Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision})
            for domain, pattern, decision in self.rows
        )


def _runs(*patterns: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(("bash", pattern, "allow") for pattern in patterns)


_AS_BY_DEFAULT = (("read", "fs:**", "ask"), ("bash", "*", "ask"))
"""Undoes what a more trusting preset said before."""

_LOOK = _runs(
    "pwd", "ls", "ls *", "tree", "tree *", "cat *", "head *", "tail *", "wc *", "file *", "stat *", "du *", "diff *",
    "grep *", "rg *", "find *", "sort *", "date", "which *",
    "git status", "git status *", "git diff", "git diff *", "git log", "git log *", "git show", "git show *",
    "git blame *", "git branch --show-current", "git rev-parse *", "git ls-files", "git ls-files *",
)  # fmt: skip

_BUILD = _runs(
    "git add *", "git commit -m *", "git stash", "git stash list", "mkdir *", "touch *",
    "pytest", "pytest *", "python -m pytest", "python -m pytest *", "ruff *", "mypy *", "pyright", "pyright *",
    "uv run pytest", "uv run pytest *", "npm test", "npm run lint", "npm run build", "npm run test", "pnpm test",
    "cargo build", "cargo check", "cargo test", "cargo test *", "cargo clippy", "go build ./...", "go vet ./...",
    "go test ./...", "make", "make test", "make build", "make lint",
)  # fmt: skip

_SECRETS = tuple(
    ("read", f"fs:**/{{{','.join(names)}}}{below}", "ask") for names, below in ((SECRETS.files, ""), (SECRETS.folders, "/**"))
)
"""What a rule for the whole disk would silence, asked about again."""

PRESETS: Mapping[str, Preset] = {
    "readonly": Preset(
        "look at everything in the vault, change nothing",
        (*_AS_BY_DEFAULT, *_LOOK, ("edit", "*", "deny"), ("mcp", "*", "ask"), ("tool", "*", "ask")),
    ),
    "develop": Preset("look, build and test without a question; all else as by default", (*_AS_BY_DEFAULT, *_LOOK, *_BUILD)),
    "trusting": Preset(
        "run any program and read everywhere; still asked: secrets, what runs later, sudo, push, and what no rule can see",
        (
            ("bash", "*", "allow"),
            ("bash", "sudo *", "ask"),
            ("bash", "git push", "ask"),
            ("bash", "git push *", "ask"),
            ("read", "fs:**", "allow"),
            *_SECRETS,
        ),
    ),
}
"""The presets by name, the strictest first."""


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
            later_words = f"{later.rule.decision} {later.rule.pattern!r}"
            yield f"! your {rule_words(old.rule)} no longer decides; {later_words} comes after it"
    yield from _left(mine, preset)


def _left(mine: Sequence[Rule], preset: Preset) -> Iterator[str]:
    """Yield rules over a whole domain that the preset leaves as they are, such as the denial of another preset."""
    spoken = {rule.domain for rule in preset.rules}
    for shape in shapes(mine):
        if shape.everything and shape.rule.decision != "allow" and shape.rule.domain not in spoken:
            yield f"! your {rule_words(shape.rule)} for {shape.rule.domain} still holds; delete it there if you do not want it"


def _json(name: str, preset: Preset) -> dict[str, Any]:
    return {"name": name, "about": preset.about, "rules": [_row(rule) for rule in preset.rules]}


def _listed() -> str:
    rows = [(name, f"{len(preset.rows)} rules", preset.about) for name, preset in PRESETS.items()]
    return "\n".join([*table(rows), "", "moryflow permission preset NAME shows its rules and asks before it writes them"])

"""The group ``moryflow permission``; imported when it is used."""

from __future__ import annotations

import click

from . import explain, lint, presets, rules, testing, whatif


@click.group()
def permission() -> None:
    """Explain, check, test and change what is allowed."""


for name, verb in {
    "allow": rules.allow,
    "ask": rules.ask,
    "deny": rules.deny,
    "explain": explain.command,
    "lint": lint.command,
    "preset": presets.command,
    "rules": rules.command,
    "test": testing.command,
    "whatif": whatif.command,
}.items():
    permission.add_command(verb, name)

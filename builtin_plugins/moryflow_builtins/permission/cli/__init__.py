"""``moryflow permission``: predict, check, replay and change what is allowed."""

from __future__ import annotations

import click

from . import calls, explain, lint, rules


@click.group()
def permission() -> None:
    """Explain, check, test and change what is allowed."""


for name, verb in {
    "allow": rules.allow,
    "ask": rules.ask,
    "deny": rules.deny,
    "explain": explain.command,
    "lint": lint.command,
    "preset": rules.preset,
    "rules": rules.command,
    "test": calls.judge_examples,
    "whatif": calls.what_if,
}.items():
    permission.add_command(verb, name)

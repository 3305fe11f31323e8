"""The group ``moryflow permission``; imported when it is used."""

from __future__ import annotations

import click

from . import adding, explaining, linting, listing, presetting, testing, whatif


@click.group()
def permission() -> None:
    """Explain, check, test and change what is allowed."""


for name, verb in {
    "allow": adding.allow,
    "ask": adding.ask,
    "deny": adding.deny,
    "explain": explaining.command,
    "lint": linting.command,
    "preset": presetting.command,
    "rules": listing.command,
    "test": testing.command,
    "whatif": whatif.command,
}.items():
    permission.add_command(verb, name)

"""The group ``moryflow permission``: each command is imported when it is used."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = {
    "allow": "adding",
    "ask": "adding",
    "deny": "adding",
    "explain": "explaining",
    "lint": "linting",
    "preset": "presetting",
    "rules": "listing",
    "test": "testing",
    "whatif": "whatif",
}
"""Which module has which command; the function there is called ``command``, or like the command where it has several."""


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            module = import_module(f".{_COMMANDS[cmd_name]}", __package__)
            self.add_command(getattr(module, cmd_name, None) or module.command, cmd_name)
        return self.commands.get(cmd_name)


@click.group(cls=_Group)
def permission() -> None:
    """Explain, check, test and change what is allowed."""

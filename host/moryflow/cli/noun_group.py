"""A command that is a noun with verbs, such as ``session list``."""

from __future__ import annotations

from typing import Any

import click

VERB_ALIASES = {"ls": ("list",), "rm": ("delete", "uninstall", "remove")}
REACHED = "moryflow.reached"
"""Where ``ctx.meta`` keeps the context of the command whose flags are read."""


class NounGroup(click.Group):
    """A noun with verbs: accepts ``ls`` and ``rm``, and says what is near when a verb is not known."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the verbs before the flags: they are what a person looks for."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their whole first sentence; click would cut it at the width of the terminal."""
        rows = [(name, self.summary(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the first sentence about a verb."""
        verb = self.get_command(ctx, name)
        return verb.get_short_help_str(limit=400) if verb else ""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = (cmd_name, *VERB_ALIASES.get(cmd_name, ()))
        return next((found for name in names if (found := super(NounGroup, self).get_command(ctx, name))), None)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            verbs = self.list_commands(ctx)
            from moryflow_sdk.support.texts import nearest

            near = _turned_round(ctx, args[0]) or nearest(args[0], verbs)
            hint = f" Did you mean {near!r}?" if near else f" One of: {', '.join(verbs)}."
            raise click.UsageError(f"there is no command '{ctx.info_name} {args[0]}'.{hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[REACHED] = click.Context(command, ctx, name) if command else None
        return name, command, rest


def _turned_round(ctx: click.Context, word: str) -> str:
    """Return the command that two words mean the other way round, such as ``new plugin`` for ``plugin new``."""
    root, noun = ctx.find_root().command, ctx.info_name or ""
    other = root.get_command(ctx, word) if isinstance(root, click.Group) else None
    found = isinstance(other, click.Group) and other.get_command(ctx, noun) is not None
    return f"moryflow {word} {noun}" if found else ""

"""The command table: names and one-line help, without importing what is behind them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from moryflow import __version__
from moryflow.base.builtins import CONTRIBUTED, OF_SESSIONS

from .options import FOLLOWING, REACHED, asking_options, behind_the_verb

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run one prompt and print the answer"),
    "chat": ("chat", "Talk with an agent, with approvals and slash commands"),
    "serve": ("serve", "Serve the page and the HTTP API of this machine's sessions"),
    "acp": ("acp", "Be the agent of an editor, over the Agent Client Protocol"),
    "dev": ("dev", "Watch and reload while you write a tool, an agent or a plugin"),
    "new": ("new", "Write a tool, an agent or a plugin to begin with"),
    "tool": ("tool", "List, show and run tools without a model"),
    "hook": ("hook", "List the hooks; call one hook chain with a given input"),
    "session": ("session", "List, show, branch, export and search sessions"),
    "trace": ("trace", "Show what each plugin did in a session, and what it cost"),
    "replay": ("replay", "Try a changed plugin on what a stored session gave it"),
    "approval": ("approval", "List open questions and answer them"),
    "agent": ("agent", "List and show agents"),
    "model": ("model", "List models, install the local one, choose a default"),
    "plugin": ("plugin", "List plugins and what they bring"),
    "config": ("config", "Show, explain, check and change the configuration"),
    "doctor": ("doctor", "One line per thing that could be wrong, and what fixes it"),
    "completion": ("completion", "Print the completion script for a shell"),
}
ALIASES = {name + "s": name for name in ("tool", "hook", "session", "approval", "agent", "model", "plugin")} | {
    "configs": "config"
}
_OF_PLUGINS = {name: help_line for name, help_line in CONTRIBUTED if name not in OF_SESSIONS}
"""Those that are listed; ``moryflow undo`` and its like are old spellings of ``moryflow session undo``, and still work."""

WELCOME = """\
Moryflow runs LLM agents on your files.

  moryflow run "What is this project?"     one prompt, one answer
  moryflow chat                            a conversation
  moryflow new tool words                  a tool of your own, in a minute
  moryflow doctor                          what is missing, and how to fix it

`moryflow --help` lists everything.
"""


class LazyGroup(click.Group):
    """Knows its commands by name; imports one when it is used, and asks the plugins only for a name it does not know."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_OF_PLUGINS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name in COMMANDS:
            return import_module(f"moryflow.cli.commands.{COMMANDS[name][0]}").command
        from .contributed import contributed_command

        return contributed_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [*args[1:], "--help"] if args[:1] == ["help"] else args
        return super().parse_args(ctx, behind_the_verb(given))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        ctx.meta[FOLLOWING] = args[1:]
        command = self.get_command(ctx, args[0])
        if command is None and ctx.resilient_parsing:  # a Tab key gets no answer, and no message either
            return None, None, args[1:]
        if command is None:
            raise click.UsageError(_no_such_command(args[0], self.list_commands(ctx)), ctx)
        ctx.meta[REACHED] = click.Context(command, ctx, command.name)
        return command.name, command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # click does not always say in which command
            error.ctx = error.ctx or ctx.meta.get(REACHED)
            raise

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names from the table, without importing a command or loading a plugin."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        rows = [*((name, help_line) for name, (_, help_line) in COMMANDS.items()), *_OF_PLUGINS.items()]
        return [CompletionItem(name, help=help_line) for name, help_line in rows if name.startswith(incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the commands before the flags: they are what a person looks for."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [*((name, help_line) for name, (_, help_line) in COMMANDS.items()), *_OF_PLUGINS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _no_such_command(name: str, known: list[str]) -> str:
    if name in known:
        return f"the plugin that brings {name!r} is not loaded; moryflow plugin list says why."
    from moryflow_sdk.support.texts import nearest

    near = nearest(name, known)
    return f"there is no command {name!r}." + (f" Did you mean {near!r}?" if near else "")


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="moryflow")
@asking_options
@click.pass_context
def cli(ctx: click.Context, **_flags: object) -> None:
    """Moryflow: a host for LLM agents that people want to extend."""
    if ctx.invoked_subcommand is None:
        click.echo(WELCOME, nl=False)

"""``moryflow dev``: reload and show what changed while you write a tool, an agent or a plugin."""

from __future__ import annotations

from pathlib import Path

import click

from moryflow.cli.options import document_options, flags_of


@click.command("dev")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True), metavar="[PATH]...")
@click.option(
    "--run", "again", metavar="COMMAND", help="Run this moryflow command after each save, for example 'tool run hello'."
)
@click.option(
    "--attach", metavar="[SESSION]", is_flag=False, flag_value="", help="Follow a session of another terminal, or the last one."
)
@document_options
@click.pass_context
def command(ctx: click.Context, paths: tuple[Path, ...], again: str | None, attach: str | None) -> int:
    """Watch and reload while you write: each save is shown with what it changed.

    Configuration, agents, tools and plugins of Moryflow's folder are watched, and plugins that are installed from their
    sources. A PATH is a plugin that lies elsewhere: a file, a package, or a project with a pyproject.toml. The command of
    --run asks at this terminal what it has to ask; where there is none, --mode full_access -y lets a tool run unasked.

    \b
    moryflow dev --run 'tool run hello --name you'
    moryflow dev ./my-plugin --run 'hook fire chat.params {}'
    moryflow dev --attach
    """
    from moryflow.cli.terminal.signals import run_on_loop

    flags = flags_of(ctx)
    words = _words(again or "")
    if attach is not None:
        if again or paths:
            raise click.UsageError("--attach follows a session and runs nothing; leave --run and PATH out", ctx)
        from .dev_attach import follow

        return run_on_loop(lambda: follow(flags, attach))
    from moryflow.cli.terminal.excepthooks import show_slips

    from .dev_loop import Loop

    show_slips()
    folders = tuple(path.absolute() for path in paths)
    loop = Loop(flags, folders, words)
    return run_on_loop(loop.run)


def _words(command: str) -> list[str]:
    """Return a command as a shell would take it apart.

    :raises ConfigError: a quote is not closed.
    """
    import shlex

    try:
        return shlex.split(command)
    except ValueError as error:
        from moryflow_sdk import ConfigError

        said = f"--run is no command line: {str(error)[:1].lower()}{str(error)[1:]}"
        raise ConfigError(said, next_step="moryflow dev --run 'tool run hello --name you'") from error

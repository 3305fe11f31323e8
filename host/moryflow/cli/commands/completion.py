"""``moryflow completion``: the script with which a shell completes ``moryflow``."""

from __future__ import annotations

import click

from moryflow.cli import cli

_HOW = {
    "bash": "moryflow completion bash > ~/.local/share/bash-completion/completions/moryflow",
    "zsh": "moryflow completion zsh > ~/.zfunc/_moryflow",
    "fish": "moryflow completion fish > ~/.config/fish/completions/moryflow.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
def command(shell: str) -> None:
    """Print the completion script for a shell; save it where the shell looks."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    classes = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}
    completer = classes[shell](cli, {}, "moryflow", "_MORYFLOW_COMPLETE")
    # Not completer.source(): for bash, that runs bash to check its version, and there may be no bash here.
    click.echo(completer.source_template % completer.source_vars())

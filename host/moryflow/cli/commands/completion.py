"""``moryflow completion``: the script that a shell reads to complete commands and options."""

from __future__ import annotations

import click

_HOW = {
    "bash": "moryflow completion bash > ~/.local/share/bash-completion/completions/moryflow",
    "zsh": "moryflow completion zsh > ~/.zfunc/_moryflow",
    "fish": "moryflow completion fish > ~/.config/fish/completions/moryflow.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
def command(shell: str) -> None:
    """Print the completion script for a shell, which completes commands and options; save it where the shell looks."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    classes = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}
    completer = classes[shell](click.get_current_context().find_root().command, {}, "moryflow", "_MORYFLOW_COMPLETE")
    # click asks the running bash for its version here, which need not be there; the script itself checks nothing.
    click.echo(completer.source_template % completer.source_vars())

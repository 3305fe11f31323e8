"""Commands of one's own: Markdown files in ``~/.moryflow/commands``, used as ``/name words`` in ``chat``.

The file's name is the command's; ``$ARGUMENTS`` in its body stands for all words after it, ``$1`` to ``$9`` for one each.
The body becomes the prompt. Nothing in it is run.
"""

from __future__ import annotations

from pathlib import Path

from moryflow_sdk import Command, Diagnostic, PluginContext, hookimpl

name = "user_commands"


@hookimpl
def commands(ctx: PluginContext) -> list[Command | Diagnostic]:
    """Read every command file; one that is wrong is left out and named."""
    files = _files(ctx.home / "commands")
    if not files:
        return []
    from .reading import command_in

    return [item for path in files for item in command_in(path)]


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".md" and not path.name.startswith("."))
    except OSError:
        return []

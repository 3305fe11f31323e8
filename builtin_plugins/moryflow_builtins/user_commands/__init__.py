"""Commands of one's own: Markdown files in ``~/.moryflow/commands``, used as ``/name words`` in ``chat``.

The file's name is the command's; ``$ARGUMENTS`` in its body stands for all words after it, ``$1`` to ``$9`` for one each.
The body becomes the prompt. Nothing in it is run.
"""

from __future__ import annotations

from moryflow_sdk import Command, Diagnostic, PluginContext, hookimpl
from moryflow_sdk.support.own_files import own_files

name = "user_commands"


@hookimpl
def commands(ctx: PluginContext) -> list[Command | Diagnostic]:
    """Read every command file; one that is wrong is left out and named."""
    files, problems = own_files(ctx.home / "commands", ".md", next_step="moryflow doctor")
    if not files:
        return list(problems)
    from .command_file import command_in

    return [item for path in files for item in command_in(path)]

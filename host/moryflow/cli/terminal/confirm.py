"""The command's own questions, which ``-y`` answers. Permission questions are asked elsewhere."""

from __future__ import annotations

import sys

import click

from moryflow.cli.options import Flags

from .keyboard import discard_typed


def confirm(text: str, flags: Flags, *, default: bool = False, command: str = "") -> None:
    """Ask, unless ``-y`` was given.

    :param command: what says yes where nobody can be asked.
    :raises ConfigError: nobody can be asked.
    :raises click.Abort: the answer was no.
    """
    if flags.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        from moryflow_sdk import ConfigError

        raise ConfigError(f"{text} Nobody can be asked here.", next_step=command or "add -y to confirm")
    discard_typed()
    click.confirm(text, err=True, default=default, abort=True)

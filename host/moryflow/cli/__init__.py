"""The command line. Every command lives in a module of its own, imported when it is used."""

from __future__ import annotations

import os
import sys

from .group import cli

__all__ = ["cli", "main"]


def main(arguments: list[str] | None = None) -> int:
    """Run `moryflow` and return its exit code (CONTRACT §1)."""
    from .failures import report

    try:
        outcome = cli.main(args=arguments, prog_name="moryflow", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except BrokenPipeError:
        # The reader has gone (`| head`); nothing more can be said there, and Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BaseException as error:
        return report(error)

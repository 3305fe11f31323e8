"""The client side of ``--attach``: it imports only a few modules of the standard library, so that the command starts fast."""

from __future__ import annotations

import os
from collections.abc import Mapping


def wanted() -> bool:
    """Whether turns run in a server without the flag, because the configuration says so."""
    return is_set(f"{home_of(os.environ)}/config.jsonc")


def is_set(path: str) -> bool:
    """Whether the user's configuration file says ``run.attach: true``; a file that others may write does not count."""
    try:
        with open(path, encoding="utf-8", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            text = file.read(1 << 22)
        if '"attach"' not in text or status.st_uid != os.geteuid():
            return False
        if status.st_mode & 0o022:  # rare, so the full check of a person's own files is imported only here
            from pathlib import Path

            from moryflow_sdk.support.own_files import doubt_about_one

            if doubt_about_one(Path(path), status):
                return False
        import json

        try:
            found = json.loads(text)
        except ValueError:
            found = json.loads(_as_json(text))
        return found["run"]["attach"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: opening a pipe that nobody writes to would block every command."""
    return os.open(path, flags | os.O_NONBLOCK)


def _as_json(text: str) -> str:
    """Return JSON with comments as plain JSON: without comments and without trailing commas."""
    import re

    for left_out in (r"//[^\n]*|/\*.*?\*/", r",(?=\s*[}\]])"):
        text = re.sub(rf'("(?:\\.|[^"\\])*")|{left_out}', lambda found: found[1] or " ", text, flags=re.DOTALL)
    return text


def home_of(environ: Mapping[str, str]) -> str:
    return os.path.abspath(os.path.expanduser(environ.get("MORYFLOW_HOME") or "~/.moryflow"))  # noqa: PTH100, PTH111


def is_address(word: str) -> bool:
    """Whether `word`, which follows ``--attach``, is the address of a server and not a prompt."""
    return word.startswith(("http://", "https://", "unix:"))

"""The last good version of the user's file, used while the file cannot be read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from moryflow_sdk import ConfigError

from .files import Unreadable, read_source


def good_copy(home: Path, path: Path) -> Path:
    """Return where the last good version of `path` is kept, in Moryflow's own folder."""
    if path == home / "config.jsonc":
        return home / "config.good.jsonc"
    from hashlib import sha256

    return home / f"config.good-{sha256(os.fsencode(path.absolute())).hexdigest()[:12]}.jsonc"


def text_of(copy: Path) -> str:
    """Return the text that was kept; empty where there is none, or where somebody else could have written it."""
    with contextlib.suppress(FileNotFoundError, Unreadable):
        found = read_source(copy)
        return "" if found.distrust else found.text
    return ""


def keep(copy: Path, text: str) -> None:
    """Keep `text`, or nothing where it is empty. A folder that cannot be written to is no reason to stop."""
    if not text:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
        return
    if text_of(copy) == text:
        return
    from moryflow.base.atomic_write import write_atomically

    with contextlib.suppress(OSError, ConfigError):
        copy.unlink(missing_ok=True)  # its mode would be taken over, and it may be a link
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(copy, text.encode("utf-8"))

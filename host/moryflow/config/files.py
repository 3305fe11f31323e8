"""Read a configuration file without trusting what it is (kind, size, owner, mode, encoding), and keep its last good version."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import LOST_HINT, Doubt, doubt_about, leads_nowhere

MAX_BYTES = 4 * 1024 * 1024
"""A configuration of more than 4 MiB is a mistake."""


class Unreadable(Exception):
    """The file gives no text; `code` is the class of the report."""

    def __init__(self, message: str, code: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.hint = message, code, hint


class Source(NamedTuple):
    """The text of a file, and why it may not loosen anything (``None``: it may)."""

    text: str
    distrust: Doubt | None = None
    mark: bool = False


def read_source(path: Path) -> Source:
    """Return the text of `path`.

    :raises FileNotFoundError: there is no such file.
    :raises Unreadable: it is no regular file, too large, not UTF-8, or cannot be read.
    """
    data, distrust = _read(path)
    if b"\0" in data:
        raise Unreadable("the file is not UTF-8 text (it holds NUL bytes)", "config_encoding", "save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"the file is not UTF-8 text (line {line})", "config_encoding", "save it as UTF-8") from error
    return Source(text.removeprefix("\ufeff"), distrust, mark=text.startswith("\ufeff"))


def _read(path: Path) -> tuple[bytes, Doubt | None]:
    try:
        # Without O_NONBLOCK a named pipe in place of the file would hold the host for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        lost = leads_nowhere(path)
        if lost:
            raise Unreadable(lost, "config_unreadable", LOST_HINT) from error
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from error
    except OSError as error:
        raise Unreadable(f"the file cannot be read ({error.strerror})", "config_unreadable") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("this is not a regular file", "config_unreadable", "put a text file there")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MAX_BYTES + 1)
        doubt = doubt_about(path, status)
    except OSError as error:
        raise Unreadable(f"the file cannot be read ({error.strerror})", "config_unreadable") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise Unreadable(f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB", "config_limits")
    return data, doubt


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

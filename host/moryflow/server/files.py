"""What a server keeps in the home: its token, where it listens, and a lock, so that there is one."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from moryflow_sdk import ConfigError

from moryflow.base.paths import keep, make_folder

FOLDER, TOKEN, RUNNING = "server", "token", "running.json"
"""Below the home. The token outlives the server, so that tabs and programs find their way back."""


def token_of(home: Path) -> str:
    """Return the token of this home, made when it is first needed.

    :raises ConfigError: it cannot be kept.
    """
    file = home / FOLDER / TOKEN
    with suppress(OSError):
        if len(found := file.read_text(encoding="ascii").strip()) >= 32:  # 256 bits are 43 characters
            return found
    token = secrets.token_urlsafe(32)
    if not keep(file, token):
        raise ConfigError("the token of the server cannot be written", where=str(file), next_step="chmod u+w the folder")
    return token


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Be the one server of this home.

    :raises ConfigError: there is one already, with its address.
    """
    make_folder(home / FOLDER)
    descriptor = os.open(home / FOLDER / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            at = running(home).get("url", "")
            said = f"a server of this home runs already{f' at {at}' if at else ''}"
            raise ConfigError(said, where=str(home), next_step="moryflow serve --link prints a link to it") from None
        yield
    finally:
        os.close(descriptor)


def running(home: Path) -> dict[str, Any]:
    """Return what is known of the server of this home: ``url``, ``pid``, ``version``; nothing where none was started."""
    with suppress(OSError, ValueError):
        found = json.loads((home / FOLDER / RUNNING).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}

"""Tokens beside the server's own, one file each: a browser gets one for its one-time code, a script or a phone by name.

Each may do what the server's own token may, until its file is removed. Nothing is kept in memory, so this holds at once,
whichever process removes it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk import ConfigError

from moryflow.base.paths import write_private

_ID = re.compile(r"[0-9a-f]{8}")
# How exactly the last use is known, in seconds: a request writes no file within it.
_USED = 3600.0
# How many there may be; the one that was unused the longest gives way to a new one.
_MOST = 100


def token_hash(token: str) -> str:
    """Return what is stored of a token, which has 256 random bits."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def bearer(authorization: str) -> str:
    """Return the token of an ``Authorization`` header, or ``""``."""
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


class TokenRow(NamedTuple):
    """A token as it is listed; `created` and `used` are times, `used` to the hour."""

    id: str
    name: str
    created: str
    used: str


class Tokens:
    """The tokens of a home folder; `folder` holds their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, name: str) -> str:
        """Return a new token.

        :raises OSError: its file cannot be written.
        """
        for row in sorted(self.all(), key=lambda row: row.used)[: -_MOST + 1]:
            self.revoke(row.id)
        id = secrets.token_hex(4)
        token = f"{id}.{secrets.token_urlsafe(32)}"
        about = {"name": name, "hash": token_hash(token), "created": _stamp(time.time())}
        write_private(self._folder / id, json.dumps(about))
        return token

    def id_of(self, token: str) -> str:
        """Return the id of a valid token, or ``""``."""
        id = token.partition(".")[0]
        if not _ID.fullmatch(id):
            return ""
        try:
            stored = str(json.loads((self._folder / id).read_bytes())["hash"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""
        if not hmac.compare_digest(stored, token_hash(token)):
            return ""
        with suppress(OSError):
            if time.time() - (self._folder / id).stat().st_mtime > _USED:
                os.utime(self._folder / id)
        return id

    def all(self) -> list[TokenRow]:
        """Return the tokens, the last used first; a file that cannot be read is listed too, so that it can be removed."""
        rows: list[TokenRow] = []
        for file in self._folder.glob("*") if self._folder.is_dir() else ():
            if not _ID.fullmatch(file.name):
                continue
            with suppress(OSError):  # removed meanwhile
                used = _stamp(file.stat().st_mtime)
                about: object = None
                with suppress(ValueError):
                    about = json.loads(file.read_bytes())
                known = about if isinstance(about, dict) else {}
                rows.append(TokenRow(file.name, str(known.get("name", "damaged")), str(known.get("created", used)), used))
        return sorted(rows, key=lambda row: row.used, reverse=True)

    def revoke(self, name: str) -> TokenRow | None:
        """Make the token of an id, or the only one of a name, invalid; return it, or ``None`` if there is none.

        :raises ConfigError: several have this name.
        """
        rows = self.all()
        found = [row for row in rows if row.id == name] or [row for row in rows if row.name == name]
        if len(found) > 1:
            ids = ", ".join(row.id for row in found)
            raise ConfigError(f"{len(found)} tokens are called {name!r}: {ids}", next_step="moryflow serve tokens revoke ID")
        for row in found:
            (self._folder / row.id).unlink(missing_ok=True)
        return found[0] if found else None


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_SYSTEMS = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows", "Mac OS": "macOS", "Linux": "Linux"}
# In this order: each names the ones after it too.
_BROWSERS = {
    "Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "FxiOS": "Firefox", "Chrom": "Chrome", "CriOS": "Chrome",
    "Safari": "Safari",
}  # fmt: skip


def browser_name(agent: str) -> str:
    """Return how a browser is called in the list, from its ``User-Agent``."""
    browser = next((name for mark, name in _BROWSERS.items() if mark in agent), "a browser")
    system = next((name for mark, name in _SYSTEMS.items() if mark in agent), "")
    return f"{browser}, {system}" if system else browser

"""What a start found out the last time, in one file of the home: ``cache/start.json``.

Each part stands under a key of all that it was made from, and counts only under the same key. The file may be deleted at
any time. It is ignored where it is broken, of another version, or where somebody else could have written it. It says what
is installed and what differs from the lock: there is no code in it, no rule and no verdict.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from moryflow_sdk.support.own_files import doubt_about_one

from .paths import keep

_FORMAT = 1
_FILE = "start.json"


def recall_start(cache: Path, part: str, key: object) -> Any:
    """Return what was kept under `key`; ``None`` where nothing was, or under another one."""
    match _read(cache / _FILE).get(part):
        case [known, content] if known == key:
            return content
        case _:
            return None


def keep_start(cache: Path, part: str, key: object, content: object) -> None:
    """Keep `content`, which is plain JSON as its `key` is, beside the other parts."""
    parts = {**_read(cache / _FILE), part: [key, content]}
    keep(cache / _FILE, json.dumps({"format": _FORMAT, "parts": parts}))


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            if doubt_about_one(file, os.fstat(stream.fileno())):
                return {}
            match json.load(stream):
                case {"format": form, "parts": {**parts}} if form == _FORMAT:
                    return cast("dict[str, Any]", parts)
                case _:
                    return {}
    except (OSError, ValueError, RecursionError):
        return {}

"""Where a memory bank is, and what belongs to it.

A bank is a real folder ``memory-bank`` at the top of the vault. Whether there is one is looked up once a turn; where
there is none, nothing of this plugin does anything.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import Target, ToolCall, Turn

FOLDER = "memory-bank"
MEMORY = f"{FOLDER}/MEMORY.md"
PATTERNS = f"{FOLDER}/details/patterns.md"
PREFIX = f"vault:/{FOLDER}"
REMEMBERED_TURNS = 256
MADE_BY = "ask the person to run `moryflow memory-bank init`"
"""Who makes a bank: no tool and no command of an agent does."""

UNSEEN = frozenset({"bash", "mcp", "tool"})
"""Domains of calls that do not say which files they write."""


class Bank(NamedTuple):
    """A bank that was found.

    :param problem: why the folder is not used although something of that name is there.
    """

    vault: str
    problem: str = ""

    def has(self, name: str) -> bool:
        """Whether the regular file `name` (``memory-bank/…``) is there."""
        try:
            return stat.S_ISREG(os.lstat(f"{self.vault}/{name}").st_mode)
        except OSError:
            return False

    def required(self) -> str:
        """Return what must have been read before a risky write; empty where there is nothing to read."""
        return next((name for name in (PATTERNS, MEMORY) if self.has(name)), "")


_known: OrderedDict[tuple[str, Path], Bank | None] = OrderedDict()


def bank_of(turn: Turn) -> Bank | None:
    """Return the bank of the turn's vault, whether it can be used or not. One look at the disk a turn."""
    key = (turn.id, turn.vault)
    if key in _known:
        return _known[key]
    found = find_bank(turn.vault)
    if turn.id:
        _known[key] = found
        if len(_known) > REMEMBERED_TURNS:
            _known.popitem(last=False)
    return found


def usable_bank(turn: Turn) -> Bank | None:
    """Return the bank of the turn's vault if it can be used."""
    bank = bank_of(turn)
    return None if bank is None or bank.problem else bank


def find_bank(vault: Path | str) -> Bank | None:
    """Look for the bank of `vault`. A link is not followed: it may lead anywhere."""
    try:
        mode = os.lstat(f"{vault}/{FOLDER}").st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return Bank(str(vault), f"{FOLDER} is a link, and a memory bank must be a folder of the vault itself")
    return Bank(str(vault)) if stat.S_ISDIR(mode) else None


def inside(target: Target) -> bool:
    """Whether a file target is the bank or in it: where it leads to, and the name it was given by."""
    return target.kind == "file" and (_below(target.text) or (target.lexical is not None and _below(target.lexical)))


def name_in_bank(target: Target) -> str:
    """Return ``memory-bank/…`` of a target that leads into the bank, else an empty text."""
    return target.text.removeprefix("vault:/") if target.kind == "file" and _below(target.text) else ""


def named(target: str) -> str:
    """Return the path that a model means by a file of the bank: ``details/a.md`` is one of it, an absolute path is itself."""
    return target if target.startswith((f"{FOLDER}/", "/", "~")) else f"{FOLDER}/{target}"


def covers(target: Target, turn: Turn) -> bool:
    """Whether a file target is a folder that the bank lies in."""
    path = (target.path or "").rstrip("/") + "/"
    return target.kind == "file" and f"{turn.vault}/".startswith(path)


def runs_unseen(call: ToolCall, turn: Turn) -> bool:
    """Whether a call may write files of the bank without naming them."""
    if call.domain in UNSEEN or any(target.domain in UNSEEN for target in call.targets):
        return True
    return any(target.domain == "edit" and (target.kind != "file" or covers(target, turn)) for target in call.targets)


def is_there(vault: str) -> bool:
    """Whether something of the bank's name is in the vault."""
    return os.path.lexists(f"{vault}/{FOLDER}")


def _below(text: str) -> bool:
    """Whether a target's text is the bank or in it; another spelling of the name counts, for volumes that fold case."""
    return text[: len(PREFIX) + 1].casefold() in (PREFIX, PREFIX + "/")


def as_text(data: bytes) -> str | None:
    """Return the text of a file of the bank; ``None`` for what is not UTF-8 text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n")


def read_text(turn: Any, name: str, limit: int = 1024 * 1024) -> str | None:
    """Return the text of the bank's file `name`, or ``None`` if it is missing, too large or not text."""
    from moryflow_sdk import ToolError

    files = turn.files
    target = files.resolve(name, domain="read")
    if target.error or target.text != f"vault:/{name}":
        return None
    try:
        return as_text(files.read(target, limit=limit))
    except ToolError:
        return None

"""What *always* stores for a command: its literal pattern, and the state of the files whose content it runs.

A state is ``sha256:…``, ``absent``, or ``is:/usr/bin/x`` for a file of the system, which only its updates change.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from moryflow_sdk import Remember
from moryflow_sdk.support.patterns import escape

from moryflow_builtins.permission.judgement import Judgement, stored_rule_answers

from .facts import CommandFacts, SoughtFiles
from .line import CommandLine
from .programs import PROGRAMS
from .syntax import Arg


def rule_to_remember(line: CommandLine, answer: Judgement, folder: str, contents: Mapping[str, str] | None) -> Remember | None:
    """Return the literal pattern of a command, or ``None`` where no stored rule could answer the question.

    :param contents: the state of the files that it runs; ``None`` where that cannot be told.
    """
    if not stored_rule_answers(answer) or not line.storable or contents is None or not folder.isprintable():
        return None
    bound_to = {"folder": folder, "contents": contents}
    return Remember(scope="user", domain="bash", pattern=escape(line.quoted), wider=_wider(line), **bound_to)


def _wider(line: CommandLine) -> str:
    """Return a pattern for more commands of the same kind, where it covers nothing but plain words of one program."""
    name = line.args[0].text if line.args else ""
    if line.assigned or line.facts.guards or line.facts.inner or line.facts.texts or name not in _WIDENED:
        return ""
    if name not in _WITH_VERBS:
        return f"{name} *"
    verb = line.args[1].text if len(line.args) > 1 else ""
    return f"{name} {verb} *" if _VERB.fullmatch(verb) else ""


_WITH_VERBS = frozenset({"git", "npm", "pnpm", "yarn", "cargo", "go", "docker", "kubectl", "gh", "uv", "poetry", "pip", "make"})
_WIDENED = _WITH_VERBS | {name for name, (operands, _) in PROGRAMS.items() if operands[0] in "rp-"}
"""Programs that read; a pattern for those that change files is not offered."""

_VERB = re.compile(r"[a-z][a-z0-9-]*")


ABSENT = "absent"
MAX_BYTES = 64 * 1024 * 1024
"""A larger program is not compared, so no rule is stored for it."""

_JUST_NOW = 100_000_000
"""Nanoseconds in which a file may be written twice without its time of change telling."""

_known: dict[tuple[str, int, int, int, int], str] = {}
_MOST_KNOWN = 256


def contents_of(
    args: Sequence[Arg], facts: CommandFacts, base: str | None, inner: str | None, vault: str
) -> dict[str, str] | None:
    """Return the state of every file whose content `args` run; ``None`` when one of them cannot be told.

    :param base: the folder that the program is found from; `inner` the folder that it works in.
    """
    found: dict[str, str] = {}
    named = [(args[0], base)] if args and "/" in args[0].text else []
    for word, folder in (*named, *((word, inner) for word in facts.runs)):
        if word.static and (folder or word.tilde or word.text.startswith("/")):
            path = os.path.join(folder or "/", Path(word.text).expanduser() if word.tilde else word.text)  # noqa: PTH118
            found.update(_one(path, vault))
        else:
            return None
    for sought in facts.sought:
        if inner is None:
            return None
        found.update(_sought(sought, inner, vault))
    return None if "" in found.values() else found


def _one(path: str, vault: str) -> Iterator[tuple[str, str]]:
    state = state_of(path, vault)
    if state != f"is:{path}":
        yield rule_name(path, vault), state


def _sought(sought: SoughtFiles, folder: str, vault: str) -> Iterator[tuple[str, str]]:
    """Yield what a program looks for and finds, and what would be found before it if it were there."""
    folders = [folder]
    while sought.upward and folders[-1].startswith(f"{vault}/"):
        folders.append(folders[-1].rpartition("/")[0])
    for path in (f"{place}/{name}" for place in folders for name in sought.names):
        state = state_of(path, vault)
        yield rule_name(path, vault), state
        if state != ABSENT and not sought.every:
            return


def changed_file(contents: Mapping[str, str], vault: str) -> str:
    """Return which of `contents` is not as it was; empty when all are."""
    for name, then in contents.items():
        now = state_of(path_in_rule(name, vault), vault)
        if now != then:
            return f"{name} {'is there now, and was not' if then == ABSENT else 'is gone' if now == ABSENT else 'has changed'}"
    return ""


def rule_name(path: str, vault: str) -> str:
    """Return how a rule writes `path`: as it was given, because a link or ``..`` in it may lead elsewhere tomorrow."""
    while "/./" in path:
        path = path.replace("/./", "/")
    return f"vault:{path[len(vault) :]}" if path.startswith(f"{vault}/") else f"fs:{path}"


def path_in_rule(name: str, vault: str) -> str:
    """Return the path that a rule means by `name`."""
    kind, _, rest = name.partition(":")
    return f"{vault}{rest}" if kind == "vault" else rest


def state_of(path: str, vault: str) -> str:
    """Return the state of the file that `path` leads to now; empty where it cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except (OSError, ValueError):
        return ""
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):  # as python runs one
            return state_of(f"{path}/__main__.py", vault)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            return ""
        real = os.path.realpath(path)
        if found.st_uid == 0 and not found.st_mode & 0o022 and not real.startswith(f"{vault}/"):
            return f"is:{real}"
        return _digest(descriptor, path, found)
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _digest(descriptor: int, path: str, found: os.stat_result) -> str:
    key = (path, found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
    if key not in _known:
        whole = sha256()
        while piece := os.read(descriptor, 1 << 20):
            whole.update(piece)
        state = f"sha256:{whole.hexdigest()}"
        if time.time_ns() - found.st_ctime_ns < _JUST_NOW:
            return state
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = state
    return _known[key]

"""Files of a vault that git runs or obeys, whatever they are called, because its configuration names them."""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from pathlib import Path

_FILES = frozenset({"hookspath", "path"})
_COMMANDS = frozenset(
    {
        "fsmonitor", "sshcommand", "editor", "pager", "clean", "smudge", "process", "command", "cmd", "textconv", "driver",
        "program", "askpass", "helper", "external",
    }
)  # fmt: skip
_HOOKS = (
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg",
    "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-auto-gc", "post-rewrite", "sendemail-validate",
    "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist", "p4-post-changelist", "p4-pre-submit", "post-index-change",
    "reference-transaction", "pre-receive", "update", "proc-receive", "post-receive", "post-update", "push-to-checkout",
)  # fmt: skip
_LONGEST = 256 * 1024
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def read_start(path: Path | str, most: int) -> bytes:
    """Return the first `most` bytes of a file.

    :raises OSError: there is none, or it is no ordinary file: a pipe would hold up whoever opens it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file", str(path))
        return stream.read(most)


def named_by_git(vault: Path) -> tuple[str, ...]:
    """Return the paths, from `vault`, that its ``.git/config`` names: the folder of hooks, included files, programs.

    A folder of hooks need not be there yet.
    """
    try:
        text = read_start(f"{vault}/.git/config", _LONGEST).decode("utf-8", "surrogateescape")
    except OSError:
        return ()
    found: dict[str, None] = {}
    for name, value, words in _names_in(text):
        for word in words:
            found |= dict.fromkeys(_inside(vault, word, there=name not in _FILES))
        if name == "hookspath" and value and os.path.normpath(vault / value) == str(vault):  # hooks beside everything else
            found |= dict.fromkeys(_HOOKS)
    return tuple(found)


@lru_cache(maxsize=4)  # every call that is judged asks, and the text is nearly always the same
def _names_in(text: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return the settings in a git configuration that may name a file: name, value, and the words of it to look for."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for line in text.replace("\r\n", "\n").replace("\\\n", "").split("\n"):
        key, _, written = line.partition("=")
        name, written = key.rpartition("]")[2].strip().lower(), written.strip()
        for value in dict.fromkeys((_value(written), written)):
            words = [value.strip('"')] if name in _FILES else value.split() if name in _COMMANDS or "!" in value[:2] else []
            if words or name == "hookspath":
                found.append((name, value, tuple(word.strip("\"'!;") for word in words)))
    return tuple(found)


def _value(written: str) -> str:
    """Return what git reads: without quotes and a comment behind it, its escapes replaced."""
    value, end, quoted = "", 0, False
    signs = iter(written)
    for sign in signs:
        if sign == '"':
            quoted = not quoted
            end = len(value)
        elif sign in "#;" and not quoted:
            break
        else:
            escaped = next(signs, "") if sign == "\\" else ""
            value += _ESCAPES.get(escaped, escaped) if escaped else sign
            end = end if sign.isspace() and not quoted else len(value)
    return value[:end]


def _inside(vault: Path, word: str, *, there: bool) -> list[str]:
    """Return what `word` may lead to below `vault`, from there or from ``.git``; `there`: only files that are there."""
    if not word or "\0" in word:
        return []
    places = (os.path.normpath(os.path.join(base, os.path.expanduser(word))) for base in (vault, vault / ".git"))  # noqa: PTH111, PTH118
    paths = [place for place in places if place.startswith(f"{vault}/") and (not there or os.path.isfile(place))]  # noqa: PTH113
    return [os.path.relpath(path, vault) for path in dict.fromkeys(paths) if not path.startswith(f"{vault}/.git/")]

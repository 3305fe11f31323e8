"""Files of a vault that git runs or obeys, whatever they are called, because its configuration names them."""

from __future__ import annotations

import os
from pathlib import Path

_FILES = frozenset({"hookspath", "path"})
_COMMANDS = frozenset(
    {
        "fsmonitor", "sshcommand", "editor", "pager", "clean", "smudge", "process", "command", "cmd", "textconv", "driver",
        "program", "askpass", "helper", "external",
    }
)  # fmt: skip
_LONGEST = 256 * 1024


def named_by_git(vault: Path) -> tuple[str, ...]:
    """Return the paths, from `vault`, that its ``.git/config`` names: the folder of hooks, included files, programs.

    A folder of hooks need not be there yet.
    """
    config = vault / ".git" / "config"
    try:
        with config.open("rb") as stream:
            text = stream.read(_LONGEST).decode("utf-8", "surrogateescape")
    except OSError:
        return ()
    found: dict[str, None] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        name, value = key.rpartition("]")[2].strip().lower(), value.strip()
        words = [value.strip('"')] if name in _FILES else value.split() if name in _COMMANDS or "!" in value[:2] else []
        for word in words:
            found |= dict.fromkeys(_inside(vault, word.strip("\"'!;"), there=name not in _FILES))
    return tuple(found)


def _inside(vault: Path, word: str, *, there: bool) -> list[str]:
    """Return what `word` may lead to below `vault`, from there or from ``.git``; `there`: only files that are there."""
    if not word or "\0" in word:
        return []
    places = (os.path.normpath(os.path.join(base, os.path.expanduser(word))) for base in (vault, vault / ".git"))  # noqa: PTH111, PTH118
    paths = [place for place in places if place.startswith(f"{vault}/") and (not there or os.path.isfile(place))]  # noqa: PTH113
    return [os.path.relpath(path, vault) for path in dict.fromkeys(paths) if not path.startswith(f"{vault}/.git/")]

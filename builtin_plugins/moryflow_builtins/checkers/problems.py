"""The problems that a checker prints, and which of them are new."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

# `a.py:3:5: text` of most, `a.py:3:5 - text` of pyright, `a.ts(3,5): text` of tsc.
_LINE = re.compile(r"\s*(?P<file>[^\s:(][^:(]*?)[:(](?P<line>\d+)(?:[:,]\d+)?\)?(?: -|:)?\s+(?P<text>\S.*)")
# `  3:5  error  text` of eslint, below a line with the file alone.
_BELOW = re.compile(r"\s+(?P<line>\d+):\d+\s+(?P<text>\S.*)")
_MOVES = re.compile(r"\bline \d+|:\d+")


class PrintedProblem(NamedTuple):
    """A problem: the file (relative to the vault, if it is in there), its line, and what the checker says."""

    file: str
    line: int
    text: str
    source: str

    @property
    def keys(self) -> tuple[str, str]:
        """What it is, wherever its line has moved, and the same with the content of its line."""
        loose = f"{self.file}\0{_MOVES.sub('', self.text)}"
        return _digest(loose), _digest(f"{loose}\0{self.source}")


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def read_problems(output: str, vault: Path) -> list[PrintedProblem]:
    """Return the problems in the output of a checker: lines that name a file that is there, and a line of it."""
    found: list[PrintedProblem] = []
    sources: dict[str, list[str] | None] = {}
    heading = ""
    for row in output.splitlines():
        match = _BELOW.fullmatch(row)
        file = heading
        if match is None:
            match = _LINE.fullmatch(row)
            file = match["file"] if match else ""
            heading = heading if match or not row.strip() else row.strip()
        if match is None or not file:
            continue
        if file not in sources:
            sources[file] = _lines(vault / file)
        if (lines := sources[file]) is None:
            continue
        number, text = int(match["line"]), re.sub(r"\s{2,}", " ", match["text"]).strip()
        path = vault / file
        known = str(path.relative_to(vault)) if path.is_relative_to(vault) else file
        found.append(PrintedProblem(known, number, text, lines[number - 1].strip() if 0 < number <= len(lines) else ""))
    return found


def _lines(file: Path) -> list[str] | None:
    try:
        return file.read_text("utf-8", "replace").splitlines() if file.is_file() else None
    except (OSError, ValueError):
        return None


def new_problems(before: Iterable[Sequence[str]], now: Sequence[PrintedProblem]) -> list[PrintedProblem]:
    """Return the problems that were not there `before` (their keys). One that has only moved is not new."""
    keys = [tuple(key) for key in before]
    loose, exact = Counter(key[0] for key in keys), Counter(key[1] for key in keys)
    others: list[PrintedProblem] = []
    for problem in now:  # first those whose line is the same, so that of two alike the changed one is the new one
        if exact[problem.keys[1]] > 0:
            exact[problem.keys[1]] -= 1
            loose[problem.keys[0]] -= 1
        else:
            others.append(problem)
    new: list[PrintedProblem] = []
    for problem in others:
        if loose[problem.keys[0]] > 0:
            loose[problem.keys[0]] -= 1
        else:
            new.append(problem)
    return new

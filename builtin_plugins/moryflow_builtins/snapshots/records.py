"""Which steps changed files, one line of JSON per step and a file per session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """A step that changed files.

    :param node: the model's answer whose calls changed them.
    :param before: the tree when its first call was about to run; `after`, when its last one had ended.
    """

    node: str
    turn: str
    step: int
    before: str
    after: str


class Records:
    """The records of one session."""

    def __init__(self, folder: Path, session: str) -> None:
        self._file = folder / "sessions" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', session)}.jsonl"

    def add(self, record: Record) -> None:
        """Append a record."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def __iter__(self) -> Iterator[Record]:
        """Yield the records, oldest first; a line that was cut off is left out."""
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield Record(**json.loads(line))
            except (ValueError, TypeError):
                continue

"""Find records in the audit log: newest first, without reading more of big files than needed."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from .log import FOLDER, file_of, harmless, lines_backwards, parse

log = logging.getLogger(__name__)
DENIED = (b'"decision":"deny"', b'"decision":"stop"')
SLACK = timedelta(hours=1)
"""Lines of one file are in order of time but for clocks that were set and processes that write at once."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Wanted:
    """Which records: refused ones only, those at or after `since`, at most `limit` of the newest."""

    denied: bool = False
    since: datetime | None = None
    limit: int | None = None


def files(home: Path, session: str | None = None) -> list[Path]:
    """Return the audit files of `home`, the last written first; those of a session, by its id or the beginning of it."""
    folder = home / FOLDER
    if session is not None and file_of(home, session).is_file():
        return [file_of(home, session)]
    pattern = "*.jsonl" if session is None else f"{harmless(session)}*.jsonl"
    return sorted(folder.glob(pattern), key=_changed, reverse=True)


def select(found: list[Path], wanted: Wanted) -> list[dict[str, Any]]:
    """Return the wanted records of `found`, oldest first; one that stands in two files counts once."""
    heap: list[tuple[str, str, dict[str, Any]]] = []
    seen: set[str] = set()
    for file in found:
        changed = _iso(datetime.fromtimestamp(_changed(file), UTC) + SLACK)
        full = wanted.limit is not None and len(heap) >= wanted.limit
        if (wanted.since and changed < _iso(wanted.since)) or (full and changed < heap[0][0]):
            continue
        for stamp, identity, record in islice(_records(file, wanted), wanted.limit):
            full = wanted.limit is not None and len(heap) >= wanted.limit
            if full and stamp <= heap[0][0]:
                break
            if identity not in seen:
                seen.add(identity)
                (heapq.heappushpop if full else heapq.heappush)(heap, (stamp, identity, record))
    return [record for _, _, record in sorted(heap, key=lambda item: item[:2])]


def moment(text: str, now: datetime | None = None) -> datetime:
    """Return the time that `text` names: ``30m``, ``2h``, ``7d`` ago, or a date or time in ISO 8601 (local without a zone).

    :raises ValueError: it names none.
    """
    ago = re.fullmatch(r"(\d{1,6})\s*([smhdw])", text.strip())
    if ago:
        return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    return datetime.fromisoformat(text.strip()).astimezone(UTC)


def _records(file: Path, wanted: Wanted) -> Iterator[tuple[str, str, dict[str, Any]]]:
    since = _iso(wanted.since) if wanted.since else ""
    enough = _iso(wanted.since - SLACK) if wanted.since else ""
    for line in _readable_lines(file, DENIED if wanted.denied else ()):
        record = parse(line)
        if record is None:
            continue
        stamp = str(record.get("timestamp", ""))
        if stamp < enough:
            return
        if stamp >= since:
            yield stamp, str(record.get("eventId", "")), record


def _readable_lines(file: Path, needles: tuple[bytes, ...]) -> Iterator[bytes]:
    try:
        yield from lines_backwards(file, needles)
    except OSError as error:
        log.warning("%s cannot be read: %s", file, error.strerror)


def _changed(file: Path) -> float:
    """Return when a file was written last; one that has just gone is as old as can be."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime | None = None) -> datetime:
    """Return the time that `text` names: ``30m``, ``2h``, ``7d`` ago, or a date or time in ISO 8601 (local without a zone).

    :raises ValueError: it names none; the text says what would.
    """
    ago = re.fullmatch(r"(\d{1,6})\s*([smhdw])", text.strip())
    try:
        if ago:
            return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time; try 30m, 2h, 7d or 2026-01-31") from error

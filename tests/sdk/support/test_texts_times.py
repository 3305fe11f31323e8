"""Times as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from moryflow_sdk.support.texts import moment

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"), [("30m", timedelta(minutes=30)), ("2h", timedelta(hours=2)), ("7d", timedelta(days=7))]
)
def test_times_can_be_given_as_so_long_ago(text: str, ago: timedelta) -> None:
    """30m, 2h, 7d."""
    assert moment(text, NOW) == NOW - ago


def test_times_can_be_dates() -> None:
    """ISO 8601, local without a zone."""
    assert moment("2026-01-02T03:04:05+01:00") == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert moment("2026-01-02") == datetime(2026, 1, 2).astimezone(UTC)


@pytest.mark.parametrize("text", ["", "soon", "7y", "999999w", "2026-13-01"])
def test_what_names_no_time_is_told_so(text: str) -> None:
    """The message shows what would."""
    with pytest.raises(ValueError, match="is not a time; try 30m, 2h, 7d or 2026-01-31"):
        moment(text, NOW)

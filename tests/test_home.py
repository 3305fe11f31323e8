"""The tests stay among themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path


def test_the_tests_have_a_home_of_their_own() -> None:
    """What they start neither reads nor writes the home of the person who runs them (R14)."""
    assert Path.home().parent == Path(tempfile.gettempdir()) and Path.home().name.startswith("moryflow-tests-")

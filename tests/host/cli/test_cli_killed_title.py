"""A session whose first step was killed is still found by what was asked in it."""

from __future__ import annotations

import json
import time
from typing import Any


def test_a_session_that_was_killed_in_its_first_step_shows_its_prompt(cli: Any) -> None:
    """kill -9 before anything could name it; ``list`` and ``show`` say the first words (S4.16)."""
    model = cli.script({"text": "never", "delay": 600})
    process = cli.start("run", "-m", model, "Count the\nfiles")
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and "Count" not in cli("session", "list").stdout:  # until the prompt is stored
        time.sleep(0.1)
    process.kill()
    process.wait()
    rows = json.loads(cli("session", "list", "--json").stdout)
    assert [row["title"] for row in rows] == ["Count the"]
    assert "Count the" in cli("session", "list").stdout
    shown = cli("session", "show", rows[0]["id"])
    assert shown.stdout.startswith(f"{rows[0]['id']}  Count the\n") and "no title" not in shown.stdout

"""One line per turn in a file, for a status bar."""

from __future__ import annotations

from moryflow_sdk import Event, Turn, hookimpl


@hookimpl
def event(event: Event, turn: Turn | None) -> None:
    """Be told after it was committed; whatever is returned or raised changes nothing."""
    if event.type == "turn.finish" and turn is not None:
        with (turn.data_dir / "turns.txt").open("a", encoding="utf-8") as file:
            file.write(f"{event.data['end_reason']} after {event.data['steps']} step(s)\n")

"""What a step with one tool call costs: from the model server's answer to the next request, early and late in a turn."""

from __future__ import annotations

from statistics import median

from measuring import MODEL, Figure, ModelServer, Place, command, place
from moryflow.testing.replies import Reply, calls, text

STEPS, SHORT = 510, 12
TURNS = 5
NEVER = {"maxAttempts": 10**6, "maxToolCalls": 10**6, "sameToolThreshold": 10**6}


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here:
        here.configure(agents={"runtime": {"doomLoop": NEVER}})
        _turn(here, SHORT)
        early = [gap for _ in range(TURNS) for gap in _turn(here, SHORT)[0][2:8]]
        gaps, size = _turn(here, STEPS)
        late = gaps[STEPS - 21 : STEPS - 1]
        return [
            ("a step with one tool call, around step 5 (median)", median(early), "ms", 3.0),
            (f"a step with one tool call, around step {STEPS - 10} (median)", median(late), "ms", 5.0),
            (f"a step with one tool call, around step {STEPS - 10} (worst of 20)", max(late), "ms", None),
            ("request body at the last step", size / 1024, "KB", None),
        ]


def _turn(here: Place, steps: int) -> tuple[list[float], int]:
    """Run a turn of so many steps; return the time between each answer and the next request, and the last one's size."""

    def reading(number: int) -> Reply:
        if number >= steps:
            return text("done")
        return calls(("read", {"path": "notes.md", "limit": number}), ids=[f"call_{number}"])

    with ModelServer(reading) as server:
        here.use(server)
        here.run(command(), "run", "-m", MODEL, "--max-steps", "100000", "Read on.")
        return [server.gap(step) for step in range(1, steps)], server.sizes[-1]

"""What a start costs: help and version, and a whole one-shot run against a model server on loopback."""

from __future__ import annotations

import sys

from measuring import MODEL, Figure, ModelServer, Place, command, place, repeated
from moryflow.testing.replies import text

RUNS = 11
HEAVY = ("pydantic", "httpx", "litellm", "rich", "moryflow_builtins", "pluggy")
LOADED = f"""
import sys
from moryflow.cli import main
main(sys.argv[1:])
print("loaded:", sum(name in sys.modules for name in {HEAVY!r}))
"""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here:
        bare = repeated(RUNS, lambda: here.run(sys.executable, "-c", "pass").ms)
        return [
            ("python -c pass, for comparison", bare, "ms", None),
            *(_instant(here, flag) for flag in ("--help", "--version")),
            *(_loaded(here, flag) for flag in ("--help", "--version")),
            *_one_shot(here),
        ]


def _instant(here: Place, flag: str) -> Figure:
    return (f"moryflow {flag}", repeated(RUNS, lambda: here.run(command(), flag).ms), "ms", 60.0)


def _loaded(here: Place, flag: str) -> Figure:
    """Count what must not be in memory after `flag`: plugins, pydantic, and what they bring."""
    output = here.run(sys.executable, "-c", LOADED, flag).output
    return (f"moryflow {flag}: plugins and heavy libraries loaded", float(output.split("loaded:")[1]), "", 0.0)


def _one_shot(here: Place) -> list[Figure]:
    with ModelServer(lambda _: text("It is a set of notes.")) as server:
        here.use(server)
        arguments = (command(), "run", "-m", MODEL, "What is this?")
        assert "It is a set of notes." in here.run(*arguments).output
        runs = [here.run(*arguments) for _ in range(RUNS)]
        asked = [came - run.started for came, run in zip(server.came[1:], runs, strict=True)]
    middle = len(runs) // 2
    return [
        ("one-shot run against loopback, whole process", sorted(run.ms for run in runs)[middle], "ms", 300.0),
        ("one-shot run, until the model is asked", sorted(asked)[middle] * 1000, "ms", None),
        ("one-shot run, peak memory", max(run.peak_mb for run in runs), "MB", 65.0),
    ]

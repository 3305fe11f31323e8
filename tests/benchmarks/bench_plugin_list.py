"""What `plugin list` takes, whole process, with 100 installed plugins: never loaded, loaded before, and broken."""

from __future__ import annotations

import json
from statistics import median

from bench_plugins import BROKEN, NUMBER, PLUGIN, install
from measuring import Figure, Place, command, place

RUNS = 9


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here, place() as other:
        sources = {f"bench_listed_{number}": PLUGIN.format(number=number) for number in range(NUMBER)}
        here.environ["PYTHONPATH"] = str(install(here.root / "good", sources))
        first = here.run(command(), "plugin", "list", "--json").ms
        never = _listed(here, "pending")
        _load_all(here)
        loaded = _listed(here, "loaded")
        broken = {f"bench_bad_{number}": BROKEN[number % len(BROKEN)] for number in range(NUMBER)}
        other.environ["PYTHONPATH"] = str(install(other.root / "broken", broken))
        bad = _listed(other, "pending")
    return [
        ("plugin list, 100 plugins, the very first time", first, "ms", None),
        ("plugin list, 100 plugins that were never loaded", never, "ms", 300.0),
        ("plugin list, 100 plugins that were loaded", loaded, "ms", 300.0),
        ("plugin list, 100 broken plugins", bad, "ms", 300.0),
    ]


def _load_all(here: Place) -> None:
    """Start hosts until the probe has let every plugin through: a start does not wait for all of them."""
    for _ in range(20):
        tools = here.run(command(), "tool", "list", "--json", "-q").output
        if tools.count('"bench_listed_') >= NUMBER:
            return


def _listed(here: Place, status: str) -> float:
    """Return the median time of a list, in which all the plugins have the status."""
    runs = [here.run(command(), "plugin", "list", "--json") for _ in range(RUNS)]
    rows = json.loads(runs[-1].output)
    assert sum(row["status"] == status for row in rows if row["tier"] == "installed") == NUMBER
    return median(run.ms for run in runs)

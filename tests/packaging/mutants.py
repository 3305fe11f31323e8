"""Break the code of a room in small ways, one at a time, and list the breaks that its tests do not notice.

``python3 tests/packaging/mutants.py ROOM`` (``just mutants ROOM``); mutmut makes the breaks and runs the tests, in a copy of
the last commit. It needs ``python3 -m pip install mutmut==3.8.1`` beside the usual.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("host/moryflow", "plugin_sdk/moryflow_sdk", "builtin_plugins/moryflow_builtins")
WANTED = 0.9
ROOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kernel": ("moryflow/kernel", ("tests/host/kernel", "tests/invariants", "tests/scenarios")),
    "hooks": ("moryflow/hooks", ("tests/host/hooks",)),
    "approvals": (
        "moryflow/approvals",
        ("tests/scenarios/test_stored_answers.py", "tests/builtins/permission/test_permission_gate.py"),
    ),
    "permission": ("moryflow_builtins/permission", ("tests/builtins/permission",)),
    "store": ("moryflow/store", ("tests/host/store",)),
    "mcp/lock": ("moryflow_builtins/mcp/lock.py", ("tests/builtins/mcp/test_mcp_pins.py",)),
    "memory_bank/guard": ("moryflow_builtins/memory_bank/guard.py", ("tests/builtins/memory_bank",)),
}
"""Room → its code, and the tests that should notice a break in it."""
CAUGHT = ("killed", "timeout", "suspicious", "segfault")


def main(room: str) -> int:
    """Print the share of breaks that were noticed, and the others; return 1 if the share is below :data:`WANTED`."""
    code, tests = ROOMS[room]
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Path(place)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x"], cwd=copy, input=archive, check=True)
        (copy / "src").mkdir()  # mutmut takes a module's name from its path below this folder
        for folder in PLACES:
            (copy / folder).rename(copy / "src" / Path(folder).name)
        options = {"source_paths": f"src/{code}", "also_copy": "src tests docs user_examples pyproject.toml"}
        options["pytest_add_cli_args_test_selection"] = " ".join(tests)
        lines = (f"{key}=\n" + "".join(f"    {one}\n" for one in value.split()) for key, value in options.items())
        (copy / "setup.cfg").write_text("[mutmut]\n" + "".join(lines), encoding="utf-8")
        mutants = copy / "mutants" / "src"
        mutants.mkdir(parents=True)  # Python ignores a folder for modules that is not there when it starts
        environ = {**os.environ, "PYTHONPATH": str(mutants)}
        run = subprocess.run(["mutmut", "run"], cwd=copy, env=environ, capture_output=True, text=True, check=False)
        found = subprocess.run(
            ["mutmut", "results", "--all", "true"], cwd=copy, env=environ, capture_output=True, text=True, check=False
        )
        rows = [line.strip().rpartition(": ") for line in found.stdout.splitlines() if ": " in line]
        if not rows or run.returncode:
            print(run.stdout[-6000:], run.stderr[-3000:], file=sys.stderr)
            return 1
        counts = Counter(state for _, _, state in rows)
        share = sum(counts[state] for state in CAUGHT) / len(rows)
        for name, _, state in rows:
            if state not in CAUGHT:
                print(f"{state}: {name}")
        print(f"{room}: {share:.0%} of {len(rows)} breaks noticed ({', '.join(f'{n} {state}' for state, n in counts.items())})")
        return 0 if share >= WANTED else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ROOMS:
        sys.exit(f"usage: mutants.py ROOM, one of {', '.join(ROOMS)}")
    sys.exit(main(sys.argv[1]))

"""Write the outputs that the documentation shows anew: ``python tests/packaging/record_outputs.py docs/guide.md …``.

Where a page has ``…`` in an output, or an output that is not what the command prints, it gets the lines that were printed. Of a
long output those stay that the page showed, whole, and a line ``[... more]`` stands for the others: say there what they are.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from document_terminals import masked, same
from test_documents import YOU, begun, play

SHORT = 9
"""Lines that are shown whole."""
GAP = 2
"""Lines that are not worth leaving out."""


def main(names: list[str]) -> int:
    """Record the pages that are named."""
    root = Path("/tmp") / ("x" * (len(YOU) - len("/tmp/")))  # as long as what is shown, so that columns stay straight
    for name in names:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        page = Path(name)
        text = page.read_text(encoding="utf-8")
        with begun(root) as place:
            page.write_text(recorded(text, list(play(text, place))), encoding="utf-8")
        print(f"recorded {name}")
    shutil.rmtree(root, ignore_errors=True)
    return 0


def recorded(text: str, steps: list[tuple[str, str, str]]) -> str:
    """Return the page with the outputs of its steps."""
    at = 0
    for command, expected, actual in steps:
        if not expected:
            continue
        at = text.index(expected, at)
        new = expected if "…" not in expected and same(expected, actual) else shown(expected, actual.strip("\n"))
        if not same(new, actual):
            print(f"by hand: $ {command}\n{actual}\n")
            new = expected
        text = text[:at] + new + text[at + len(expected) :]
        at += len(new)
    return text


def shown(expected: str, actual: str) -> str:
    """Return the lines of `actual` that the page shows."""
    lines = actual.splitlines()
    if len(lines) <= SHORT:
        return actual
    wanted = [
        masked(part).strip()
        for line in expected.splitlines()
        for part in line.split("…")
        if part.strip() and not part.startswith("[... ")
    ]
    kept: set[int] = set()
    start = 0
    for part in wanted:
        found = next((index for index in range(start, len(lines)) if part in masked(lines[index])), None)
        if found is not None:
            kept.add(found)
            start = found
    out: list[str] = []
    last = -1
    for index in [*sorted(kept), len(lines)]:
        gap = lines[last + 1 : index]
        out += gap if len(gap) <= GAP else ["[... more]"]
        out += lines[index : index + 1]
        last = index
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The home is its owner's alone, whichever command makes it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "words",
    [
        ("run", "hi", "-m"),
        ("plugin", "list"),
        ("tool", "list"),
        ("doctor",),
        ("config", "set", "model", "script:x"),
        ("session", "list"),
        ("plugin", "check"),
        ("new", "agent", "bob"),
    ],
    ids=" ".join,
)
def test_the_first_command_makes_the_home_for_its_owner_alone(cli: Any, words: tuple[str, ...]) -> None:
    """Conversations lie there, and whoever may write there puts rules and code in place, whatever the umask (R17)."""
    cli.home = cli.vault.parent / "above" / "new"
    done = cli(*words, *([cli.script("x")] if words[-1] == "-m" else []), umask=0)
    assert "Traceback" not in done.stderr
    made = [cli.home, *(path for path in cli.home.rglob("*") if path.is_dir() and path.name not in ("agents",))]
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in made if path.stat().st_mode & 0o077} == {}

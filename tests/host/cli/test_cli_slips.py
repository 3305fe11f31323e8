"""What Python only warns of in code of one's own, and ``tool check``: told to the author, and to nobody else."""

from __future__ import annotations

import json
from typing import Any

import pytest

SLIPS = 'if 1 is 1:\n    DIGITS = "\\d"\n'
TOOL = 'from moryflow_sdk import tool\n\n@tool\ndef mine(text: str) -> str:\n    "Say it."\n    return text\n'
PLUGIN = "from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params):\n    return None\n"


@pytest.fixture
def author(cli: Any) -> Any:
    """A home with slips in a plugin and in a file with tools, which are switched on."""
    cli.plugin("mine", PLUGIN + SLIPS)
    (cli.home / "tools").mkdir(mode=0o700)
    (cli.home / "tools" / "words.py").write_text(TOOL + SLIPS)
    cli.config(agents={"runtime": {"tools": {"external": {"enabled": True}}}})
    return cli


@pytest.mark.parametrize("words", [("run", "hi", "-m"), ("tool", "run", "mien"), ("chat", "-m")])
def test_whoever_only_runs_it_sees_nothing_of_a_slip(author: Any, words: tuple[str, ...]) -> None:
    """No warning of Python's at a person's terminal, whichever command reads or compiles the file (D71)."""
    done = author(*words, *([author.script("fine")] if words[-1] == "-m" else []), stdin="hi\n")
    assert "escape" not in done.stderr and "literal" not in done.stderr and "Warning" not in done.stderr


def test_tool_check_names_what_is_wrong_in_a_file(author: Any) -> None:
    """Each file with its tools and its faults, also while they are switched off (D57)."""
    author.config()
    folder = author.home / "tools"
    (folder / "bad.py").write_text("1/0\n")
    (folder / "twice.py").write_text(TOOL)
    (folder / "lost.py").symlink_to("/not/there.py")
    done = author("tool", "check", "--json")
    rows = {row["file"].rpartition("/")[2]: row for row in json.loads(done.stdout)}
    assert done.returncode == 3
    assert {name: row["ok"] for name, row in rows.items()} == {
        n: n == "twice.py" for n in ("bad.py", "twice.py", "lost.py", "words.py")
    }
    assert "ZeroDivisionError" in rows["bad.py"]["problems"][0]
    assert "leads nowhere" in rows["lost.py"]["problems"][0]
    assert "the name 'mine' is taken" in rows["words.py"]["problems"][0]
    assert author("tool", "check", "twice").stdout == f"{folder}/twice.py: ok (mine)\n"

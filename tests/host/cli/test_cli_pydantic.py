"""pydantic is imported only where something needs it, and what other packages plug into it stays out of the program."""

from __future__ import annotations

import os
import sys
from typing import Any


def test_a_package_that_plugs_into_pydantic_is_not_imported(cli: Any) -> None:
    """No installed code runs in the host without consent, and nothing of it can spoil a start (D8)."""
    site, seen = cli.vault.parent / "site", cli.vault.parent / "seen"
    info = site / "pydantic_friend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic-friend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pydantic]\nfriend = pydantic_friend:plugin\n")
    (site / "pydantic_friend.py").write_text(f"open({str(seen)!r}, 'w').close()\nplugin = 5 / 0\n")
    cli.environ["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, sys.path)])

    done = cli("tool", "run", "hello", "--name", "Ada")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Hello, Ada!" in done.stdout
    assert cli("config", "schema").returncode == 0  # this needs pydantic
    assert not seen.exists()


RUNTIME = {
    "permission": {"rules": [{"domain": "read", "pattern": "*", "decision": "allow"}]},
    "truncation": {"maxLines": 100, "tools": {"read": {"direction": "both"}}},
    "compaction": {"mode": "before"},
    "hooks": {"tool": {"after": [{"tool": "read", "appendText": "!"}]}},
}


def imported(text: str) -> list[str]:
    """The modules of pydantic that an interpreter tells of which reports its imports."""
    names = [line.rpartition("|")[2].strip() for line in text.splitlines() if line.startswith("import time:")]
    assert "moryflow" in names
    return [name for name in names if name.partition(".")[0] in ("pydantic", "pydantic_core")]


def test_a_run_whose_configuration_is_right_imports_no_pydantic(cli: Any) -> None:
    """With all built-in plugins, settings and a call of a tool: it was a quarter of a start. A wrong value needs it."""
    providers = {"own": {"baseUrl": "http://127.0.0.1:9/v1/", "models": {"m": {"contextWindow": 9000}}}}
    settings = {"disabledPlugins": [], "limits": {"maxSteps": 9}, "models": {"providers": providers}}
    cli.config(**settings, agents={"runtime": RUNTIME})
    (cli.vault / "a.txt").write_text("text")
    run = ("run", "go", "--model", cli.script(cli.calls("read", path="a.txt"), {"text": "the end"}))
    assert cli(*run).returncode == 0  # plugins are tried in processes of their own
    cli.environ["PYTHONPROFILEIMPORTTIME"] = "1"

    done = cli(*run)
    assert (done.returncode, "the end" in done.stdout, imported(done.stderr)) == (0, True, [])

    cli.config(**settings, language=5)
    assert "pydantic" in imported(cli(*run).stderr)

"""Rules as one line each, and the decision about one command under them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command


def rules(*rows: str) -> list[dict[str, str]]:
    """Return rules written like ``+git *`` (allow), ``-rm *`` (deny) or ``?make *`` (ask)."""
    words = {"+": "allow", "-": "deny", "?": "ask"}
    return [{"domain": "bash", "pattern": row[1:], "decision": words[row[0]]} for row in rows]


def decide(policy: Policy, command: str, base: str | None = None) -> str:
    """Return the decision about `command`, started in the folder `base`."""
    return judge_command(policy, command, base).worst.decision


def git(folder: Path, *words: str) -> str:
    """Run git for a test, without anybody's configuration, and return what it printed."""
    settings = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "init.defaultBranch=main")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), *words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=environment).stdout

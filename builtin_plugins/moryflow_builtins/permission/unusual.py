"""What is unusual about a call, in one line for the user who is asked; that no rule covers it is not.

These tables only choose words: a program that is missing from them is asked about all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from moryflow_sdk import Rule
from moryflow_sdk.support.texts import in_words

# How the reason begins where nothing but a missing rule makes Moryflow ask.
UNCOVERED = "no rule covers"
# How many remarks a question shows.
MAX_SHOWN = 3


class Asked(Protocol):
    """What is asked about one target; see :class:`~moryflow_builtins.permission.policy.Judgement`."""

    @property
    def domain(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def rule(self) -> Rule | None: ...


def _table(about: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, about)


# What a program does, or a program with its verb.
_REMARKS = {
    **_table(
        "deletes",
        "rm", "rmdir", "unlink", "shred", "truncate", "git rm", "git clean", "git reset", "docker rm", "docker rmi",
        "docker system", "kubectl delete",
    ),
    **_table(
        "uses the network",
        "curl", "wget", "ssh", "scp", "sftp", "rsync", "ftp", "nc", "ncat", "telnet", "ping", "dig", "nslookup", "gh", "aws",
        "gcloud", "az", "kubectl", "twine", "git push", "git pull", "git fetch", "git clone", "git ls-remote", "git submodule",
        "npm publish", "pnpm publish", "yarn publish", "cargo publish", "docker push", "docker pull", "docker login",
    ),
    **_table(
        "installs",
        "apt", "apt-get", "dnf", "yum", "apk", "pacman", "brew", "pipx", "npx", "uvx", "gem install", "go get", "go install",
        "cargo add", "cargo install", "poetry add", "poetry install", "uv add", "uv sync", "uv pip", "uv tool",
        *(f"{pip} {verb}" for pip in ("pip", "pip3") for verb in ("install", "uninstall", "download")),
        *(f"{npm} {verb}" for npm in ("npm", "pnpm", "yarn") for verb in ("install", "i", "ci", "add", "update", "dlx")),
    ),
    **_table("runs as another user", "sudo", "su", "doas", "pkexec", "runuser"),
}  # fmt: skip


def effect_of(command: str) -> str:
    """Return what a simple command does that the user should see; empty for all others."""
    words = command.split(" ")
    name = words[0].rpartition("/")[2]
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    about = _REMARKS.get(f"{name} {verb}") or _REMARKS.get(name)
    return f"{name} {verb} {about}" if f"{name} {verb}" in _REMARKS else f"{name} {about}" if about else ""


def unusual(asked: Iterable[Asked]) -> str:
    """Return what is unusual about what is asked, in one line; empty if nothing is."""
    found: dict[str, None] = {}
    for part in asked:
        said = [one for one in part.reason.split("; ") if one and not one.startswith(UNCOVERED)]
        if part.rule is not None and part.rule.source == "user" and part.rule.decision == "ask" and len(said) == 1:
            said = [f"your rule asks about {in_words(part.rule.pattern)}"]
        effect = effect_of(in_words(part.target)) if part.domain == "bash" and not said else ""
        lines = (re.sub(r"\bvault:/(?=\s|$)", "this folder", one).replace("vault:/", "") for one in (*said, effect) if one)
        found |= dict.fromkeys(lines)
    more = f"; and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return "; ".join([*found][:MAX_SHOWN]) + more

"""Sets of rules to begin with. They are ordinary rules; what a person writes after them wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moryflow_sdk import Rule
from moryflow_sdk.protected_files import SECRETS


@dataclass(frozen=True)
class Preset:
    """A named set of rules.

    :param about: one sentence for the list.
    """

    about: str
    rows: tuple[tuple[str, str, str], ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order."""
        return tuple(
            Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision})
            for domain, pattern, decision in self.rows
        )


def _runs(*patterns: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(("bash", pattern, "allow") for pattern in patterns)


_AS_BY_DEFAULT = (("read", "fs:**", "ask"), ("bash", "*", "ask"))
"""Undoes what a more trusting preset said before."""

_LOOK = _runs(
    "pwd", "ls", "ls *", "tree", "tree *", "cat *", "head *", "tail *", "wc *", "file *", "stat *", "du *", "diff *",
    "grep *", "rg *", "find *", "sort *", "date", "which *",
    "git status", "git status *", "git diff", "git diff *", "git log", "git log *", "git show", "git show *",
    "git blame *", "git branch --show-current", "git rev-parse *", "git ls-files", "git ls-files *",
)  # fmt: skip

_BUILD = _runs(
    "git add *", "git commit -m *", "git stash", "git stash list", "mkdir *", "touch *",
    "pytest", "pytest *", "python -m pytest", "python -m pytest *", "ruff *", "mypy *", "pyright", "pyright *",
    "uv run pytest", "uv run pytest *", "npm test", "npm run lint", "npm run build", "npm run test", "pnpm test",
    "cargo build", "cargo check", "cargo test", "cargo test *", "cargo clippy", "go build ./...", "go vet ./...",
    "go test ./...", "make", "make test", "make build", "make lint",
)  # fmt: skip

_SECRETS = tuple(
    ("read", f"fs:**/{{{','.join(names)}}}{below}", "ask") for names, below in ((SECRETS.files, ""), (SECRETS.folders, "/**"))
)
"""What a rule for the whole disk would silence, asked about again."""

PRESETS: Mapping[str, Preset] = {
    "readonly": Preset(
        "look at everything in the vault, change nothing",
        (*_AS_BY_DEFAULT, *_LOOK, ("edit", "*", "deny"), ("mcp", "*", "ask"), ("tool", "*", "ask")),
    ),
    "develop": Preset("look, build and test without a question; all else as by default", (*_AS_BY_DEFAULT, *_LOOK, *_BUILD)),
    "trusting": Preset(
        "run any program and read everywhere; still asked: secrets, what runs later, sudo, push, and what no rule can see",
        (
            ("bash", "*", "allow"),
            ("bash", "sudo *", "ask"),
            ("bash", "git push", "ask"),
            ("bash", "git push *", "ask"),
            ("read", "fs:**", "allow"),
            *_SECRETS,
        ),
    ),
}
"""The presets by name, the strictest first."""

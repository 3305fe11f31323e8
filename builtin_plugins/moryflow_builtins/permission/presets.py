"""Presets: named sets of rules that the user adds with ``moryflow permission preset``, or in answer to a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moryflow_sdk import Offer, Rule
from moryflow_sdk.support.protected_files import SECRETS
from moryflow_sdk.support.sandbox import COMMANDS


class Preset(NamedTuple):
    """A named set of rules.

    :ivar about: one sentence for the list.
    """

    about: str
    rows: tuple[tuple[str, str, str], ...]

    @property
    def rules(self) -> list[Rule]:
        return [Rule.model_validate(dict(zip(("domain", "pattern", "decision"), row, strict=True))) for row in self.rows]


def _runs(*patterns: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(("bash", pattern, "allow") for pattern in patterns)


# Overrule the rules of a more trusting preset that was added before.
_AS_BY_DEFAULT = (("read", "fs:**", "ask"), ("bash", "*", "ask"))

_LOOK = _runs(
    "pwd", "cd *", "ls *", "tree *", "cat *", "head *", "tail *", "wc *", "file *", "stat *", "du *", "df *", "diff *",
    "cmp *", "grep *", "egrep *", "rg *", "find *", "fd *", "sort *", "cut *", "tr *", "nl *", "tac *", "column *",
    "date *", "which *", "type *", "echo *", "printf *", "test *", "[ *", "true", "basename *", "dirname *", "realpath *",
    "readlink *", "sed *", "awk *", "jq *", "man *", "ps *", "id", "whoami", "uname *", "md5sum *", "sha256sum *",
    "git status *", "git diff *", "git log *", "git show *", "git blame *", "git branch", "git branch -a", "git branch -v",
    "git branch -vv", "git branch --show-current", "git branch --list", "git rev-parse *", "git ls-files *", "git remote",
    "uniq", "uniq -c", "uniq -d", "git describe *", "git shortlog *", "git stash list", "git remote -v", "git tag --list",
)  # fmt: skip

_BUILD = _runs(
    "git add *", "git commit -m *", "git stash", "mkdir *", "touch *",
    "pytest", "pytest *", "python -m pytest", "python -m pytest *", "ruff *", "mypy *", "pyright", "pyright *",
    "uv run pytest", "uv run pytest *", "npm test", "npm run lint", "npm run build", "npm run test", "pnpm test",
    "cargo build", "cargo check", "cargo test", "cargo test *", "cargo clippy", "go build ./...", "go vet ./...",
    "go test ./...", "make", "make test", "make build", "make lint",
)  # fmt: skip

# Ask again about files of secrets, which a rule for the whole disk would allow.
_SECRETS = tuple(
    ("read", f"fs:**/{{{','.join(names)}}}{below}", "ask") for names, below in ((SECRETS.files, ""), (SECRETS.folders, "/**"))
)

# The presets by name, the strictest first.
PRESETS: Mapping[str, Preset] = {
    "readonly": Preset(
        "look at everything in the vault, change nothing",
        (*_AS_BY_DEFAULT, *_LOOK, ("edit", "*", "deny"), ("mcp", "*", "ask"), ("tool", "*", "ask")),
    ),
    "look": Preset("run read-only commands without a question; all else as it is", _LOOK),
    "sandbox": Preset("run commands without a question where they run in the sandbox; all else as it is", _runs(COMMANDS)),
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


def offer(rules: Sequence[Rule], *, sandbox: bool) -> Offer | None:
    """Return what a question about a command offers beside *always*; ``None`` if all of it is in `rules` already."""
    name = "sandbox" if sandbox else "look"
    held = {(rule.domain, rule.pattern, rule.decision) for rule in rules}
    return Offer(name=name, says=_OFFERED[name]) if not held.issuperset(PRESETS[name].rows) else None


_OFFERED = {
    "sandbox": "run commands in the sandbox without asking, in all your folders: there they write only in the folder, and "
    "reach neither the network nor your secrets",
    "look": "run read-only commands (ls, cat, grep, git log and the like) without asking, in all your folders; no sandbox "
    "works here, so a command that you allow can do what you can",
}

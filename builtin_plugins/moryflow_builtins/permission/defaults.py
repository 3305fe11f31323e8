"""What holds when nobody has written a rule, as rules that ``permission rules`` prints (S0.33–S0.39, D7, D72).

They come first, so that any rule of a person is matched later and wins; ``permission lint`` says when one silences them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

from moryflow_sdk import Rule
from moryflow_sdk.sensitive import SENSITIVE_FOLDERS, SENSITIVE_NAMES, in_sensitive_folder, sensitive_name

RUNS_LATER_FOLDERS: tuple[str, ...] = (
    ".git", ".hg", ".svn", ".githooks", ".husky", ".vscode", ".vscode-server", ".idea", ".fleet", ".zed", ".cursor",
    ".windsurf", ".claude", ".codex", ".gemini", ".continue", ".aider", ".opencode", ".roo", ".amazonq", ".kiro",
    ".devcontainer", ".circleci", ".buildkite", ".woodpecker", ".github/workflows", ".github/actions", ".gitea/workflows",
    ".forgejo/workflows", ".yarn", ".direnv", ".config/git", ".config/fish", ".config/autostart", ".config/systemd",
    ".bashrc.d", ".bash_completion.d", ".zfunc", ".moryflow",
)  # fmt: skip
"""Folders whose files change what runs later: version control, editors, agents, continuous integration, shells (R21)."""

RUNS_LATER_NAMES: tuple[str, ...] = (
    ".mcp.json", "mcp.json", ".claude.json", ".gitconfig", ".gitmodules", ".gitattributes", ".git", ".hgrc",
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".xinitrc", ".xprofile",
    ".xsession", ".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".dir-locals.el", ".gdbinit", ".lldbinit",
    ".pythonrc", ".pdbrc", ".irbrc", ".pryrc", ".rprofile", ".curlrc", ".wgetrc", ".tmux.conf", ".screenrc",
    ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".bazelrc", ".pre-commit-config.yaml", ".pre-commit-hooks.yaml",
    "lefthook.y*ml", ".lefthook.y*ml", ".travis.yml", ".gitlab-ci.yml", ".drone.yml", ".cirrus.yml", "appveyor.yml",
    "azure-pipelines.yml", "bitbucket-pipelines.yml", "jenkinsfile", "cloudbuild.y*ml", "*.code-workspace", "sitecustomize.py",
    "usercustomize.py",
)  # fmt: skip
"""File names that do the same. Compared without regard to case."""

PLANS = "vault:/.moryflow/plans/*.md"
"""Where plans are written; nothing there runs (D23)."""

_EVERY = "vault:**/"
_SENSITIVE_FILES = _EVERY + "{" + ",".join(SENSITIVE_NAMES) + "}"
_SENSITIVE_FOLDERS = _EVERY + "{" + ",".join(SENSITIVE_FOLDERS) + "}/**"
_LATER_FILES = _EVERY + "{" + ",".join(RUNS_LATER_NAMES) + "}"
_LATER_FOLDERS = _EVERY + "{" + ",".join(RUNS_LATER_FOLDERS) + "}/**"

_FIXED: tuple[tuple[str, str, str], ...] = (
    ("read", "vault:**", "allow"),
    ("read", "fs:**", "ask"),
    ("read", "tool:*", "allow"),
    ("read", _SENSITIVE_FILES, "ask"),
    ("read", _SENSITIVE_FOLDERS, "ask"),
    ("edit", "vault:**", "allow"),
    ("edit", _LATER_FOLDERS, "ask"),
    ("edit", PLANS, "allow"),
    ("edit", _LATER_FILES, "ask"),
    ("edit", _SENSITIVE_FILES, "ask"),
    ("edit", _SENSITIVE_FOLDERS, "ask"),
    ("edit", "fs:**", "deny"),
    ("bash", "*", "ask"),
    ("web_fetch", "*", "allow"),
    ("web_search", "*", "allow"),
    ("task", "*", "allow"),
    ("tool", "*", "ask"),
    ("mcp", "*", "ask"),
)

PLACES = frozenset({"vault:**", "fs:**"})
"""Patterns that say where a file is, not what it is called."""


@lru_cache(maxsize=16)
def default_rules(home: str = "", servers: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the built-in rules.

    :param home: Moryflow's own folder; stored outputs below it are read without asking (D36, D37).
    :param servers: names of the configured MCP servers (D7).
    """
    rows: list[tuple[str, str, str]] = list(_FIXED)
    if home:
        rows.append(("read", f"fs:{escape_path(home)}/agent-output/**", "allow"))
    rows += [("mcp", f"mcp:{name}/*", "allow") for name in servers if re.fullmatch(r"[\w.@-]+", name)]
    return tuple(_rule(index, *row) for index, row in enumerate(rows))


def _rule(index: int, domain: str, pattern: str, decision: str) -> Rule:
    return Rule.model_validate(
        {"domain": domain, "pattern": pattern, "decision": decision, "source": "default", "index": index}
    )


def escape_path(path: str) -> str:
    """Return a pattern for a path domain that matches `path` alone (D5)."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def protects(rule: Rule) -> bool:
    """Whether `rule` is a default that guards a file because of its name."""
    return rule.source == "default" and rule.decision == "ask" and rule.pattern.startswith(_EVERY)


def guards_sensitive(rule: Rule) -> bool:
    """Whether `rule` is one of the defaults for sensitive names."""
    return rule.source == "default" and rule.pattern in (_SENSITIVE_FILES, _SENSITIVE_FOLDERS)


@lru_cache(maxsize=4096)
def plain_text(text: str) -> str:
    """Return `text` as the most forgiving volume sees it: no case, no invisible characters, no trailing dots."""
    if not text.isascii():
        visible = (char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
        text = unicodedata.normalize("NFC", "".join(visible).casefold())
    return "/".join(_names(text.lower().split("/")))


def _names(parts: Iterable[str]) -> Iterator[str]:
    return (part.rstrip(". ") or part for part in parts)


def matches_sensitive(rule: Rule, text: str) -> bool:
    """Whether a target in the vault is what such a rule guards; wider than its printed globs (``.env.bak``, ``.env.``).

    A folder of secrets counts as what is in it: who searches, copies or moves ``.ssh`` reaches every file below.
    """
    if not text.startswith("vault:"):
        return False
    return sensitive_name(text) if rule.pattern == _SENSITIVE_FILES else in_sensitive_folder(f"{text}/.")

"""The default rules, as ``permission rules`` prints them.

They come first, so that any rule of a person is matched later and wins; ``permission lint`` says when one silences them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from moryflow_sdk import Rule
from moryflow_sdk.support.protected_files import RUNS_LATER, SECRETS, Line

PLANS = "vault:/.moryflow/plans/*.md"
"""Where plans are written; nothing there runs."""

_EVERY = "vault:**/"
_SENSITIVE_FILES = _EVERY + "{" + ",".join(SECRETS.files) + "}"
_SENSITIVE_FOLDERS = _EVERY + "{" + ",".join(SECRETS.folders) + "}/**"
_LATER_FILES = _EVERY + "{" + ",".join(RUNS_LATER.files) + "}"
_LATER_FOLDERS = _EVERY + "{" + ",".join(RUNS_LATER.folders) + "}/**"

_GUARDS: dict[str, Callable[[str], Line | None]] = {
    _SENSITIVE_FILES: SECRETS.find_file,
    _SENSITIVE_FOLDERS: SECRETS.find_folder,
    _LATER_FILES: RUNS_LATER.find_file,
    _LATER_FOLDERS: RUNS_LATER.find_folder,
}

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
def default_rules(home: str = "", servers: tuple[str, ...] = (), by_git: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the built-in rules.

    :param home: Moryflow's own folder; stored outputs below it are read without asking.
    :param servers: names of the configured MCP servers.
    """
    rows: list[tuple[str, str, str]] = list(_FIXED)
    if home:
        rows.append(("read", f"fs:{escape_path(home)}/agent-output/**", "allow"))
    for path in map(escape_path, by_git):
        rows += [("edit", f"vault:/{path}", "ask"), ("edit", f"vault:/{path}/**", "ask")]
    rows += [("mcp", f"mcp:{name}/*", "allow") for name in servers if re.fullmatch(r"[\w.@-]+", name)]
    return tuple(_rule(index, *row) for index, row in enumerate(rows))


def _rule(index: int, domain: str, pattern: str, decision: str) -> Rule:
    return Rule.model_validate(
        {"domain": domain, "pattern": pattern, "decision": decision, "source": "default", "index": index}
    )


def escape_path(path: str) -> str:
    """Return a pattern for a path domain that matches `path` alone."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def protects(rule: Rule) -> bool:
    """Whether `rule` is a default that guards a file because of its name."""
    return rule.source == "default" and rule.pattern in _GUARDS


def guarded_line(rule: Rule, text: str) -> Line | None:
    """Return the line of the tables by which `rule` guards a target in the vault.

    It is wider than the printed globs (``.env.bak``, ``.env.``), and a folder counts as what is in it: who searches,
    copies or moves ``.ssh`` reaches every file below.
    """
    return _GUARDS[rule.pattern](text) if text.startswith("vault:") else None


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

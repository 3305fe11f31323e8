"""Files that a command names, in every folder it may run in (R9)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import dropwhile, islice

from moryflow_sdk import Target

from moryflow_builtins.permission.files import judge_file
from moryflow_builtins.permission.judged import Judged
from moryflow_builtins.permission.policy import Policy

from .walk import Bases
from .words import Arg

MAX_MOVES = 100
"""How often a script may change its folder before nobody keeps track of it."""

MAX_TOKENS = 500
"""How many words of a text that was not understood are looked at as paths."""

NEUTRAL = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero"})
_HOME = re.compile(r"\A\$(?:HOME|\{HOME\})(?=/|\Z)")
_TOKENS = re.compile(r"[^\s;&|<>()`\"'\\]+")
UNKNOWN: Bases = frozenset((None,))


class Places:
    """Judges paths; `add` takes the answers."""

    def __init__(self, policy: Policy, add: Callable[[Judged], None]) -> None:
        self._policy = policy
        self._add = add
        self._targets: dict[tuple[str, str, str | None], Target] = {}
        self._moves = 0

    def file(self, path: Arg, domain: str, bases: Bases, *, whole: bool = False, asks: bool = False) -> None:
        """Judge a file in every folder the command may run in; `asks`: a default does not deny it."""
        if path.static and path.text in NEUTRAL:
            return
        known = path if path.static else _likely(path)
        if known is None:
            return
        for base in sorted(bases, key=str):
            if base is None and not (known.tilde or known.text.startswith("/")):
                self._add(_unknown_folder(domain, known))
                continue
            target = self._resolved(known.path, domain, base)
            part = judge_file(self._policy, target, domain, whole=whole)
            if asks and part.decision == "deny" and part.rule is not None and part.rule.source == "default":
                part = replace(part, decision="ask", reason=part.reason.partition(";")[0], next_step="")
            if path.static or part.decision == "deny":
                self._add(_named(part))

    def here(self, bases: Bases) -> None:
        """Judge the folder a command works in: the vault is fine, elsewhere is like reading there."""
        for base in sorted(bases, key=str):
            if base is None:
                self._add(_unknown_folder("read", Arg(".")))
            elif base != str(self._policy.vault):
                part = judge_file(self._policy, self._resolved(".", "read", base), "read", whole=False)
                if part.decision != "allow":
                    self._add(_named(part))

    def limits(self, text: str) -> None:
        """Look in a text that was not understood for paths that no mode opens, as if they were written to."""
        for token in islice(_TOKENS.finditer(text), MAX_TOKENS):
            path = _HOME.sub("~", token.group())
            if "/" in path or path.startswith("~"):
                target = self._resolved(path, "edit", str(self._policy.vault))
                part = judge_file(self._policy, target, "edit", whole=False)
                if part.cause == "hard_limit":
                    self._add(part)

    def repository(self, bases: Bases) -> str:
        """Return the folder that git would take for a bare repository, whose configuration may run programs (R15)."""
        for base in bases - {None}:
            parts = (self._resolved(name, "read", base) for name in ("HEAD", "objects", "refs"))
            if all(target.identity is not None for target in parts):
                return str(base)
        return ""

    def perhaps(self, path: Arg, bases: Bases, *, exact: bool) -> None:
        """Judge a word that may be a file: what is not one raises no question, what an exact rule names neither."""
        if not path.static or "://" in path.text or "\n" in path.text or not path.text:
            return
        for base in bases:
            target = self._resolved(path.path, "read", base if base is not None else str(self._policy.vault))
            if target.error is not None:
                continue
            part = judge_file(self._policy, target, "read", whole=False)
            if part.decision == "deny" or (part.decision == "ask" and not exact):
                self._add(_named(part))

    def surely_moves(self, path: Arg, base: str | None) -> bool:
        """Whether ``cd path`` cannot but work: the folder is there, and nothing before a ``..`` could be missing."""
        if ".." in dropwhile(lambda name: name == "..", path.text.split("/")):
            return False
        target = self._resolved(path.path, "read", base) if path.static and base is not None else None
        return target is not None and target.identity is not None and os.access(f"{target.path}/.", os.X_OK)

    def _resolved(self, path: str, domain: str, base: str | None) -> Target:
        key = (path, domain, base)
        if key not in self._targets:
            self._targets[key] = self._policy.resolve(path, domain, base)
        return self._targets[key]

    def moved(self, path: Arg, bases: Bases) -> Bases:
        """Return where ``cd path`` leads from each of `bases`: where its links end, and by its name.

        A later ``..`` goes up from the name, while a program's own ``..`` goes up from where the links ended.
        """
        self._moves += 1
        if not path.static or self._moves > MAX_MOVES:
            return UNKNOWN
        absolute = path.tilde or path.text.startswith("/")
        moved: set[str | None] = set()
        for base in bases:
            target = self._resolved(path.path, "read", base) if base is not None or absolute else None
            moved.add(target.path if target is not None else None)
            if target is not None and target.lexical:
                kind, _, rest = target.lexical.partition(":")
                moved.add(f"{self._policy.vault}{rest}" if kind == "vault" else rest)
        return frozenset(moved)


def _likely(path: Arg) -> Arg | None:
    """Return where a path that is only partly known leads: into the home it names, or surely into some folder."""
    text = _HOME.sub("~", path.text)
    special = min((text.find(char) for char in "*?[$`{<>" if char in text), default=-1)
    if special < 0:
        return Arg(text, tilde=text.startswith("~"))
    folder = text[:special].rpartition("/")[0]
    if folder:
        return Arg(folder, tilde=folder.startswith("~"))
    return Arg("/") if text.startswith("/") and special != 0 else None


def _named(part: Judged) -> Judged:
    """Say which file a rule asks about: the command does not show where its names lead, and an answer holds for that (R22)."""
    if part.decision != "ask" or part.rule is None or part.rule.source == "default":
        return part
    return replace(part, reason=f"{part.target}: {part.reason}")


def _unknown_folder(domain: str, path: Arg) -> Judged:
    return Judged(domain, f"vault:/{path.text}", "ask", f"{path.text!r} is in a folder that is not known before it runs")

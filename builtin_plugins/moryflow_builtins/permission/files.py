"""Judge files: the object that a path leads to, and the path as it was given; the more severe answer counts.

A folder that is moved, copied or removed is judged by every path below it, at its old place and at its new one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePath

from moryflow_sdk import Remember, Target
from moryflow_sdk.support.protected_files import plain_names, sensitive

from .policy import (
    PLACES,
    Judgement,
    Policy,
    Probe,
    escape_path,
    guarded_line,
    guards_sensitive,
    protects,
    stored_rule_answers,
    stricter,
    text_probe,
)

_SECRETS = ("server.token", "*.token", "*token*", "*.key", "*.pem", "*secret*", "*credential*", "auth.json")


def judge_file(policy: Policy, target: Target, domain: str | None = None, *, whole: bool = True) -> Judgement:
    """Judge a resolved file.

    :param domain: judge the file in this domain instead of the target's own.
    :param whole: the operation reaches everything below a folder, as moving or removing the folder does.
    """
    domain = domain or target.domain
    if target.error is not None:
        reason = f"{target.given or target.text!r} cannot be resolved: {target.error}"
        return Judgement(domain, target.text, "deny", reason, cause="unresolved", bypass="never")
    limit = hard_limit(policy, target, domain, whole=whole)
    if limit is not None:
        return limit
    answer = _with_reason(policy.by_text(domain, target.text), target)
    if target.lexical and target.lexical != target.text:
        given = policy.by_probe(domain, target.lexical, _without_places(text_probe(target.lexical)))
        if given.rule is not None or given.bypass == "never":
            answer = stricter(answer, _with_reason(given._replace(target=target.text), target))
    if domain == "edit" and policy.watched:
        answer = stricter(answer, _runs_when_saved(policy, target, answer))
    if domain == "edit" and answer.decision == "allow" and (answer.rule is None or answer.rule.source == "default"):
        answer = _in_repository(target, answer)
    return _with_offer(answer, target)


def _runs_when_saved(policy: Policy, target: Target, answer: Judgement) -> Judgement:
    """Ask, in every mode, before a file is changed that Moryflow loads as soon as it is saved, such as a plugin's code."""
    for path in _paths(policy, target):
        names = _components(path)
        for root in policy.watched:
            for place in _home_spellings(root):
                shorter = min(len(names), len(place))
                if names[:shorter] == place[:shorter]:
                    what = "belongs to a plugin in development, or to Moryflow's folder by a link or MORYFLOW_CONFIG"
                    reason = f"{path} {what}; it is used as soon as it is saved"
                    return Judgement(answer.domain, answer.target, "ask", reason, bypass="never")
    return answer


_OF_A_REPOSITORY = frozenset(
    {"config", "config.worktree", "packed-refs", "objects", "refs", "hooks", "info", "modules", "worktrees"}
)


def _in_repository(target: Target, answer: Judgement) -> Judgement:
    """Ask before a change completes a git repository in a folder that has a ``HEAD``: its configuration can run programs.

    The ``HEAD`` file itself is in the table of files that run later.
    """
    names = (target.path or "").split("/")
    plain = plain_names(target.path or "")
    for index in range(len(plain) - 1, 0, -1):
        folder = "/".join(names[:index])
        if plain[index] in _OF_A_REPOSITORY and any(os.path.lexists(f"{folder}/{name}") for name in ("HEAD", "commondir")):
            reason = f"{_path_words(target)} turns its folder into a git repository, whose configuration can run programs"
            return answer._replace(decision="ask", reason=reason)
    return answer


def _without_places(probe: Probe) -> Probe:
    """Return `probe` without the default rules about places: where a link is says nothing about the file it leads to."""
    return lambda one: None if one.rule.source == "default" and one.rule.pattern in PLACES else probe(one)


def hard_limit(policy: Policy, target: Target, domain: str, *, whole: bool) -> Judgement | None:
    """Return the denial that no rule and no mode lifts: for changes to Moryflow's own folder and for its secrets."""
    for path in _paths(policy, target):
        names = _components(path)
        for home in _home_spellings(policy.home):
            inside = names[: len(home)] == home
            above = whole and len(names) < len(home) and home[: len(names)] == names
            if domain == "edit" and (inside or above):
                what = "is Moryflow's own" if inside else "holds Moryflow's own folder"
                reason = f"{path} {what}; no tool changes it, in any mode"
                return _hard_denial(target, domain, reason, "change it yourself, outside the agent")
            if inside and _is_secret(names[len(home) :]):
                return _hard_denial(target, domain, f"{path} holds a secret of Moryflow; no tool reads it", "")
    return None


_UNKNOWN_PART = re.compile(r"\$\{[^}]*\}|\$\w+")


def judge_pattern(policy: Policy, user_home: str, pattern: str) -> Judgement | None:
    """Return the denial of a shell pattern that may match a path in Moryflow's own folder; ``None`` when it cannot.

    :param pattern: may hold ``*``, ``?``, ``[…]`` and variables; only one that begins with ``/`` or ``~/`` is judged.
    """
    if not set(pattern) & set("*?[$") or not pattern.startswith(("/", "~/")):
        return None
    whole = os.path.normpath(user_home + pattern[1:] if pattern.startswith("~") else pattern)
    names = _components(_UNKNOWN_PART.sub("*", whole))
    for home in _home_spellings(policy.home):
        if len(names) >= len(home) and all(map(_names_match, home, names)):
            target = Target(domain="edit", kind="file", text=f"fs:{whole}", given=pattern)
            reason = f"{pattern} may be a path in Moryflow's own folder, which no tool may change in any mode"
            return _hard_denial(target, "edit", reason, "")
    return None


def _names_match(name: str, pattern: str) -> bool:
    """Whether `pattern` matches `name` as in a shell, where only a dot matches a leading dot."""
    return fnmatchcase(name, pattern) and name.startswith(".") == pattern.startswith(".")


def _hard_denial(target: Target, domain: str, reason: str, next_step: str) -> Judgement:
    return Judgement(domain, target.text, "deny", reason, "hard_limit", "never", next_step=next_step)


def _paths(policy: Policy, target: Target) -> list[str]:
    """Return the resolved path, and the path as it was given, before links were followed."""
    paths = [target.path] if target.path else []
    for text in (target.text, target.lexical or ""):
        kind, _, rest = text.partition(":")
        paths.append(f"{policy.vault}{rest}" if kind == "vault" else rest)
    return list(dict.fromkeys(path for path in paths if path))


@lru_cache(maxsize=64)
def _home_spellings(home: Path) -> tuple[tuple[str, ...], ...]:
    """Return the names in the path of Moryflow's folder, as given and with links followed, in lower case."""
    spellings = (os.path.abspath(home), os.path.realpath(home))  # noqa: PTH100
    return tuple(dict.fromkeys(_components(spelling) for spelling in spellings))


def _components(path: str) -> tuple[str, ...]:
    """Return the names in a path as a volume compares them that ignores case and trailing dots."""
    return tuple(part.rstrip(". ") or part for part in PurePath(path.casefold()).parts)


def _is_secret(below: tuple[str, ...]) -> bool:
    if not below or below[0] == "agent-output":
        return False
    name = PurePath(below[-1])
    return sensitive(below[-1]) or any(name.match(pattern) for pattern in _SECRETS)


def _with_reason(answer: Judgement, target: Target) -> Judgement:
    """Return `answer` with a readable reason, where a default rule asks or denies."""
    if answer.decision == "allow" or answer.rule is None or answer.rule.source != "default":
        return answer
    shown = _path_words(target)
    changes = answer.domain == "edit"
    if protects(answer.rule):
        line = guarded_line(answer.rule, target.text) or guarded_line(answer.rule, target.lexical or "")
        what = "looks like a file of secrets" if guards_sensitive(answer.rule) else "changes what runs later"
        reason = f"{shown} {what}: {line.reason}" if line else f"{shown} {what}"
    elif answer.decision == "ask" and changes:
        reason = f"{shown} changes what runs later: the configuration of git names it"
    elif changes:
        reason = f"{shown} is outside the vault, where files may not be changed"
    else:
        reason = f"{shown} is outside the vault"
    step = "a rule of the user can allow it" if answer.decision == "deny" else ""
    return answer._replace(reason=reason, next_step=step)


def _with_offer(answer: Judgement, target: Target) -> Judgement:
    """Return `answer` with an offer to store the file's literal pattern, if such a rule would answer the question."""
    same_name = target.lexical in (None, target.text)
    if answer.decision != "ask" or not same_name or not stored_rule_answers(answer):
        return answer
    pattern = Remember(scope="user", domain=answer.domain, pattern=escape_path(target.text))
    return answer._replace(remember=pattern)


# ---------------------------------------------------------------- folders and everything below them

# How many paths below a folder are judged; for a folder that holds more, the user is asked.
MAX_PATHS = 5_000

# How many paths of one folder are judged in full; more would change neither the decision nor the question.
MAX_ASKED = 20


class TooManyPaths(Exception):
    """A folder holds more than :data:`MAX_PATHS` files and folders."""


def paths_below(folder: str) -> list[str]:
    """Return every file and folder below `folder`, relative to it; links are not followed.

    :raises TooManyPaths: there are more than :data:`MAX_PATHS`.
    :raises OSError: one of the folders cannot be read.
    """
    found: list[str] = []
    todo = [""]
    while todo:
        below = todo.pop()
        with os.scandir(f"{folder}/{below}") as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                found.append(path)
                if len(found) > MAX_PATHS:
                    raise TooManyPaths(folder)
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{path}/")
    return found


def is_folder(target: Target) -> bool:
    """Whether `target` is an existing folder."""
    if target.kind != "file" or target.identity is None or not target.path:
        return False
    try:
        return stat.S_ISDIR(os.lstat(target.path).st_mode)
    except OSError:
        return False


def judge_folder(policy: Policy, source: Target, goals: Sequence[Target] = ()) -> Iterator[Judgement]:
    """Yield an answer for each path below the folder `source` that may not be changed.

    :param goals: the new paths of the folder itself, not of the folder that will hold it.
    """
    try:
        below = paths_below(source.path or "")
    except TooManyPaths:
        reason = f"{_path_words(source)} holds more than {MAX_PATHS:,} files and folders, so they were not checked"
        yield Judgement("edit", source.text, "ask", reason)
        return
    except OSError as error:
        reason = f"{_path_words(source)} cannot be read ({error.strerror or error}), so its files were not checked"
        yield Judgement("edit", source.text, "ask", reason)
        return
    for place in (source, *goals):
        yield from judge_paths(policy, place, below)


def judge_paths(policy: Policy, folder: Target, paths: Sequence[str]) -> Iterator[Judgement]:
    """Yield an answer for each of `paths` below `folder` that may not be changed, at most :data:`MAX_ASKED`."""
    notable = (path for path in paths if policy.by_text("edit", f"{folder.text.rstrip('/')}/{path}").decision != "allow")
    for path in islice(notable, MAX_ASKED):
        answer = judge_file(policy, _below(folder, path), whole=False)
        yield answer._replace(remember=None)  # a stored rule could not know what else the folder holds next time


def _below(folder: Target, path: str) -> Target:
    where = f"{folder.path.rstrip('/')}/{path}" if folder.path else None
    return Target(domain="edit", kind="file", text=f"{folder.text.rstrip('/')}/{path}", given=path, path=where)


def _path_words(target: Target) -> str:
    return target.text.removeprefix("fs:").removeprefix("vault:/") or "the vault"

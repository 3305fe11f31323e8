"""Moryflow's own folder and its own commands: what no tool changes, in any mode.

Only what the text of a command shows can be found here; the rest is up to the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from moryflow_sdk import Target
from moryflow_sdk.support.protected_files import plain_names

from moryflow_builtins.permission.files import hard_limit, judge_pattern
from moryflow_builtins.permission.policy import Judgement, Policy, shortened

from .lexer import SimpleCommand, Word
from .tables import WRAPPERS, program
from .words import inner_words, is_own, name_of, own_change_in_text, own_command

Resolve = Callable[[str, str, str | None], Target]


def change_refused(text: str, verb: str) -> Judgement:
    """Return the denial of a command of ``moryflow`` that changes the user's decision."""
    reason = f"moryflow {verb} changes the user's decision; no rule lets a tool do that"
    step = "run it yourself, outside the agent"
    return Judgement("bash", f"shell:{text}", "deny", reason, "hard_limit", "never", next_step=step)


def folder_refused(policy: Policy, text: str) -> Judgement:
    """Return the denial of a text that may change Moryflow's own folder."""
    reason = f"{shortened(text)!r} names Moryflow's own folder, which no tool may change in any mode"
    return Judgement("edit", f"fs:{policy.home}", "deny", reason, "hard_limit", "never")


def judge_own_program(words: Sequence[Word]) -> Iterator[Judgement]:
    """Judge a command of ``moryflow``, also one behind another program."""
    kinds, plain = program(name_of(words[0])).kinds, " ".join(word.text for word in words)
    only_text = (
        bool(kinds & {"read", "text"}) and not kinds & {"state", "code"} and not any(inner_words(SimpleCommand(tuple(words))))
    )
    for start, word in enumerate(words):
        named = is_own(word.text) or (start == 2 and word.text.startswith("moryflow.")) or word.text == "-mmoryflow"
        if (not named and not (start == 0 and word.why)) or (start and only_text):
            continue
        kind, verb = own_command(words[start:])
        if kind == "changes":
            yield change_refused(plain, verb)
        elif kind == "hidden" and named:
            reason = "which command of moryflow this is, is known only when it runs"
            yield Judgement("bash", f"shell:{plain}", "ask", reason, bypass="never")
        elif kind == "unknown" and named:
            yield Judgement("bash", f"shell:{plain}", "ask", f"moryflow {verb} may run programs or change sessions")
    change = own_change_in_text(" ".join(word.text for word in words[1:])) if kinds & {"code", "shell"} else ""
    if change:
        yield change_refused(plain, change)


def judge_own_folder(
    policy: Policy, resolve: Resolve, bases: Iterable[str | None], command: SimpleCommand, *, guarded: bool
) -> Iterator[Judgement]:
    """Refuse a command that may change Moryflow's own folder: it names it or works in it, and is none that only reads."""
    words, name = command.words, name_of(command.words[0]) if command.words else ""
    known = program(name).kinds
    inner = next((place for place, _, _ in inner_words(command)), 0) if words else 0
    reads = bool(known & {"read", "text", "copy"} or name == "git") and not guarded and not inner
    if words and not reads and name not in WRAPPERS:
        for base in filter(None, bases):
            target = resolve(".", "edit", base)
            limit = hard_limit(policy, target, "edit", whole=False)
            if limit is not None and not serves_commands(policy, target):
                yield limit
    fed = [redirect.body for redirect in command.redirects] if guarded or known & {"code", "shell"} else []
    own = command.assigned if reads or is_own(name) else (*command.assigned, *(words[:inner] if inner else words))
    for word in (*own, *map(Word, fed)):
        if names_own_folder(policy, word.text):
            yield folder_refused(policy, word.text)
        elif word.why:
            yield from judge_own_pattern(policy, resolve, word)


def names_own_folder(policy: Policy, text: str) -> bool:
    """Whether a text names Moryflow's own folder, below a home or a variable; not the skills and outputs in it."""
    if policy.home.name not in text:
        return False
    home, name = re.escape(str(policy.home)), re.escape(policy.home.name)
    before = r"~[\w.-]*|\$(?!PWD\b)\w+|\$\{(?!PWD\b)[^}]*\}|HOME['\"\])]*[ ,.+(]*['\"]?"
    found = re.search(rf"(?:{home}|(?:{before})/+{name})(?![\w.-])(?!/(?:skills|agent-output)/)", text.replace("\\", ""))
    return found is not None


def judge_own_pattern(policy: Policy, resolve: Resolve, word: Word) -> Iterator[Judgement]:
    """Refuse a pattern that may match a path in Moryflow's own folder."""
    text = re.sub(r"\A\$(?:HOME|\{HOME[^}]*\})(?=/|\Z)", "~", word.text)
    text = os.path.expanduser(text) if re.match(r"~[\w.-]+/", text) else text  # noqa: PTH111
    limit = judge_pattern(policy, resolve("~", "read", None).path or "", text)
    if limit is None and text.startswith("/") and not re.search(r"[*?\[$`]", text):
        target = resolve(text, "edit", None)
        limit = hard_limit(policy, target, "edit", whole=False) if target.error is None else None
    yield from (limit,) if limit is not None else ()


def serves_commands(policy: Policy, target: Target) -> bool:
    """Whether a path in Moryflow's own folder is one of those that commands may use: skills and stored outputs."""
    home = str(policy.home)
    return bool(target.path and target.path.startswith((f"{home}/skills/", f"{home}/agent-output/")))


def bank_refused(target: Target) -> Judgement | None:
    """Return the denial of a change that a command names in the memory bank, which only its writer changes."""
    texts = (target.text, target.lexical or "")
    if not any(text.startswith("vault:/") and plain_names(text[7:])[0] == "memory-bank" for text in texts):
        return None
    reason = "memory-bank/ is made by the user, and changed only by the memory-bank writer"
    step = "propose the change with memory_propose"
    return Judgement("edit", target.text, "deny", reason, "memory_bank", "never", next_step=step)

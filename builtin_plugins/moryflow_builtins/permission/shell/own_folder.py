"""Moryflow's own folder: no program that is seen to change it runs, in any mode.

What only reads is not looked at here. Of a program that may write, every word is taken for what it may name; where a word is
known only when it runs, the variables that the command assigns stand for each of their values, and anything else for any
folder. This sees what a command shows; what no text shows only a sandbox can hold back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import islice, product

from moryflow_builtins.permission.files import hard_limit, judge_file, judge_pattern
from moryflow_builtins.permission.policy import Judgement, Policy, Resolve

from .command_line import CommandLine
from .file_judge import HOME, with_target
from .inspect import name_of
from .moryflow_command import is_own
from .syntax import MAX_PIECES, Arg, addressed_files
from .walk import UNKNOWN, Bases

MAX_LOOKED = 2_000
"""How many paths of a command are looked at here; with more of them it asks in every mode."""

MAX_VALUES = 64
"""How many spellings of one word are looked at, with the values of its variables."""

MAX_WHOLE = 16
"""How many times the whole command is looked through without what one of its parts only reads."""

_HERE = re.compile(r"\$(?:PWD\b|\{PWD\}|\(pwd\))")
_TOKENS = re.compile(r"[^\s;&|<>()`\"'\\]+")
_QUOTES = re.compile(r"[\"'\\]")
_JOINTS = re.compile(r"[=:,@]")
_ATTACHED = re.compile(r"-[A-Za-z0-9-]*(?=[/~$])")
_ROOT = re.compile(r"\A/proc/[^/]+(?:/task/[^/]+)?/root(?=/|\Z)")
_CWD = re.compile(r"\A/proc/(?:thread-)?self(?:/task/[^/]+)?/cwd(?=/|\Z)")
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)(?:\+?=\(?|[ \t]+in[ \t]+|[ \t]*<<<[ \t]*)([^;&|<>()`\n]*)")
_UNKNOWN_PART = re.compile(r"[$`)]|\{\}")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)[^}]*\}|([A-Za-z_]\w*))")
_PLAIN_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_SET_BY_READING = frozenset({"REPLY", "MAPFILE"})
"""Variables that are set without being named."""
_HOME_IN_CODE = re.compile(r"\bHOME\b(?!/)|(?i:home(?:dir)?\()|\.home\b|expanduser|[\"']~")
_RUN_LATER = ("GIT_", "PAGER=", "MANPAGER=", "LESSOPEN=", "EDITOR=", "VISUAL=", "PROMPT_COMMAND=", "PS4=", "BASH_ENV=")
"""Beginnings of variables whose value is run, or says what is changed, whatever the command."""

_WALKERS = frozenset({"find", "gfind", "bfs", "fd", "fdfind", "grep", "egrep", "fgrep", "rg", "ag", "ack"})


class OwnFolder:
    """Judges a command that starts in `folder`; `resolve` resolves a path for reading, and `add` takes the answers."""

    def __init__(self, policy: Policy, command: str, folder: str, resolve: Resolve, add: Callable[[Judgement], None]) -> None:
        self._policy = policy
        self._command = command
        self._folder = folder
        self._resolve = resolve
        self._add = add
        self._looked: set[tuple[str, Bases]] = set()
        self._whole: set[tuple[str, Bases]] = set()
        self._read_as_code: set[str] = set()
        self._walks = self._writes_found = False

    def line(self, line: CommandLine, bases: Bases, raw: str, *, exact: bool) -> None:
        """Refuse a command that may change the folder: in words of a program that does more than read them, or unseen."""
        name, effects = name_of(line.args), line.effects
        may_write = (effects.may_write or bool(effects.guards) or not effects.known) and not is_own(name)
        changes = may_write or bool(effects.writes)
        if not (changes or effects.guards or line.assigned or name in _WALKERS):
            return
        inside = {id(word) for inner in effects.inner for word in inner.args}
        inside |= {id(file) for file in effects.scripts} | effects.harmless  # a script is read, and run
        words = [arg for place, arg in enumerate(line.args) if place and id(arg) not in inside]
        assigned = [arg for arg in line.assigned if (may_write and line.args) or arg.text.startswith(_RUN_LATER)]
        for word in dict.fromkeys((*(words if may_write else ()), *assigned)):
            self.word(word, bases)
        if may_write and line.args:
            self._writer(bases, asks=effects.may_write and not exact)
        written = [write.path for write in effects.writes]
        for path in written:
            if not path.static or None in bases:
                self.word(path, bases)
        unseen = any(guard.unseen for guard in effects.guards)
        anywhere = None in bases and changes
        unknown = unseen or anywhere or (may_write and not _all_static(words))
        if unknown or (_all_static(written) and self._may_be_written(line)):
            self.whole(*(file.text for file in effects.scripts))
        elif not _all_static(written):
            self.whole(raw, bases=bases)  # what it only reads may be there
        if anywhere and self._entered:
            self._add(_denial(line.plain, "the folder it works in"))
        if unseen and effects.stdin is not None:
            self.code(self._command)
        if name in _WALKERS and not self._walks:
            roots = [*effects.reads, *words, *([Arg(".")] if effects.reads_here else [])]
            self._walks = any(self._holds(root, base) for root in roots for base in filter(None, bases))
        self.writes(*(() if name in _WALKERS else written))

    def _may_be_written(self, line: CommandLine) -> bool:
        """Whether a file that the command runs is named elsewhere in the text, where it may be written."""
        named = [file.text for file in (*line.effects.runs, *(arg for arg in line.args[:1] if "/" in arg.text))]
        found = any(self._command.count(name.rpartition("/")[2]) > 1 for name in named)
        return found or any(name in self._command for sought in line.effects.sought for name in sought.names)

    def word(self, word: Arg, bases: Bases) -> None:
        """Look at what a word of a program that may write can name, in each of the folders."""
        for text in self._spellings(word, bases):
            self.text(text, bases)

    def whole(self, *without: str, bases: Bases = UNKNOWN) -> None:
        """Look through the whole command: a part of it may write what another part names."""
        text = self._command
        for part in without if len(self._whole) < MAX_WHOLE else ():
            text = text.replace(part, "", 1)
        if (text, bases) not in self._whole:
            self._whole.add((text, bases))
            self.text(text, bases)
            self.text(_QUOTES.sub("", text), bases)

    def code(self, text: str) -> None:
        """Look at code in another language, which may put the path together."""
        if text in self._read_as_code:
            return
        self._read_as_code.add(text)
        self.text(text)
        home, name = _HOME_IN_CODE.search(text), rf"{self._name}(?![\w-])"
        after_home = home is not None and re.compile(rf"[/\"']{name}").search(text, home.end())
        if after_home or re.search(rf"[\"']/{name}", text):
            self._add(_denial(text, "this code"))

    def text(self, text: str, bases: Bases = UNKNOWN) -> None:
        """Look in a text that was not understood for paths in the folder, as if they were written to."""
        if self._follows_unknown(text):
            self._add(_denial(text, text))
        tokens = (token.group() for token in _TOKENS.finditer(text))
        for path in (path for token in tokens for path in _paths_in_word(token) if self._may_be_path(path)):
            if (path, bases) in self._looked:
                continue
            if len(self._looked) == MAX_LOOKED:
                reason = f"the command names more than {MAX_LOOKED:,} paths; not all of them were looked at"
                self._add(Judgement("bash", "shell:…", "ask", reason, bypass="never"))
                return
            self._looked.add((path, bases))
            for part in filter(None, (self._limit(path, base or self._folder) for base in bases)):
                self._add(part._replace(reason=f"{part.reason}; this command may do more than read it"))
                break

    def _limit(self, path: str, base: str) -> Judgement | None:
        """Return the denial of what may be a path in the folder."""
        user_home = self._resolve("~", "read", None).path or ""
        part = judge_pattern(self._policy, user_home, path if path[:1] in "~/$" else f"{base}/{path}")
        target = self._resolve(path, "read", base)
        if part is not None or target.error is None:
            return part or hard_limit(self._policy, target, "edit", whole=False)
        return _denial(path, path) if re.search(rf"/{self._name}(?:/|\Z)", path, re.IGNORECASE) else None

    def _writer(self, bases: Bases, *, asks: bool) -> None:
        """Judge where a command works that may change what is there: never in the folder, be it the vault or not.

        :param asks: its words may be names of files there, so it asks where those of that folder run later.
        """
        for base in filter(None, bases):
            here = hard_limit(self._policy, self._resolve(".", "read", base), "edit", whole=False)
            if here is not None:
                self._add(here)
            elif asks and base != str(self._policy.vault):
                asked = judge_file(self._policy, self._resolve("any file", "read", base), "edit", whole=False)
                self._add(with_target(asked._replace(remember=None))) if asked.decision == "ask" else None

    def writes(self, *paths: Arg) -> None:
        """Note what is written that is known only when it runs: a walk that begins above the folder may have found it."""
        self._writes_found |= any(map(self._may_be_found, paths))
        if self._walks and self._writes_found:
            self._add(_denial("*", "what is found there"))

    def _may_be_found(self, path: Arg) -> bool:
        """Whether what is written may be what the command finds: not where only variables decide that it does not set."""
        if path.static:
            return False
        names = {found.group(1) or found.group(2) for found in _PLAIN_VARIABLE.finditer(path.text)}
        if not names or names & _SET_BY_READING or _UNKNOWN_PART.search(_PLAIN_VARIABLE.sub("", path.text)):
            return True
        return any(re.search(rf"(?<![\w$])(?<!\$\{{){name}\b", self._command) for name in names)

    def _holds(self, path: Arg, base: str) -> bool:
        text = HOME.sub("~", path.text)
        if not text or not (path.static or text == "~"):
            return self._follows_unknown(text)
        target = self._resolve(path.path if path.static else text, "read", base)
        return target.error is None and hard_limit(self._policy, target, "edit", whole=True) is not None

    @cached_property
    def _name(self) -> str:
        """An expression for the name of the folder; with that of the folder above it where it is a name like any other."""
        home = self._policy.home
        return re.escape(home.name if home.name.startswith(".") else f"{home.parent.name}/{home.name}")

    @cached_property
    def _entered(self) -> bool:
        """Whether the command moves into the folder, or one below it, from where it is."""
        return re.search(rf"\b(?:cd|pushd)\s+(?:-\S+\s+)*[\"']?(?:\./)?{self._name}(?![\w-])", self._command) is not None

    @cached_property
    def _named(self) -> re.Pattern[str]:
        """An expression for the name of the folder below another one."""
        return re.compile(rf"(?:[/}})`]|\$\w+){self._name}(?=[/\"';]|\Z)", re.IGNORECASE)

    def _follows_unknown(self, text: str) -> bool:
        """Whether the name of the folder stands below what is known only when the command runs."""
        if not self._named.search(text):
            return False
        words = ((word, _UNKNOWN_PART.search(word)) for word in _HERE.sub(".", text).split())
        return any(found and self._named.search(word, found.start()) for word, found in words)

    def _may_be_path(self, word: str) -> bool:
        return "/" in word or word[:1] in ("~", ".") or word.lower() == self._policy.home.name.lower()

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        """The words that may be values of the variables which the command sets."""
        found: dict[str, list[str]] = {}
        for assigned in _ASSIGNED.finditer(self._command):
            found.setdefault(assigned.group(1), []).extend(_QUOTES.sub("", assigned.group(2)).split()[:MAX_VALUES] or [""])
        return found

    def _spellings(self, word: Arg, bases: Bases) -> Iterator[str]:
        """Yield a word, without its backslashes too; one that is known only when it runs with the values of its variables."""
        text = word.text
        if word.static:
            yield from (_QUOTES.sub("", text),) if "\\" in text else ()
            yield text if None not in bases or text[:1] in "/~" else f"$0/{text}"
            return
        yield text
        names = {found.group(1) or found.group(2) for found in _VARIABLE.finditer(text)}
        known = [name for name in sorted(names) if name in self._values]
        choices = [dict.fromkeys(self._values[name]) for name in known]
        for values in islice(product(*choices), MAX_VALUES) if known else ():
            filled = dict(zip(known, values, strict=True))
            yield _VARIABLE.sub(lambda found, to=filled: to.get(found.group(1) or found.group(2), found.group()), text)


def _all_static(words: list[Arg]) -> bool:
    return all(word.static for word in words)


def _denial(target: str, shown: str) -> Judgement:
    reason = f"{shown if len(shown) < 80 else 'a word'} may name what is Moryflow's own; no tool changes it, in any mode"
    step = "name the file without variables"
    return Judgement("edit", f"fs:{target[:200]}", "deny", reason, "hard_limit", "never", next_step=step)


_expanded = lru_cache(maxsize=64)(os.path.expanduser)  # a name that nobody has stays as it is


def _paths_in_word(word: str) -> Iterator[str]:
    """Yield what may be a path in a word: ``-v ~/a:/b`` names two, ``-o~/a`` and ``--to=~/a`` one."""
    attached = _ATTACHED.match(word)
    pieces = (word, word[attached.end() :] if attached else word, *_JOINTS.split(word, maxsplit=MAX_PIECES))
    for text in dict.fromkeys((*pieces, *addressed_files(word))):
        path = _CWD.sub(".", _ROOT.sub("/", HOME.sub("~", text)))
        if path.startswith("~+"):
            path = f".{path[2:]}"
        elif path.startswith("~") and not path.startswith("~/"):
            name, slash, rest = path.partition("/")
            path = f"{_expanded(name)}{slash}{rest}"
        yield path

"""Moryflow's own folder: a command that visibly may change it is denied, in every mode.

Programs that only read are not examined here. For a program that may write, every word counts as a path that it may write.
In a word with variables, a variable that the command assigns stands for each assigned value, and any other part for any folder.
Only what the text of a command shows can be found this way; the rest is up to the sandbox.
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
"""How many paths of a command are checked here; a command with more of them is asked about in every mode."""

MAX_VALUES = 64
"""How many spellings of one word are checked, with the values of its variables filled in."""

MAX_WHOLE = 16
"""How many times the command is searched with one of its parts left out."""

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
"""Variables that ``read`` and ``mapfile`` set without naming them."""
_HOME_IN_CODE = re.compile(r"\bHOME\b(?!/)|(?i:home(?:dir)?\()|\.home\b|expanduser|[\"']~")
_RUN_LATER = ("GIT_", "PAGER=", "MANPAGER=", "LESSOPEN=", "EDITOR=", "VISUAL=", "PROMPT_COMMAND=", "PS4=", "BASH_ENV=")
"""Beginnings of assignments whose value may be run, or may name files to change, whatever the command is."""

_WALKERS = frozenset({"find", "gfind", "bfs", "fd", "fdfind", "grep", "egrep", "fgrep", "rg", "ag", "ack"})


class OwnFolder:
    """Judges a command that starts in `folder`; `resolve` resolves a path for reading, `add` takes each judgement."""

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

    def check_line(self, line: CommandLine, bases: Bases, raw: str, *, exact: bool) -> None:
        """Deny a command that may change the folder: through a word of a program that may write, or without naming it."""
        name, effects = name_of(line.args), line.effects
        may_write = (effects.may_write or bool(effects.guards) or not effects.known) and not is_own(name)
        changes = may_write or bool(effects.writes)
        if not (changes or effects.guards or line.assigned or name in _WALKERS):
            return
        inside = {id(word) for inner in effects.inner for word in inner.args}
        inside |= {id(file) for file in effects.scripts} | effects.harmless  # scripts are read and run, not written
        words = [arg for place, arg in enumerate(line.args) if place and id(arg) not in inside]
        assigned = [arg for arg in line.assigned if (may_write and line.args) or arg.text.startswith(_RUN_LATER)]
        for word in dict.fromkeys((*(words if may_write else ()), *assigned)):
            self.check_word(word, bases)
        if may_write and line.args:
            self._writer(bases, asks=effects.may_write and not exact)
        written = [write.path for write in effects.writes]
        for path in written:
            if not path.static or None in bases:
                self.check_word(path, bases)
        unseen = any(guard.unseen for guard in effects.guards)
        anywhere = None in bases and changes
        unknown = unseen or anywhere or (may_write and not _all_static(words))
        if unknown or (_all_static(written) and self._may_be_written(line)):
            self.check_whole(*(file.text for file in effects.scripts))
        elif not _all_static(written):
            self.check_whole(raw, bases=bases)  # without this command: it may read files in the folder
        if anywhere and self._entered:
            self._add(_denial(line.plain, "the folder it works in"))
        if unseen and effects.stdin is not None:
            self.check_code(self._command)
        if name in _WALKERS and not self._walks:
            roots = [*effects.reads, *words, *([Arg(".")] if effects.reads_here else [])]
            self._walks = any(self._holds(root, base) for root in roots for base in filter(None, bases))
        self.check_writes(*(() if name in _WALKERS else written))

    def _may_be_written(self, line: CommandLine) -> bool:
        """Whether a file that the command runs is also named elsewhere in the text, which may be where it is written."""
        named = [file.text for file in (*line.effects.runs, *(arg for arg in line.args[:1] if "/" in arg.text))]
        found = any(self._command.count(name.rpartition("/")[2]) > 1 for name in named)
        return found or any(name in self._command for sought in line.effects.sought for name in sought.names)

    def check_word(self, word: Arg, bases: Bases) -> None:
        """Deny a word of a program that may write if it may name a path in Moryflow's folder, from any of `bases`."""
        for text in self._spellings(word, bases):
            self.check_text(text, bases)

    def check_whole(self, *without: str, bases: Bases = UNKNOWN) -> None:
        """Search the whole command, without the parts `without`: one part may write the file that another part names."""
        text = self._command
        for part in without if len(self._whole) < MAX_WHOLE else ():
            text = text.replace(part, "", 1)
        if (text, bases) not in self._whole:
            self._whole.add((text, bases))
            self.check_text(text, bases)
            self.check_text(_QUOTES.sub("", text), bases)

    def check_code(self, text: str) -> None:
        """Search code in another language, which may build the path from pieces."""
        if text in self._read_as_code:
            return
        self._read_as_code.add(text)
        self.check_text(text)
        home, name = _HOME_IN_CODE.search(text), rf"{self._name}(?![\w-])"
        after_home = home is not None and re.compile(rf"[/\"']{name}").search(text, home.end())
        if after_home or re.search(rf"[\"']/{name}", text):
            self._add(_denial(text, "this code"))

    def check_text(self, text: str, bases: Bases = UNKNOWN) -> None:
        """Search a text that was not understood for paths in the folder; each counts as written."""
        if self._follows_unknown(text):
            self._add(_denial(text, text))
        tokens = (token.group() for token in _TOKENS.finditer(text))
        for path in (path for token in tokens for path in _paths_in_word(token) if self._may_be_path(path)):
            if (path, bases) in self._looked:
                continue
            if len(self._looked) == MAX_LOOKED:
                reason = f"the command names more than {MAX_LOOKED:,} paths; not all of them were checked"
                self._add(Judgement("bash", "shell:…", "ask", reason, bypass="never"))
                return
            self._looked.add((path, bases))
            for part in filter(None, (self._limit(path, base or self._folder) for base in bases)):
                self._add(part._replace(reason=f"{part.reason}; this command may do more than read it"))
                break

    def _limit(self, path: str, base: str) -> Judgement | None:
        """Return the denial if `path` may be in the folder; else ``None``."""
        user_home = self._resolve("~", "read", None).path or ""
        part = judge_pattern(self._policy, user_home, path if path[:1] in "~/$" else f"{base}/{path}")
        target = self._resolve(path, "read", base)
        if part is not None or target.error is None:
            return part or hard_limit(self._policy, target, "edit", whole=False)
        return _denial(path, path) if re.search(rf"/{self._name}(?:/|\Z)", path, re.IGNORECASE) else None

    def _writer(self, bases: Bases, *, asks: bool) -> None:
        """Judge the folders in which a command that may write works; Moryflow's own is denied even if it is the vault.

        :param asks: ask about a folder other than the vault in which changing a file is asked about.
        """
        for base in filter(None, bases):
            here = hard_limit(self._policy, self._resolve(".", "read", base), "edit", whole=False)
            if here is not None:
                self._add(here)
            elif asks and base != str(self._policy.vault):
                asked = judge_file(self._policy, self._resolve("any file", "read", base), "edit", whole=False)
                self._add(with_target(asked._replace(remember=None))) if asked.decision == "ask" else None

    def check_writes(self, *paths: Arg) -> None:
        """Deny paths that are known only at run time, if the command also walks a folder that holds Moryflow's own.

        The walk (``find``, ``grep``) may have found a path in Moryflow's folder.
        """
        self._writes_found |= any(map(self._may_be_found, paths))
        if self._walks and self._writes_found:
            self._add(_denial("*", "what is found there"))

    def _may_be_found(self, path: Arg) -> bool:
        """Whether `path` may be a result of a walk: not if it depends only on variables that the command never sets."""
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
        """A regular expression for the folder's name, with its parent's name in front if it does not begin with a dot."""
        home = self._policy.home
        return re.escape(home.name if home.name.startswith(".") else f"{home.parent.name}/{home.name}")

    @cached_property
    def _entered(self) -> bool:
        """Whether the command changes into the folder, or below it, by its name alone (``cd .moryflow``)."""
        return re.search(rf"\b(?:cd|pushd)\s+(?:-\S+\s+)*[\"']?(?:\./)?{self._name}(?![\w-])", self._command) is not None

    @cached_property
    def _named(self) -> re.Pattern[str]:
        """A regular expression for the folder's name as a part of a path."""
        return re.compile(rf"(?:[/}})`]|\$\w+){self._name}(?=[/\"';]|\Z)", re.IGNORECASE)

    def _follows_unknown(self, text: str) -> bool:
        """Whether the folder's name follows a part of a path that is known only at run time (``$x/.moryflow``)."""
        if not self._named.search(text):
            return False
        words = ((word, _UNKNOWN_PART.search(word)) for word in _HERE.sub(".", text).split())
        return any(found and self._named.search(word, found.start()) for word, found in words)

    def _may_be_path(self, word: str) -> bool:
        return "/" in word or word[:1] in ("~", ".") or word.lower() == self._policy.home.name.lower()

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        """The words that may be values of each variable that the command sets."""
        found: dict[str, list[str]] = {}
        for assigned in _ASSIGNED.finditer(self._command):
            found.setdefault(assigned.group(1), []).extend(_QUOTES.sub("", assigned.group(2)).split()[:MAX_VALUES] or [""])
        return found

    def _spellings(self, word: Arg, bases: Bases) -> Iterator[str]:
        """Yield the texts that a word may stand for: without backslashes, and with the values of its variables."""
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
    reason = (
        f"{shown if len(shown) < 80 else 'a word'} may be a path in Moryflow's own folder, which no tool may change in any mode"
    )
    step = "name the file without variables"
    return Judgement("edit", f"fs:{target[:200]}", "deny", reason, "hard_limit", "never", next_step=step)


_expanded = lru_cache(maxsize=64)(os.path.expanduser)  # ``~name`` of an unknown user stays as it is


def _paths_in_word(word: str) -> Iterator[str]:
    """Yield the parts of a word that may be paths: ``~/a:/b`` holds two, ``-o~/a`` and ``--to=~/a`` one."""
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

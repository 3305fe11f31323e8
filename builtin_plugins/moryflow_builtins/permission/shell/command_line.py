"""One simple command as rules see it: what a rule has to spell out to cover it, and the state of the files that it runs.

The last section finds misleading characters, and commands that may hide in a text that is not understood.
"""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk import Remember, Rule
from moryflow_sdk.calls import UNKNOWN_FOLDER
from moryflow_sdk.support.patterns import Pattern, compile_rule, escape

from moryflow_builtins.permission.policy import CompiledRule, Judgement, RuleHit, stored_rule_answers

from .effects import CommandEffects, SoughtFiles, UncoveredWords
from .inspect import basename, name_of
from .parser import parse
from .programs import PROGRAMS
from .syntax import Arg, NotParsed, Simple, Word, argument, arguments

_NAMED = re.compile(r"[\w@%+=:,./~-]+(?: |\Z)", re.ASCII)
"""A pattern that begins with a whole word."""

_INSIDE = "\ue000"
"""Stands for white space inside a word, so that a blank in a rule only matches between two words."""

_SAFE = re.compile(r"[\w@%+=:,./^~-]+", re.ASCII)
_SAFE_LINE = re.compile(r"[\w@%+=:,./^ -]*", re.ASCII)
_PROGRAM = re.compile(r"[\w@%+=:,./~\[-]+", re.ASCII)


class CommandPlace(NamedTuple):
    """Where a command runs.

    :param folder: the folder as rules name it, for example ``vault:/sub``.
    :param lapsed: returns which file changed since a rule was stored; empty when none did.
    :param named: returns the canonical name of a folder that a rule names by a link or as ``fs:/…/vault``.
    """

    folder: str
    lapsed: Callable[[Rule], str]
    named: Callable[[str], str]

    def is_meant_by(self, rule: Rule) -> bool:
        """Whether `rule` is about this folder; if the folder is unknown, every rule that asks or denies is."""
        if rule.folder is None or rule.folder == self.folder or rule.decision == "allow":
            return rule.folder == self.folder
        return self.folder == UNKNOWN_FOLDER or self.named(rule.folder) == self.folder


class CommandLine:
    """A command: assignments that change something, then its words.

    :ivar words: everything that a rule has to cover.
    :ivar plain: the words with quotes removed and one space between them.
    :ivar quoted: the words as a person would type them; two different commands never look the same.
    :ivar views: every spelling that a rule which asks or denies may use for this command.
    """

    __slots__ = ("_firm", "_typed", "args", "assigned", "effects", "plain", "quoted", "views", "words")

    def __init__(self, assigned: tuple[Arg, ...], args: tuple[Arg, ...], effects: CommandEffects, raw: str) -> None:
        self.assigned = assigned
        self.args = args
        self.effects = effects
        self.words = (*assigned, *args) if assigned else args
        self.plain = " ".join([word.text for word in self.words])
        one_each = self.plain.count(" ") == len(self.words) - 1 and all(word.text for word in self.words)
        simple = one_each and _SAFE_LINE.fullmatch(self.plain) is not None
        texts = [word.text for word in self.words]
        typed = texts if simple else [*map(_quote_assignment, assigned), *map(quote, args)]
        self._typed = tuple(typed)
        self.quoted = " ".join(typed)
        self._firm = self.plain if simple else " ".join([_joined_inside(word.text) for word in self.words])
        self.views = tuple(dict.fromkeys((self.plain, self.quoted, raw, *self._other_views())))

    def _other_views(self) -> Iterator[str]:
        """Yield the command without assignments, without the folder of its program, and as :attr:`CommandEffects.views`."""
        rest = [word.text for word in self.args[1:]]
        name = name_of(self.args)
        if self.assigned and self.args:
            yield " ".join((self.args[0].text, *rest))
        if name and name != self.args[0].text:
            yield " ".join((name, *rest))
        for view in self.effects.views:
            yield " ".join((basename(view[0]), *[word.text for word in view[1:]]))

    @property
    def disguised(self) -> Iterator[str]:
        """The commands that this one may really be (``RM``, ``rm.exe``), or that an unknown program may run from its words."""
        name, rest = name_of(self.args), [word.text for word in self.args[1:]]
        for spelling in sorted({name.lower(), name.partition(".")[0]} - {name, ""}):
            yield " ".join((spelling, *rest))
        if self.effects.known or not self.args:
            return
        few = rest[:MAX_WORDS]
        yield from (" ".join(rest[index : index + MAX_WORDS]) for index in range(len(few)))
        paths = ((index, word.rpartition("/")) for index, word in enumerate(few))
        yield from (
            " ".join((base, *rest[index + 1 : index + MAX_WORDS])) for index, (_, slash, base) in paths if slash and base
        )
        yield from (" ".join((name, *rest[index : index + MAX_WORDS])) for index in _operand_starts(few))
        for before, word in zip(("", *few), few, strict=False):
            if " " in word and not _PROSE.fullmatch(before) and not _PROSE.fullmatch(word):
                yield from rough_commands(_INTRODUCES.sub(";", word[2:] if _LETTER.match(word) else word))

    @property
    def programs(self) -> set[str]:
        """The words that a rule about this command may begin with."""
        return {view.partition(" ")[0] for view in (*self.views, self._firm)}

    def probe(self, compiled: CompiledRule, where: CommandPlace) -> RuleHit | None:
        """Return what a rule decides about this command in a folder; an allow that does not cover all of it asks."""
        rule, pattern = compiled.rule, compiled.pattern
        if rule.folder is not None and not where.is_meant_by(rule):
            return None
        if rule.decision != "allow":
            matched = any(pattern.matches(f"shell:{view}") for view in self.views)
            return RuleHit(rule, rule.decision) if matched else None
        matched = self._match(pattern)
        if matched is None:
            return None
        why = self.why_uncovered(pattern, matched)
        if not why and rule.contents and where.lapsed(rule):
            return None
        return RuleHit(rule, "ask", why) if why else RuleHit(rule, "allow")

    def why_not_allowed(self, compiled: CompiledRule, where: CommandPlace) -> RuleHit | None:
        """Return why a stored rule that names this command does not allow it: another folder, or a file has changed."""
        rule = compiled.rule
        if rule.decision != "allow" or not (rule.folder or rule.contents):
            return None
        matched = self._match(compiled.pattern)
        if matched is None or self.why_uncovered(compiled.pattern, matched):
            return None
        if rule.folder is not None and not where.is_meant_by(rule):
            return RuleHit(rule, "ask")
        why = where.lapsed(rule)
        return RuleHit(rule, "ask", why) if why else None

    def grant_for(self, inner: Sequence[Arg], rules: Sequence[Rule | None]) -> CompiledRule | None:
        """Return the part for the inner command of a rule that allows this one: ``make *`` from ``timeout 9 make *``.

        The rule has to name the inner program: ``timeout *`` allows none. An exact rule gives nothing, because a command
        that is allowed word for word is allowed with everything that it runs.
        """
        start = len(self.words) - len(inner)
        rule = rules[0] if len(set(rules)) == 1 else None
        if rule is None or rule.decision != "allow" or start < 1 or self.words[start:] != tuple(inner):
            return None
        before = " ".join(self._typed[:start])
        rest = rule.pattern.removeprefix(f"{before} ")
        part = rule.replace(pattern=rest)
        compiled = compile_rule(part)
        if rest == rule.pattern or compiled.exact or not _NAMED.match(rest):
            return None
        return CompiledRule(part, compiled)

    def _match(self, pattern: Pattern) -> tuple[str, ...] | None:
        """Return the words in the spelling that the pattern matched; ``None`` when it matches none."""
        if pattern.exact and not pattern.literal.startswith(" "):
            same = words_of_rule(pattern.literal) == tuple(word.text for word in self.words)
            plain = pattern.literal == self.plain and not any(_INSIDE in _joined_inside(w.text) for w in self.words)
            return tuple(word.text for word in self.words) if same or plain else None
        if pattern.matches(f"shell:{self._firm}"):
            return tuple(_joined_inside(word.text) for word in self.words)
        if pattern.matches(f"shell:{self.quoted}"):
            return self._typed
        return None

    def why_uncovered(self, pattern: Pattern, matched: Sequence[str]) -> str:
        """Return why an allow whose pattern matched does not cover the whole command; empty when it does."""
        dynamic = next((word.why for word in self.words if word.why), "")
        if dynamic:
            return dynamic
        for guard in self._guards:
            if guard.unseen:
                return guard.why
            end = len(" ".join(matched[: guard.place + 1]))
            if not pattern.exact and len(pattern.literal) < end:
                return guard.why
        if not pattern.exact and self.args and not _PROGRAM.fullmatch(self.args[0].text):
            return f"{self.args[0].text!r} is an unusual name for a program"
        return ""

    @property
    def _guards(self) -> tuple[UncoveredWords, ...]:
        if not self.assigned:
            return tuple(self.effects.guards)
        shift = len(self.assigned)
        own = (UncoveredWords(guard.place + shift, guard.why, guard.unseen) for guard in self.effects.guards)
        names = ((index, word.text.partition("=")[0]) for index, word in enumerate(self.assigned))
        return (*(UncoveredWords(index, f"{name}=… changes how the command runs") for index, name in names), *own)


_EXACT = Pattern(lambda _: True, exact=True)


def quote(word: Arg) -> str:
    """Return a word as it would be typed."""
    text = word.text
    if word.why or (_SAFE.fullmatch(text) and (not text.startswith("~") or word.tilde)):
        return text
    return text if text in ("[", "[[", "]", "]]", "{}", "!") else "'" + text.replace("'", "'\\''") + "'"


def _quote_assignment(word: Arg) -> str:
    name, sign, value = word.text.partition("=")
    return word.text if word.why or not value else name + sign + quote(Arg(value))


def _joined_inside(text: str) -> str:
    return re.sub(r"\s", _INSIDE, text) or _INSIDE


@lru_cache(maxsize=1024)
def words_of_rule(text: str) -> tuple[str, ...] | None:
    """Return the words of an exact rule, or ``None`` when its text is not one plain command."""
    try:
        script, _ = parse(text)
    except NotParsed:
        return None
    commands = [command for chain in script.chains for pipe in chain.pipelines for command in pipe.commands]
    if len(commands) != 1 or not isinstance(commands[0], Simple) or commands[0].redirects:
        return None
    words = (*assignments(commands[0]), *arguments(commands[0].words))
    return tuple(word.text for word in words) if all(word.static for word in words) else None


def assignments(command: Simple) -> Iterable[Arg]:
    """Yield the assignments in front of a command as words."""
    for item in command.assignments:
        if len(item.words) != 1 or item.words[0].raw == item.raw:
            yield Arg(item.raw, "it assigns an array")
            continue
        value = argument(item.words[0])
        head = item.raw[: len(item.raw) - len(item.words[0].raw)]
        why = value.why or (f"{item.name} is assigned a path of the home folder" if value.tilde else "")
        yield Arg(head + value.text, why)


def standard_input(command: Simple) -> tuple[Word | None, Arg | None]:
    """Return the text, or the file, that the last redirection of standard input feeds into a command."""
    inputs = [r for r in command.redirects if r.operator.startswith("<") and r.descriptor in ("", "0")]
    if not inputs:
        return None, None
    return next(iter(inputs[-1].body), None), argument(inputs[-1].target) if inputs[-1].operator == "<" else None


def rule_to_remember(line: CommandLine, answer: Judgement, folder: str, contents: Mapping[str, str] | None) -> Remember | None:
    """Return the rule that *always* stores for a command, or ``None`` when no stored rule could answer the question.

    :param contents: the state of the files that the command runs; ``None`` when it is unknown.
    """
    if not stored_rule_answers(answer) or contents is None or not folder.isprintable():
        return None
    if not line.words or any("\n" in word.text for word in line.words) or line.why_uncovered(_EXACT, ()):
        return None
    bound_to = {"folder": folder, "contents": contents}
    return Remember(scope="user", domain="bash", pattern=escape(line.quoted), wider=_wider(line), **bound_to)


def _wider(line: CommandLine) -> str:
    """Return a wider pattern to offer (``git log *``), if it covers only plain words of one program; else nothing."""
    name = line.args[0].text if line.args else ""
    if line.assigned or line.effects.guards or line.effects.inner or line.effects.texts or name not in _WIDENED:
        return ""
    if name not in _WITH_VERBS:
        return f"{name} *"
    verb = line.args[1].text if len(line.args) > 1 else ""
    return f"{name} {verb} *" if _VERB.fullmatch(verb) else ""


_WITH_VERBS = frozenset({"git", "npm", "pnpm", "yarn", "cargo", "go", "docker", "kubectl", "gh", "uv", "poetry", "pip", "make"})
_WIDENED = _WITH_VERBS | {name for name, (operands, _) in PROGRAMS.items() if operands[0] in "rp-"}
"""Programs that read; a pattern for those that change files is not offered."""

_VERB = re.compile(r"[a-z][a-z0-9-]*")


ABSENT = "absent"
MAX_BYTES = 64 * 1024 * 1024
"""A larger file is not hashed, so no rule is stored for a command that runs it."""

_JUST_NOW = 100_000_000
"""Nanoseconds in which a file may be written twice with the same time of change; so fresh a digest is not cached."""

_known: dict[tuple[str, int, int, int, int], str] = {}
_MOST_KNOWN = 256


def contents_of(
    args: Sequence[Arg], effects: CommandEffects, base: str | None, inner: str | None, vault: str
) -> dict[str, str] | None:
    """Return the state of every file whose content `args` run; ``None`` when the state of one is unknown.

    :param base: the folder that the path of the program starts from; `inner`: the folder that the program works in.
    """
    found: dict[str, str] = {}
    named = [(args[0], base)] if args and "/" in args[0].text else []
    for word, folder in (*named, *((word, inner) for word in effects.runs)):
        if word.static and (folder or word.tilde or word.text.startswith("/")):
            path = os.path.join(folder or "/", Path(word.text).expanduser() if word.tilde else word.text)  # noqa: PTH118
            state = state_of(path, vault)
            found |= {} if state == f"is:{path}" else {rule_name(path, vault): state}
        else:
            return None
    for sought in effects.sought:
        if inner is None:
            return None
        found.update(_sought_states(sought, inner, vault))
    return None if "" in found.values() else found


def _sought_states(sought: SoughtFiles, folder: str, vault: str) -> Iterator[tuple[str, str]]:
    """Yield the state of the file that a program finds by itself, and of those that it would find first if they existed."""
    folders = [folder]
    while sought.upward and folders[-1].startswith(f"{vault}/"):
        folders.append(folders[-1].rpartition("/")[0])
    for path in (f"{place}/{name}" for place in folders for name in sought.names):
        state = state_of(path, vault)
        yield rule_name(path, vault), state
        if state != ABSENT and not sought.every:
            return


def changed_file(contents: Mapping[str, str], vault: str) -> str:
    """Return which file of `contents` has changed, and how; empty when none has."""
    for name, then in contents.items():
        now = state_of(path_in_rule(name, vault), vault)
        if now != then:
            return f"{name} {'did not exist before' if then == ABSENT else 'is gone' if now == ABSENT else 'has changed'}"
    return ""


def rule_name(path: str, vault: str) -> str:
    """Return `path` as rules write it, without resolving it: a link or ``..`` in it may lead elsewhere tomorrow."""
    while "/./" in path:
        path = path.replace("/./", "/")
    return f"vault:{path[len(vault) :]}" if path.startswith(f"{vault}/") else f"fs:{path}"


def path_in_rule(name: str, vault: str) -> str:
    kind, _, rest = name.partition(":")
    return f"{vault}{rest}" if kind == "vault" else rest


def state_of(path: str, vault: str) -> str:
    """Return the state of the file that `path` leads to; empty when it cannot be determined.

    The state is :data:`ABSENT`, ``is:PATH`` for a file outside the vault that only root can change, or the SHA-256 digest.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except (OSError, ValueError):
        return ""
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):  # ``python folder`` runs its __main__.py
            return state_of(f"{path}/__main__.py", vault)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            return ""
        real = os.path.realpath(path)
        if found.st_uid == 0 and not found.st_mode & 0o022 and not real.startswith(f"{vault}/"):
            return f"is:{real}"
        return _digest(descriptor, path, found)
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _digest(descriptor: int, path: str, found: os.stat_result) -> str:
    key = (path, found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
    if key not in _known:
        whole = sha256()
        while piece := os.read(descriptor, 1 << 20):
            whole.update(piece)
        state = f"sha256:{whole.hexdigest()}"
        if time.time_ns() - found.st_ctime_ns < _JUST_NOW:
            return state
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = state
    return _known[key]


# ---------------------------------------------------------------- misleading characters, hidden commands

_ODD = re.compile(r"[^\t\n -~]")
_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
_LIKE_SIGNS = frozenset(
    "\u02c6\u02cb\u02dc\u02f8\u01c0\u0296\u2016\u2032\u2033\u2035\u2044\u204f\u2212\u2215\u2216\u2217\u2223\u223c\u2236\u2758\u27cb\u29f5\u29f8\u29f9\u3008\u3009\ua789\u2028"
)
"""Letters and signs that a person takes for a dash, a quote, a slash, a bar, a star or a semicolon."""

_SHELL_SIGNS = frozenset(";|&<>()$`\"'\\{}~*?[]!#=- /")


def odd_character(text: str, quoted: Sequence[tuple[int, int]]) -> str:
    """Return the first misleading character of `text` that is not inside one of the `quoted` spans; else nothing.

    Misleading are control characters, characters that reverse or hide text, blanks that a shell does not take for
    blanks, and look-alikes of the signs of a shell.
    """
    if not _ODD.search(text):
        return ""
    spans = sorted(quoted)
    starts = [start for start, _ in spans]
    for found in _ODD.finditer(text):
        before = bisect_right(starts, found.start()) - 1
        inside = before >= 0 and found.start() < spans[before][1]
        if not inside and is_misleading(found.group()):
            return found.group()
    return ""


def is_misleading(char: str) -> bool:
    """Whether `char` is invisible, reverses the text around it, or looks like a sign of the shell."""
    category = unicodedata.category(char)
    if category[0] in "CZ" or char in _LOOKS_EMPTY or "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        return True
    if category in ("Pd", "Pi", "Pf") or char in _LIKE_SIGNS:
        return not char.isascii()
    return not char.isascii() and any(part in _SHELL_SIGNS for part in unicodedata.normalize("NFKC", char))


def character_name(char: str) -> str:
    """Return the code point and the Unicode name of a character."""
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".strip()


_CUTS = re.compile(r"[;&|\n(){}`]|\$\(")
_QUOTED = re.compile(r"([\"'])(.*?)\1", re.DOTALL)
_QUOTES = re.compile(r"[\"'\\]")
_LEADING = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "time", "exec", "command", "eval", "coproc"})
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=|\d*[<>]+.")
_INTRODUCES = re.compile(r"[:=!%,]")
_LETTER = re.compile(r"-[A-Za-z](?=[^= ])")
_PROSE = re.compile(r"--?(?:m|message|title|body|notes?|description|comment|subject|text)(?:=.*)?", re.DOTALL)
"""Options whose value is read by people."""

MAX_WORDS = 64
"""How many words of an unknown program are tried as commands."""


def rough_commands(text: str) -> Iterator[str]:
    """Yield the parts of `text` that may be commands, without quotes, keywords and assignments."""
    text = text.replace("\\\n", "").replace("{}", "_")
    quoted = (found.group(2) for found in _QUOTED.finditer(text))
    for piece in (*_CUTS.split(text), *(piece for inner in quoted for piece in _CUTS.split(inner) if " " in piece)):
        words = _QUOTES.sub("", piece).split()
        while words and (words[0] in _LEADING or _ASSIGNED.match(words[0])):
            words.pop(0)
        if words:
            yield " ".join(words)
            name = words[0].rpartition("/")[2]
            if name and name != words[0]:
                yield " ".join((name, *words[1:]))


def _operand_starts(rest: Sequence[str]) -> Iterator[int]:
    """Yield each index at which the operands may begin: it is not known which leading options take a value."""
    for index, text in enumerate(rest):
        before = rest[index - 1] if index else ""
        if index and not text.startswith("-"):
            yield index
            if not before.startswith("-"):
                return

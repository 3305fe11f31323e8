"""What the words of one command say: which options run, write or read elsewhere, what it runs, and which words are paths;
and of texts that were not read, the commands that may be in them.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .lexer import Redirect, SimpleCommand, Word
from .tables import (
    ADDS_WORDS,
    GIT_TEXTS,
    HARMLESS,
    OWN_CHANGES,
    OWN_READS,
    OWN_TURNS,
    RUNNERS,
    WRAPPERS,
    program,
)


def name_of(word: Word) -> str:
    """Return the name of a program without its folder."""
    return word.text.rstrip("/").rpartition("/")[2]


def changing(assigned: Sequence[Word]) -> tuple[Word, ...]:
    """Return the assignments that change more than how text looks."""
    return tuple(word for word in assigned if word.why or not HARMLESS.fullmatch(word.text))


def quote(word: Word) -> str:
    """Return a word as it would be typed."""
    text = word.text
    if word.why or (re.fullmatch(r"[\w@%+=:,./^~-]+", text, re.ASCII) and (not text.startswith("~") or word.tilde)):
        return text
    return text if text in ("[", "[[", "]", "]]", "{}", "!") else "'" + text.replace("'", "'\\''") + "'"


def git_place(words: Sequence[Word]) -> int:
    """Return the index of the verb of git, behind its own options."""
    place = 1
    while place < len(words) and words[place].text.startswith("-"):
        with_value = words[place].text in ("-c", "-C", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env")
        place += 2 if with_value else 1
    return min(place, len(words))


def runner_place(name: str, args: Sequence[str]) -> int:
    """Return the index, among the words of ``uv run …`` and the like, of the command that it runs; 0 if it runs none."""
    verb = RUNNERS.get(name)
    if verb is None or (verb and args[:1] != [verb]):
        return 0
    place = 1 if verb else 0
    while place < len(args) and args[place].startswith("-"):
        if args[place] == "--":
            place += 1
            break
        place += 2 if args[place] in ("--with", "--extra", "--group", "--package", "--env-file", "-n") else 1
    return place + 1 if place < len(args) else 0


def script_of(words: Sequence[Word]) -> int:
    """Return the index of the script, or of the module behind ``-m``, that an interpreter runs; 0 if there is none."""
    for place, word in enumerate(words[1:], 1):
        if word.text == "-m" and name_of(words[0]).startswith(("python", "pypy")):
            return min(place + 1, len(words) - 1)
        if not word.text.startswith("-"):
            return place
        if word.text not in ("-u", "-B", "-I", "-s", "-E", "-W", "-x", "-e"):
            return 0
        if word.text == "-e" and "shell" not in program(name_of(words[0])).kinds:
            return 0
    return 0


# ---------------------------------------------------------------- commands inside a command


def shell_text(words: Sequence[Word]) -> str | None:
    """Return the text behind ``-c`` of a shell, if it is known."""
    for place, word in enumerate(words[1:-1], 1):
        if words[place - 1].text == "-o" and word.text in ("pipefail", "errexit", "nounset", "xtrace", "noglob"):
            continue
        if not word.text.startswith(("-", "+")):
            return None
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word.text):
            # Options of the shell may stand between `-c` and the text.
            found = next((one for one in words[place + 1 : -1] if not one.text.startswith(("-", "+"))), words[-1])
            return None if found.why else found.text
        plain = ("--norc", "--noprofile", "--posix", "--login", "-o")
        if word.text not in plain and (word.text.startswith("--") or re.search("[oO]", word.text)):
            return None
    return None


def fed_text(command: SimpleCommand) -> str | None:
    """Return the text that a here-document or a here-string feeds into a command, if it is known."""
    fed = [one for one in command.redirects if one.operator in ("<<", "<<-", "<<<", "<")]
    if not fed or command.piped or fed[-1].operator == "<" or fed[-1].word.why:
        return None
    return fed[-1].body


def inner_texts(command: SimpleCommand) -> Iterator[str]:
    """Yield the shell texts that a command runs, as far as they are known."""
    words, name = command.words, name_of(command.words[0])
    texts = [word.text for word in words]
    if "shell" in program(name).kinds:
        text = shell_text(words)
        text = fed_text(command) if text is None else text
        yield from () if text is None else (text,)
    elif name == "eval":
        yield from (" ".join(texts[1:]),) if not any(word.why for word in words) else ()
    elif name in ("su", "sg", "script", "flock", "watch", "ssh", "runuser") and "-c" in texts[:-1]:
        yield texts[texts.index("-c") + 1]
    elif name == "env" and any(re.match(r"-\w*S|--split", text) for text in texts):
        yield " ".join(re.sub(r"^(?:-\w*S|--split-string=?)", "", text) for text in texts[1:])


def inner_words(command: SimpleCommand) -> Iterator[tuple[int, tuple[Word, ...], tuple[Word, ...]]]:
    """Yield the commands in the words of a command: the place where one begins, its assignments, its words."""
    words, name = command.words, name_of(command.words[0])
    texts = [word.text for word in words]
    if name in ("find", "fd", "fdfind"):
        for place, text in enumerate(texts):
            if text in ("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"):
                end = next((at for at in range(place + 1, len(texts)) if texts[at] in (";", "+")), len(texts))
                inner = tuple(
                    word._replace(why=word.why or ("a file that is found" if "{" in word.text else ""))
                    for word in words[place + 1 : end]
                )
                yield from ((place + 1, (), inner),) if inner else ()
    elif place := runner_place(name, texts[1:]):
        if re.fullmatch(r"[A-Za-z][\w-]*", texts[place]):  # not a file
            yield place, (), words[place:]
    elif name in WRAPPERS:
        letters, before = WRAPPERS[name]
        place, assigned = 1, []
        if name == "command" and texts[1:2] in (["-v"], ["-V"]):
            return
        while place < len(words):
            text = texts[place]
            if name in ("env", "sudo", "doas") and re.match(r"[A-Za-z_]\w*=", text):
                assigned += [] if HARMLESS.fullmatch(text) else [words[place]]
                place += 1
                continue
            if text == "--" or not text.startswith("-") or text == "-":
                place += text == "--"
                break
            place += 2 if len(text) == 2 and text[1] in letters else 1
        place += before
        inner = words[place:]
        if name in ADDS_WORDS:
            inner = (*inner, Word("…", "words that are known only when it runs", False)) if inner else ()
        yield from ((place, tuple(assigned), inner),) if inner else ()


# ---------------------------------------------------------------- paths


class PathWord(NamedTuple):
    """A word, or a part of one, that may name a file."""

    text: str
    tilde: bool
    why: str


_ATTACHED = re.compile(r"[=@,]|:(?!//)")


def path_words(words: Sequence[Word]) -> list[PathWord]:
    """Return every word of a command, and every part of a word, that may be a path, as the table knows its program."""
    name = name_of(words[0])
    known = program(name)
    letters = "f" if name in ("jq", "awk", "gawk", "mawk", "nawk", "yq", "fd", "fdfind") else "ef"
    given = re.compile(rf"-[A-Za-z]*[{letters}].*|--(?:files|(?:regexp|expression|file|from-file)(?:=.*)?)", re.DOTALL)
    first = "first" in known.kinds and not any(given.fullmatch(word.text) for word in words[1:])
    if name != "git":
        return list(_paths_of(words, known.texts, first=first))
    place = git_place(words)
    return [*_paths_of(words[place:], GIT_TEXTS, first=False), *_paths_of(words[:place], GIT_TEXTS, first=False)]


def _paths_of(words: Sequence[Word], texts: frozenset[str], *, first: bool) -> Iterator[PathWord]:
    """Yield every word, and every part of a word, that may be a path.

    :param texts: options whose value is a text.
    :param first: the first operand is no path.
    """
    skip = False
    for word in words[1:]:
        text = word.text
        if skip:
            skip = False
            continue
        if text in texts:
            skip = True
            first = first and text not in ("-e", "--regexp", "--expression")
            continue
        if any(text.startswith(f"{option}=") for option in texts if option.startswith("--")):
            continue
        if first and not text.startswith("-"):
            first = False
            continue
        for piece in _pieces(text):
            home = re.match(r"\$(?:HOME|\{HOME[^}$]*\})(?=/|\Z)", piece)
            if home:
                rest = piece[home.end() :]
                yield PathWord(f"~{rest}", True, word.why if re.search(r"[$`*?\[{]", rest) else "")
            elif piece == text or not piece.startswith("~"):
                yield PathWord(piece, word.tilde and piece == text, word.why)
            else:
                yield PathWord(piece, piece == "~" or piece.startswith("~/"), word.why)


def _pieces(text: str) -> list[str]:
    """Return a word and its parts that may be paths: the value of an option, and what ``=``, ``@``, ``,`` or ``:`` divide."""
    found = [text] if not text.startswith("-") else [text.partition("=")[2]] if text.startswith("--") else [text[2:]]
    parts = _ATTACHED.split(text)
    found += parts[text.startswith("-") :]
    address = re.match(r"file:(?://[^/]*)?(.*)", text, re.IGNORECASE)
    found += [address[1]] if address else []
    return [piece for piece in dict.fromkeys(found) if piece and "://" not in piece]


def operand_count(words: Sequence[Word]) -> int:
    """Return how many words are no options."""
    return sum(1 for word in words[1:] if not word.text.startswith("-"))


def foreign_repository(folder: str, vault: str) -> str:
    """Return a folder that git would take for a repository other than the vault's own; empty when there is none."""
    while len(folder) > 1:
        bare = os.path.lexists(f"{folder}/HEAD") and any(
            os.path.lexists(f"{folder}/{name}") for name in ("objects", "commondir")
        )
        if bare or (folder != vault and os.path.lexists(f"{folder}/.git") and not _is_worktree(folder, vault)):
            return folder
        if folder == vault:
            return ""
        folder = os.path.dirname(folder)  # noqa: PTH120
    return ""


def _is_worktree(folder: str, vault: str) -> bool:
    """Whether a folder is a further worktree of the vault's own repository."""
    file = Path(folder, ".git")
    return file.is_file() and file.read_bytes()[:4096].startswith(f"gitdir: {vault}/.git/worktrees/".encode())


def is_neutral_copy(redirect: Redirect) -> bool:
    """Whether a redirection only copies or closes a descriptor."""
    return redirect.operator in ("<&", ">&") and re.fullmatch(r"\d+-?|-", redirect.word.text) is not None


# ---------------------------------------------------------------- moryflow itself

_JOINTS = r"[\s\"',;\]\[()]+"


@cache
def _changes_in_text() -> re.Pattern[str]:
    verbs = (verb.split() if " " in verb else ("moryflow", verb) for verb in sorted(OWN_CHANGES))
    return re.compile("|".join(rf"\b{_JOINTS.join(verb)}\b" for verb in verbs))


def is_own(text: str) -> bool:
    """Whether a word names the program ``moryflow``."""
    return text.rstrip("/").rpartition("/")[2].lower().removesuffix(".exe") == "moryflow"


def own_change_in_text(text: str) -> str:
    """Return the command of ``moryflow`` that a text which was not read seems to run to change the user's decision."""
    if "moryflow" not in text or not re.search(r"\bmoryflow\b(?![_-])", text):
        return ""
    found = _changes_in_text().search(text)
    return re.sub(_JOINTS, " ", found.group()).removeprefix("moryflow ") if found else ""


def own_command(words: Sequence[Word]) -> tuple[str, str]:
    """Return what a command of ``moryflow`` is (``changes``, ``hidden``, ``unknown`` or ``reads``), and its words."""
    texts = [word.text for word in words[1:]]
    if texts and texts[-1] in ("--help", "-h", "--version", "-V") and not any(text.startswith("-") for text in texts[:-1]):
        return "reads", " ".join(texts[:-1])
    plain = [text for text in texts if not text.startswith("-")]
    nouns = {verb.partition(" ")[0] for verb in (*OWN_CHANGES, *OWN_READS, *OWN_TURNS)}
    plain = [text[:-1] if text not in nouns and text[:-1] in nouns else text for text in plain]
    starts = range(len(plain)) if any(text.startswith("-") for text in texts) else range(1)
    known = {tuple(verb.split()): verb for verb in (*OWN_CHANGES, *OWN_READS, *OWN_TURNS)}
    verbs = [known.get(tuple(plain[start : start + count]), "") for start in starts for count in (3, 2, 1)]
    changes = next((verb for verb in verbs if verb in OWN_CHANGES), "")
    verb = next((verb for verb in verbs if verb), "")
    if changes and (" " in changes or not verb or verb == changes):
        return "changes", changes
    whole = " ".join(texts)
    if any(verb in OWN_TURNS for verb in verbs if verb):
        if re.search(r"(?:^| )--conf", whole) or re.search(r"--mo\S*[ =]\S*full", whole):
            return "changes", f"{verb} with other rules"
        change = own_change_in_text(f"moryflow {whole}")
        if change and "--run" in whole:
            return "changes", change
    if any(word.why for word in words[1:]):
        return "hidden", verb
    return ("reads" if verb in OWN_READS and (verb or not plain) else "unknown"), verb or " ".join(plain[:2])


_CUTS = re.compile(r"[;&|\n(){}`<>]|\$\(")
_QUOTED = re.compile(r"([\"'])(.*?)\1", re.DOTALL)
_LEADING = frozenset(
    ["then", "do", "else", "elif", "if", "while", "until", "!", "time", "exec", "command", "eval", "coproc", "case", "in",
     "function"]
)  # fmt: skip
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=|\d*[<>]+.")


def rough_commands(text: str) -> Iterator[str]:
    """Yield the parts of `text` that may be commands, and the ends of them, without quotes, keywords and assignments."""
    text = re.sub(r"\\\n|\$(?=[\"'])", "", text).replace("{}", "_")
    inner = (found.group(2) for found in _QUOTED.finditer(text))
    for piece in (*_CUTS.split(text), *(piece for quoted in inner for piece in _CUTS.split(quoted) if " " in piece)):
        words = re.sub(r"[\"'\\]", "", piece).split()
        while words and (words[0] in _LEADING or _ASSIGNED.match(words[0])):
            words.pop(0)
        for start in range(min(len(words), 12)):
            yield " ".join(words[start : start + 64])


_SIGNS = frozenset(";|&<>()$`\"'\\{}~*?[]!#=- /")
_LOOKS_EMPTY = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
# Letters and signs that the user takes for a dash, a quote, a slash, a bar, a star or a semicolon.
_LIKE_SIGNS = frozenset(
    "\u02c6\u02cb\u02dc\u02f8\u01c0\u0296\u2016\u2032\u2033\u2035\u2044\u204f\u2212\u2215\u2216\u2217\u2223\u223c\u2236\u2758\u27cb\u29f5\u29f8\u29f9\u3008\u3009\ua789\u2028"
)


def misleading_character(text: str) -> str:
    """Return the name of a control, invisible or look-alike character outside quotes; empty if there is none."""
    if re.fullmatch(r"[\t\n -~]*", text):
        return ""
    for char in dict.fromkeys(re.sub(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", text)):
        category = unicodedata.category(char)
        hidden = (category[0] in "CZ" and char not in " \t\n") or char in _LOOKS_EMPTY or 0xFE00 <= ord(char) <= 0xFE0F
        dash = category in ("Pd", "Pi", "Pf") and not char.isascii()
        sign = not char.isascii() and any(part in _SIGNS for part in unicodedata.normalize("NFKC", char))
        if hidden or dash or sign or char in _LIKE_SIGNS or 0xE0100 <= ord(char) <= 0xE01EF:
            return f"U+{ord(char):04X} {unicodedata.name(char, '')}".strip()
    return ""

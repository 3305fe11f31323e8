"""What a wildcard does not cover: words that make a program run, write or read more than its name says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from .lexer import SimpleCommand, Word
from .tables import (
    ABBREVIATIONS_NOT,
    ADDS_WORDS,
    GIT_LETTERS,
    GIT_OPTIONS,
    GIT_PAIRS,
    GIT_SENDS,
    GIT_VERBS,
    INFORMS,
    PLAIN_VERBS,
    SAFE_VERBS,
    program,
)
from .words import changing, fed_text, git_place, inner_words, name_of, runner_place, script_of, shell_text

# The place of a guard that no rule covers.
ANYTHING = 1_000_000


class UncoveredWords(NamedTuple):
    """Words that a wildcard does not cover.

    :param place: the index of the last word that a rule has to spell out; :data:`ANYTHING` or more if no rule covers it.
    :param of_program: the program itself runs, writes or reads more.
    """

    place: int
    why: str
    of_program: bool = False


def guards_of(command: SimpleCommand) -> list[UncoveredWords]:
    """Return what a wildcard does not cover in a command, with places counted from its first assignment."""
    assigned = changing(command.assigned)
    found: list[UncoveredWords] = []
    if assigned:
        name = assigned[0].text.partition("=")[0]
        found.append(UncoveredWords(len(assigned) - 1, f"it sets {name}, which changes how commands run"))
    unknown = next((word for word in (*assigned, *command.words) if word.why), None)
    if unknown is not None:
        text = unknown.text if len(unknown.text) <= 40 else f"{unknown.text[:39]}…"
        found.append(UncoveredWords(ANYTHING, f"{text} is {unknown.why}"))
    own = _guard_of(command) if command.words else None
    if own is not None:
        found.append(UncoveredWords(own.place + len(assigned), own.why, of_program=True))
    return found


# Guarded options behind which no value stands; of the others, a rule has to spell out the value too.
_WITHOUT_VALUE = frozenset(["-i", "--in-place", "-delete", "-R", "-L", "-follow", "--follow", "--fix", "--write", "-z", "-r"])


def _guard_of(command: SimpleCommand) -> UncoveredWords | None:
    """Return what a wildcard does not cover in a command, or ``None`` if it may cover all of it."""
    words = command.words
    name, texts = name_of(words[0]), [word.text for word in words]
    known, last = program(name), len(words) - 1
    if not re.fullmatch(r"[\w@%+=:,./~\[-]+", words[0].text, re.ASCII):
        return UncoveredWords(last, f"{words[0].text!r} is an unusual name for a program")
    if "state" in known.kinds:
        return UncoveredWords(0, f"{name} changes the state of the shell")
    if known.kinds & {"code", "shell"} and not any(inner_words(command)):
        return _guard_of_code(name, command)
    why = _special(name, texts[1:])
    if why:
        return UncoveredWords(last, why)
    script = runner_place(name, texts[1:])
    if script and not any(inner_words(command)):
        return UncoveredWords(script, f"{name} runs {texts[script][:60]}, which no rule has seen")
    verb = _unknown_verb(name, texts[1:])
    if verb:
        return UncoveredWords(verb, f"{name} {texts[verb][:40]} runs or configures what no rule sees")
    if name == "git":
        place, why = _git(texts)
        return UncoveredWords(place, why) if why else None
    end = runner_place(name, texts[1:]) or len(texts)
    for place, text in enumerate(texts[1:end], 1):
        if text == "--":
            break
        option = guarded_option(text, known.guarded)
        if option:
            with_value = text == option and place < last and option not in _WITHOUT_VALUE
            return UncoveredWords(place + with_value, f"{name} {text[:40]} runs, writes or reads more than it shows")
    return None


def guarded_option(text: str, guarded: Iterable[str]) -> str:
    """Return which of the options `guarded` a word gives, also abbreviated or joined to others; empty if none."""
    if not text.startswith("-") or text in ABBREVIATIONS_NOT or text == "-":
        return ""
    head = text.partition("=")[0]
    for option in guarded:
        if option.startswith("--"):
            if len(head) > 3 and head.startswith("--") and option.startswith(head):
                return option
        elif len(option) > 2:
            if head == option:
                return option
        elif re.match(rf"-[A-Za-z]*{option[1]}", text):
            return option
    return ""


def _guard_of_code(name: str, command: SimpleCommand) -> UncoveredWords | None:
    """Return what is not covered of an interpreter: a script has to be spelled out, all other code exactly."""
    words, last = command.words, len(command.words) - 1
    texts = [word.text for word in words]
    # For a shell, `-v` and `-V` mean something else.
    informs = {"--version", "--help"} if "shell" in program(name).kinds else INFORMS
    if last == 1 and texts[1] in informs and not command.piped and not command.redirects:
        return None
    if "shell" in program(name).kinds:
        if shell_text(words) is not None or (fed_text(command) is not None and last == 0):
            return None
        if last == 0:
            return UncoveredWords(ANYTHING, f"{name} runs what it reads, which is not in the command")
    if last == 0 and (command.piped or any(one.operator.startswith("<") for one in command.redirects)):
        return UncoveredWords(ANYTHING, f"{name} runs what it reads, which is not in the command")
    script = script_of(words)
    if script and not command.piped:
        return UncoveredWords(script, f"{name} runs {texts[script][:60]}, which no rule has seen")
    return UncoveredWords(last, f"{name} runs code that no rule sees")


def _special(name: str, args: Sequence[str]) -> str:
    """Return what is not covered of a program whose options do not tell it."""
    match name:
        case "sed" if not _sed_is_plain(args):
            return "a sed script that may run or write"
        case "awk" | "gawk" | "mawk" | "nawk":
            return _awk(args)
        case "jq" if _jq_reads_more(args):
            return "jq reads the environment or other files"
        case "yq" if re.search(r"\b(?:load\w*|str)?env\b|\bload|\benvsubst|\bsystem\b", " ".join(args)):
            return "yq reads the environment or other files"
        case "date" if any(
            arg[:1] not in ("+", "-") and args[place - 1] not in ("-d", "--date") for place, arg in enumerate(args)
        ):
            return "date sets the clock"
        case "printf" if re.match(r"-v|.*%[^%a-mo-zA-Z]*n", "".join(args[:1]).replace("%%", ""), re.DOTALL):
            return "printf sets a variable"
        case "test" | "[" | "[[" if "-v" in args or any("[" in arg for arg in args):
            return "arithmetic in a test may run commands"
        case "exec" | "sudo" | "eval" if not args:
            return f"{name} changes the shell"
        case "env" | "sudo" | "doas" if any(re.match(r"-\w*[SCDRh]|--split|--ch", arg) for arg in args):
            return f"{name} splits a text into words, or works elsewhere"
        case "xxd" | "sdiff" if len([arg for arg in args if not arg.startswith("-")]) > 1 + (name == "sdiff"):
            return f"the last operand of {name} is written"
        case "tar" | "gtar" | "bsdtar" if any(":" in arg for arg in args):
            return "tar reaches another machine"
        case "curl" | "wget" if sum("://" in arg for arg in args) > 1:
            return f"{name} reaches several addresses"
        case "less" | "more" if any(arg.startswith("+") for arg in args):
            return "a command for the pager"
        case "tar" | "gtar" if args and not args[0].startswith("-") and set(args[0]) & set("IFPTCX"):
            return "tar runs, writes or reads more than it shows"
        case "make" | "gmake" if any(re.match(r"[A-Za-z_.]+[:?+!]?=", arg) for arg in args):
            return "it sets a variable of make"
        case "gcc" | "g++" | "cc" | "clang" | "clang++" if any(arg.startswith(("@", "-Wl,")) for arg in args):
            return f"{name} takes options that the command does not show"
        case _ if name in ADDS_WORDS:
            return f"{name} adds words that are known only when it runs"
        case _:
            return ""


def _unknown_verb(name: str, args: Sequence[str]) -> int:
    """Return the place of a verb that no wildcard covers; 0 if the verb is covered, or the program has none."""
    if name not in PLAIN_VERBS or not args or tuple(args) in (("--version",), ("--help",), ("-v",)):
        return 0
    verbs = f"{PLAIN_VERBS[name]} {SAFE_VERBS.get(name, '')}".split()
    place = next((place for place, arg in enumerate(args) if not arg.startswith("-")), len(args) - 1)
    # The value of an option may stand before the verb: `npm --prefix sub test`.
    if (
        args[place] not in verbs
        and place
        and place + 1 < len(args)
        and args[place - 1].startswith("--")
        and args[place + 1] in verbs
    ):
        place += 1
    second = next((arg for arg in args[place + 1 :] if not arg.startswith("-")), "")
    plain = args[place] in verbs and not (args[place] == "compose" and second in ("run", "exec", "ru", "exe"))
    return 0 if plain or runner_place(name, args) else place + 1


def _jq_reads_more(args: Sequence[str]) -> bool:
    plain: list[str] = []
    words = iter(args)
    for word in words:
        if word in ("--arg", "--argjson"):
            next(words, None)  # its name
            next(words, None)  # its value
        elif word in ("--args", "--jsonargs"):
            plain += [next((one for one in words if not one.startswith("-")), "")]
            break
        else:
            plain.append(word)
    text = re.sub(r'"(?:[^"\\]|\\[^(])*"', '""', "\n".join(plain))
    return bool(
        re.search(
            r"(?<![.\w$-])(?:env|input_filename|import|include|modulemeta|get_search_list)\b(?!\s*:)"
            r"|\$\s*(?:#[^\n]*\n\s*)*(?:ENV|__prog)",
            text,
        )
    )


def _awk(args: Sequence[str]) -> str:
    """Return what is not covered of an awk program: ``-F`` and ``-v`` are plain, strings and patterns only text."""
    words = [arg for place, arg in enumerate(args) if not arg.startswith("-F") and args[place - 1 : place] != ["-F"]]
    if any(re.match(r"-[fEliopdDWbHLv].|-[fEliopdDWbHL]|--", arg) for arg in words):
        return "an option of awk that runs, writes or reads more"
    text = re.sub(r"\\\r?\n", " ", " ".join(words))
    if re.search(r"\bsystem|getline|@|\bclose\b|ENVIRON|ARGV|SYMTAB|FUNCTAB|PROCINFO|extension|FILENAME\s*=", text):
        return "an awk program that may run or write"
    if '"' in text and "/" in text and re.search(r"[>|]", text.replace("||", "")):
        return "an awk program that may run or write"  # which of the signs are quoted is not sure
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    # A slash behind one of these signs begins a pattern; anywhere else it may divide.
    text = re.sub(r"(\A|[(,~!{;&|\n])(\s*)/(?:[^/\\\n]|\\.)*/", r"\1\2", text)
    text = re.sub(r"#[^\n]*", "", re.sub(r"\([^()]*>[^()]*\)", "()", text.replace("||", "")))
    return "an awk program that may run or write" if re.search(r"\|&?|printf?\b[^;}]*>|>>", text) else ""


_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n\[]|\\.|\[[^\]/]*\])*/[IM]*)"
_SUBSTITUTE = "|".join(
    rf"s{re.escape(d)}(?:[^{re.escape(d)}\\\n\[]|\\.|\[\^?\]?[^\]{re.escape(d)}]*\])*{re.escape(d)}"
    rf"(?:[^{re.escape(d)}\\\n]|\\.)*{re.escape(d)}[gpiIm0-9]*"
    for d in "/|#,:@!%"
)
_COMMAND = (
    rf"\s*(?:{_ADDRESS}(?:\s*,\s*(?:{_ADDRESS}|[+~]\d+))?)?\s*!?\s*"
    rf"(?:[pdqQDPnNGHhgxlzF=]\s*\d*|[btT:]\s*\w*|[aic]\\?[^\n]*(?=\n|\Z)|#[^\n]*|y/[^/\n]*/[^/\n]*/|{_SUBSTITUTE}|\{{|\}})\s*"
)


@cache
def _sed_pattern() -> re.Pattern[str]:
    return re.compile(rf"(?:{_COMMAND}(?:[;\n]|(?=[}}])|(?<=[{{])))*(?:{_COMMAND})?[;}}\s]*", re.DOTALL)


def _sed_is_plain(args: Sequence[str]) -> bool:
    """Whether every script of ``sed`` only changes the text that it prints."""
    scripts: list[str] = []
    place, by_option = 0, False
    while place < len(args):
        arg = args[place]
        place += 1
        if re.fullmatch(r"-[nErsuzb]*e|--expression", arg):
            scripts.append(args[place] if place < len(args) else "")
            by_option, place = True, place + 1
        elif arg.startswith("--expression="):
            scripts.append(arg.partition("=")[2])
            by_option = True
        elif arg.startswith("-") and arg != "-":
            if not _SED_OPTIONS.fullmatch(arg) and not guarded_option(arg, program("sed").guarded):
                return False
            place += arg == "-l"
        elif not by_option:
            scripts.append(arg)
            by_option = True
    # Blanks are made one, so that the pattern cannot try many ways to divide them.
    short = [re.sub(r"[ \t]*\n\s*", "\n", re.sub(r"[ \t]+", " ", script)) for script in scripts]
    return all(len(script) < 2000 and _sed_pattern().fullmatch(script) for script in short)


_SED_OPTIONS = re.compile(
    r"-[nErsuzb]+|-l|--(?:quiet|silent|regexp-extended|posix|null-data|separate|unbuffered|help|version|debug|sandbox)"
    r"|--line-length=\d+"
)


# ---------------------------------------------------------------- git


def _git(texts: Sequence[str]) -> tuple[int, str]:
    """Return why a wildcard does not cover a command of git, and the place of the word that says so."""
    start, last = git_place([Word(text) for text in texts]), len(texts) - 1
    verb, rest = (texts[start], texts[start + 1 :]) if start <= last else ("", ())
    if not verb:
        plain = last == 0 or texts[1:] in (["--version"], ["--help"], ["-v"])
        return last, "" if plain else "git takes options of its own"
    for place, text in enumerate(texts[1:start], 1):
        if text.startswith("-") and text not in ("--no-pager", "-P", "--no-optional-locks", "-C"):
            return min(place + 1, start - 1), f"git {text} changes what git runs or reads"
    if verb not in GIT_VERBS:
        return last, f"git {verb[:40]} may run programs"
    pair = next((pair for pair in GIT_PAIRS if pair.split()[0] == verb and pair.split()[1] in rest), "")
    if pair:
        return last, f"git {pair} changes more than it shows"
    for text in rest:
        if text == "--":
            break
        letters = re.match(r"-([A-Za-z]+)", text)
        if "::" in text:
            return last, f"{text[:60]} names a helper that git runs"
        if "%G" in text:
            return last, "a format that runs the program for signatures"
        if letters and not text.startswith("--"):
            # Behind `m`, and behind the first letter of these verbs, stands a value.
            given = letters[1][:1] if verb in ("log", "diff", "show", "grep") else letters[1].partition("m")[0]
            if set(given) & set(GIT_LETTERS.get(verb, "")):
                return last, f"git {verb} {text[:40]} runs, writes or reads more than it shows"
        elif guarded_option(text, GIT_OPTIONS):
            return last, f"git {text[:40]} runs, writes or reads more than it shows"
    operand = next((text for text in rest if not text.startswith("-")), "")
    if verb in GIT_SENDS and ":" in operand:
        return last, f"{operand[:60]} is no remote of this repository"
    return last, ""

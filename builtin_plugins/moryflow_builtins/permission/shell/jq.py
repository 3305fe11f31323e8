"""``jq`` and its kin: which words are filters, which are files, and whether a filter reads something by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .facts import Facts
from .words import Arg

_STRING = re.compile(r'"(?:[^"\\]|\\[^(])*"')
_READS = re.compile(
    r"(?<![\w.])ENV\b|(?<![\w.$])env\b(?!:)|(?<![.\w])(import|include|input_filename|get_search_list|modulemeta)\b|\$\s*__prog"
)
_READS_IN_YQ = re.compile(r"(?<![.\w])(strenv|envsubst|load\w*)\b")
_PAIRS = {"--arg": False, "--argjson": False, "--slurpfile": True, "--rawfile": True, "--argfile": True}
"""Options that are followed by a name and a value, and whether the value is a file."""

_GUARDED = {
    "from-file": "takes its filter from a file",
    "library-path": "looks for modules elsewhere",
    "run-tests": "takes its filters from a file",
    "in-place": "changes files",
}
_LETTERS = {"f": "from-file", "L": "library-path", "i": "in-place"}
_WITH_FILE = frozenset({"library-path", "run-tests"})


def inspect_jq(args: Sequence[Arg], facts: Facts) -> None:
    """``jq``: its filter may read the environment, modules and other files."""
    words: list[tuple[int, bool]] = []
    from_file, data, options, index = False, True, True, 1
    while index < len(args):
        text = args[index].text
        if not options or not text.startswith("-") or text == "-":
            words.append((index, data))
        elif text == "--":
            options = False
        elif text in _PAIRS:
            facts.reads += args[index + 2 : index + 3] if _PAIRS[text] else ()
            index += 2
        elif text in ("--args", "--jsonargs"):
            data = False
        else:
            names = _options(text)
            from_file |= "from-file" in names
            index += _note(args, index, names, facts)
        index += 1
    _take(args, words, facts, from_file=from_file)


def _options(text: str) -> set[str]:
    """Return what an option, or several in one word, are called; those that do not count are left out."""
    if not text.startswith("--"):
        return {_LETTERS[letter] for letter in text[1:] if letter in _LETTERS} if text[1] != "L" else {"library-path"}
    name = text[2:].partition("=")[0]
    return {known for known in (*_GUARDED, "indent") if known.startswith(name)}


def _note(args: Sequence[Arg], index: int, names: set[str], facts: Facts) -> int:
    """Note what options mean; return how many words after them belong to them."""
    text = args[index].text
    for name in names & set(_GUARDED):
        facts.guard(index, f"{args[0].text} {text} {_GUARDED[name]}")
    attached = text[2:] if text.startswith("-L") else text.partition("=")[2]
    if attached:
        facts.reads += [args[index].cut(len(text) - len(attached))] if names & set(_GUARDED) else []
        return 0
    facts.reads += args[index + 1 : index + 2] if names & _WITH_FILE else ()
    return 1 if names & {"library-path", "indent"} else 0


def _take(args: Sequence[Arg], words: list[tuple[int, bool]], facts: Facts, *, from_file: bool) -> None:
    """The first word is the filter, unless that comes from a file; the others are files, where they are not data."""
    verbs = args[0].text.endswith("yq")  # has subcommands, and options with values of their own: any word may be a filter
    for place, (index, data) in enumerate(words):
        if (place == 0 and not from_file) or verbs:
            text = _without_strings(args[index].text)
            if _READS.search(text) or (verbs and _READS_IN_YQ.search(text)):
                facts.guard(index, "the filter reads the environment or other files")
        if (place > 0 and data) or (place == 0 and from_file):
            facts.reads += [args[index]] if args[index].text != "-" else []


def _without_strings(text: str) -> str:
    """Return a filter without its strings, where they are surely strings: nothing is filled in, no comment has a quote."""
    return text if "#" in text or "\\(" in text else _STRING.sub('""', text)

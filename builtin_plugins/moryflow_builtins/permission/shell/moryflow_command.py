"""``moryflow`` itself: a tool must not use it to change permissions, plugins or configuration, whatever the rules say.

Only a person can change what a person decided. Verbs that only read are judged like any command; unknown verbs are asked
about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from .effects import CommandEffects, InnerCommand, InnerText, WrittenFile, operands_of, read_options, spec
from .syntax import Arg

PROGRAM = "moryflow"

CHANGES = frozenset(
    {
        "permission allow", "permission ask", "permission deny", "permission preset", "permission remove", "permission rm",
        "plugin install", "plugin uninstall", "plugin rm", "plugin update", "plugin sync", "plugin enable", "plugin disable",
        "plugin key set", "plugin key remove", "plugin key rm", "config set",
        "config unset", "config prompt edit", "config prompt param", "config prompt reset",
        "approval reply", "model use", "model install", "tool allow", "tool install", "new tool", "new agent",
        "mcp add", "mcp remove", "mcp rm", "mcp review", "mcp login", "serve", "acp",
    }
)  # fmt: skip
"""Commands that change what is allowed, loaded or configured, or open a way to do so.

`serve` hands out keys, and `acp` accepts answers to questions.
"""

READS = frozenset(
    {
        "permission explain", "permission lint", "permission rules", "permission test", "permission whatif",
        "plugin list", "plugin ls", "plugin info", "plugin key list",
        "plugin key ls", "config show", "config path", "config get", "config explain",
        "config schema", "config check", "config prompt show", "approval list", "approval ls", "approval show",
        "agent list", "agent ls",
        "agent show", "agent check", "model list", "model ls", "tool list", "tool ls", "tool show", "hook list", "hook ls",
        "session list", "session ls", "session show", "session records",
        "session tree", "session search", "session context", "skill list",
        "skill ls", "skill show", "output list", "output ls", "output show", "memory-bank check", "memory-bank doctor",
        "mcp list", "mcp ls", "mcp show", "audit", "audit tail", "trace", "doctor", "instructions", "completion", "help", "",
    }
)  # fmt: skip
"""Commands that only read; a wildcard may cover them."""

_TURNS = frozenset({"run", "chat", "dev", "tool run", "hook fire", "replay"})
"""Commands that run turns or tools; they must not set a freer mode or other rules."""

_OPTIONS = spec(
    "vault=v config=v profile=v output=v m=v model=v agent=v mode=v on-ask=v max-steps=v max-cost=v f=v file=v run=v "
    "attach=n session=v limit=v since=v turn=v plugin=v with=v as=v message=v to=v node=v focus=v n=v"
)
_SWITCHES = frozenset(
    {
        "safe-mode", "strict", "q", "quiet", "v", "verbose", "json", "y", "yes", "V", "version", "h", "help", "c", "continue",
        "r", "resume", "wait", "hooks", "all", "denied", "follow", "step", "force", "keep", "dry-run",
    }
)  # fmt: skip
_NOUNS = frozenset(words.partition(" ")[0] for words in (*CHANGES, *READS, *_TURNS))
_WRITTEN = re.compile(r"\bmoryflow\b(?![_-])")
_JOINTS = r"[\s\"',;\]\[()]+"


@cache
def _change_pattern() -> re.Pattern[str]:
    """Return a regular expression for any command of :data:`CHANGES`. It is slow to compile, and few texts need it."""
    verbs = (words.split() if " " in words else (PROGRAM, words) for words in sorted(CHANGES))
    return re.compile("|".join(rf"\b{_JOINTS.join(words)}\b" for words in verbs))


class OwnCommand(NamedTuple):
    """What a command of ``moryflow`` does; `words` are its noun and verb."""

    kind: Literal["changes", "reads", "unknown", "hidden"]
    words: str


def inspect_own_program(args: Sequence[Arg], effects: CommandEffects) -> None:
    meaning = meaning_of(args)
    if meaning.kind == "changes":
        effects.refusals.append(_refusal(meaning.words))
    elif meaning.kind == "hidden":
        effects.always_asks.append(f"which command of {PROGRAM} this is, is known only when it runs")
    elif meaning.kind == "unknown":
        verb = next((index for index, arg in enumerate(args) if index and arg.text in meaning.words.split()), len(args) - 1)
        effects.guard(verb, f"{PROGRAM} {meaning.words} may run programs or change sessions")
    for found in read_options(args, _OPTIONS):
        if found.name == "run" and found.value is not None:
            effects.texts.append(InnerText(Arg(f"{PROGRAM} {found.value.text}", found.value.why)))
        elif found.value is not None and (found.name == "to" or (found.operand and meaning.words.startswith("new "))):
            effects.writes.append(WrittenFile(found.value))
        elif found.value is not None and found.name not in ("m", "model", "agent", "mode", "message", "focus"):
            effects.possible_files.append(found.value)


def inspect_carriers(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Refuse ``moryflow`` behind a program that may run it: an unknown one, an interpreter, or one known only at run time."""
    carries = not effects.known or bool(effects.guards or effects.inner)
    for start, arg in enumerate(args):
        if (carries and is_own(arg.text)) if start else not arg.static:
            meaning = meaning_of(args[start:])
            effects.refusals += [_refusal(meaning.words)] if meaning.kind == "changes" else []


def inspect_module(module: Arg, rest: Sequence[Arg], effects: CommandEffects) -> None:
    """Treat ``python -m moryflow …`` and ``python …/bin/moryflow …`` as ``moryflow …``."""
    name = module.text.removesuffix("/__main__.py")
    if is_own(name) or name.startswith(f"{PROGRAM}."):
        effects.inner.append(InnerCommand((Arg(PROGRAM), *rest)))


def is_own(path: str) -> bool:
    """Whether `path` names the program ``moryflow``."""
    return path.rstrip("/").rpartition("/")[2].lower().removesuffix(".exe") == PROGRAM


def refusal_in_text(text: str) -> str:
    """Return why a text that is not understood is refused: it seems to run one of :data:`CHANGES`; empty if it does not."""
    found = _change_pattern().search(text) if PROGRAM in text and _WRITTEN.search(text) else None
    return _refusal(re.sub(_JOINTS, " ", found.group()).removeprefix(f"{PROGRAM} ")) if found else ""


def meaning_of(args: Sequence[Arg]) -> OwnCommand:
    """Return what the ``moryflow`` command `args` does."""
    found = list(read_options(args, _OPTIONS))
    operands = operands_of(found)
    plain = _with_singular_noun(operands)
    words = _longest(plain, CHANGES) or _longest(plain, _TURNS) or _longest(plain, READS)
    if words is None:
        words = " ".join(plain[:2])
    if _asks_for_help(args) and words is not None:
        return OwnCommand("reads", words)
    strange = any(not item.operand and item.role == "" and item.name not in _SWITCHES for item in found)
    starts = range(len(plain)) if strange else ()
    if changes := next((known for start in starts if (known := _longest(plain[start:], CHANGES))), ""):
        return OwnCommand("changes", changes)
    if words in CHANGES:
        return OwnCommand("changes", words)
    if words in _TURNS and (loosened := _loosening_option(args)):
        return OwnCommand("changes", f"{words} {loosened}")
    if any(arg.why for arg in operands[: len(words.split()) or 1]) or any(
        arg.why and arg.text[:1] in "-$`" for arg in args[1:]
    ):
        return OwnCommand("hidden", words)
    return OwnCommand("reads" if words in READS and not strange else "unknown", words)


def _with_singular_noun(operands: Sequence[Arg]) -> list[str]:
    """Return the operands as text, with a noun such as ``plugins`` in the singular."""
    plain = [arg.text for arg in operands]
    if plain and plain[0] not in _NOUNS and plain[0].removesuffix("s") in _NOUNS:
        plain[0] = plain[0].removesuffix("s")
    return plain


def _longest(words: Sequence[str], table: frozenset[str]) -> str | None:
    candidates = (" ".join(words[:count]) for count in range(3, -1, -1) if count <= len(words))
    return next((known for known in candidates if known in table and (known or not words)), None)


def _asks_for_help(args: Sequence[Arg]) -> bool:
    """Whether the last word is ``--help`` or ``--version``, with no option before it that could take it as a value."""
    before = [arg.text for arg in args[1:-1]]
    return len(args) > 1 and args[-1].text in ("--help", "-h", "--version", "-V") and not any(w[:1] == "-" for w in before)


def _loosening_option(args: Sequence[Arg]) -> str:
    """Return the option that would make the new turn freer than the turn that starts it; empty when there is none."""
    words = [arg.text for arg in args]
    if any(word.partition("=")[0] == "--config" for word in words):
        return "--config"
    full = any(word.startswith("--mode") and "full" in word + " ".join(words[i + 1 : i + 2]) for i, word in enumerate(words))
    return "--mode full_access" if full else ""


def _refusal(words: str) -> str:
    return f"{PROGRAM} {words} changes a person's decision; no rule lets a tool do that"

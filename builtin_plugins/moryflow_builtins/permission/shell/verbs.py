"""Programs with verbs (:mod:`.verb_tables`): the verb behind the options, in full or abbreviated, and what it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import CommandFacts, InnerCommand, guard_telling_name, take_option
from .options import CommandItem, read_options, spec
from .trees import Tree
from .verb_tables import ABBREVIATES, SYSTEM, VERBS, Verbs
from .words import Arg

_CODE = re.compile(r"\A[^-].*\.(?:py|[cm]?[jt]sx?|go|rb|sh|pl|lua|php|rs|kts?)\Z", re.DOTALL)
"""How files of code are called."""


@dataclass(frozen=True, slots=True)
class VerbMeaning:
    """What the verb of a command may be.

    :param places: where its words stand; none when there is no verb.
    :param known: it is a verb of the table as it is written.
    :param forms: the verbs it is or abbreviates, by their canonical names.
    """

    places: tuple[int, ...]
    known: bool
    forms: tuple[str, ...]


def inspect_verbs(name: str, args: Sequence[Arg], facts: CommandFacts) -> None:
    """Look at a command of a program that has verbs."""
    table = VERBS[name]
    facts.known = True
    facts.reads_here = name not in SYSTEM
    found = list(read_options(args, spec(table.options)))
    meant = _meant(table, args, found)
    running = [form for form in meant.forms if form in table.running.values()]
    _options(args, facts, found, meant, runs=any(form in table.runners for form in running))
    if not meant.places:
        return
    shown = " ".join(args[place].text for place in meant.places)
    if running:
        facts.runs += [arg for arg in args[meant.places[-1] + 1 :] if arg.static and _CODE.search(arg.text)][:1]
        runners = [form for form in running if form in table.runners]
        start = _run(name, args, meant.places[-1], found, facts) if runners else 0
        end = start - 1 if start and runners == running else len(args) - 1  # what is run is judged by itself
        facts.guard(end, f"{name} {shown} runs or configures what the rule does not show")
    elif not meant.known and not (meant.forms and name in ABBREVIATES):
        facts.guard(meant.places[-1], f"{shown!r} is no verb of {name} that is known here")
    last = meant.places[-1]
    for form in meant.forms:
        words = (args[0], *map(Arg, form.split()), *args[last + 1 :])
        if [word.text for word in words] != [arg.text for arg in args]:
            facts.views.append(words)


def _meant(table: Verbs, args: Sequence[Arg], found: Sequence[CommandItem]) -> VerbMeaning:
    """Return the first operands, as far as they are the verb."""
    places = [item.index for item in found if item.operand][:1]
    if places and args[places[0]].text in table.groups:
        places += [item.index for item in found if item.operand][1:2]
    text = " ".join(args[place].text for place in places)
    every = {**table.ordinary, **table.running}
    if text in every:
        return VerbMeaning(tuple(places), True, (every[text],))
    forms = dict.fromkeys(form for verb, form in every.items() if text and verb.startswith(text))
    group_alone = text in table.groups
    return VerbMeaning(tuple(places), group_alone, () if group_alone else tuple(forms))


def _options(args: Sequence[Arg], facts: CommandFacts, found: Sequence[CommandItem], meant: VerbMeaning, *, runs: bool) -> None:
    """Note what options mean, up to a command that follows the verb."""
    verb = meant.places[-1] if meant.places else len(args)
    for item in found:
        if item.operand:
            if runs and item.index > verb:
                return
            continue
        take_option(item, facts, args)
        guard_telling_name(item, facts, args)
        if item.name == "from-file" and item.value is not None:
            facts.trees.append(Tree(f"{args[0].text} --from-file", tuple(file_pieces(item.value)), depth=1))
        if not item.role and item.index < verb and meant.places:
            shown = args[item.index].text
            facts.guard(item.index, f"{args[0].text} {shown} is not known here, nor whether the next word is its value")


def _run(name: str, args: Sequence[Arg], verb: int, found: Sequence[CommandItem], facts: CommandFacts) -> int:
    """Take what follows ``exec`` or ``run`` for a command, and return where; options in between may take values or not."""
    plain = next((index for index in range(verb + 1, len(args)) if not args[index].text.startswith("-")), None)
    after = next((item.index for item in found if item.operand and item.index > verb), None)
    starts = [index for index in dict.fromkeys((plain, after)) if index is not None]
    facts.inner += [InnerCommand(tuple(args[index:])) for index in starts]
    if plain is not None and args[plain].text.endswith(".py"):
        facts.guard(plain, f"{name} runs the code in {args[plain].text}")
    return max(starts, default=0)


_MARKS = re.compile(r"[=@<,;]")

MAX_PIECES = 200
"""How many parts of one word are looked at as files."""


def file_pieces(arg: Arg) -> list[Arg]:
    """Return a word and the parts of it that may be files: ``a=@b,c`` holds ``@b``, ``b`` and ``c``."""
    if not _MARKS.search(arg.text):
        return [arg]
    parts = _MARKS.split(arg.text, maxsplit=MAX_PIECES)[1:]
    texts = dict.fromkeys((arg.text.partition("=")[2], arg.text.partition("@")[2], *parts))
    return [arg, *(Arg(text, arg.why, tilde=text.startswith("~/")) for text in texts if text)]

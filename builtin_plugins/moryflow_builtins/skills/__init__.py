"""Skills: folders with a ``SKILL.md``, of the user (``~/.moryflow/skills``) and of the vault.

The system prompt lists name and description of each skill, or only names if they are many; the model finds skills, and reads
their bodies and the pages they refer to, with the tool ``skill``. A skill is only text: its scripts run through ``bash`` like
any others, and nothing in it sets a permission.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from moryflow_sdk import Command, SystemBlock, Tool, ToolContext, ToolError, Turn, hookimpl, tool
from moryflow_sdk.support.markdown_files import WrongFile, read_markdown
from moryflow_sdk.support.own_files import is_file, leads_nowhere, open_regular
from moryflow_sdk.support.settings import Meta, Settings
from moryflow_sdk.support.texts import best_matches, did_you_mean

name = "skills"
config_path = "agents.runtime.skills"


class SkillSettings(Settings):
    """Which skills are offered.

    :ivar claude: use the skills in ``~/.claude/skills`` too.
    :ivar paths: more folders with skills, such as ``~/.codex/skills``.
    :ivar search_above: how many tokens the list of skills may cost in each request; above that, the model searches for them.
    """

    strictest = {"claude": False}

    claude: bool = True
    paths: tuple[str, ...] = ()
    search_above: Annotated[int, Meta(ge=0, le=100_000_000, strict=True)] = 2000


config_model = SkillSettings


@hookimpl
def system_blocks(turn: Turn) -> Sequence[SystemBlock]:
    """List the skills, if the agent may use the tool ``skill`` and the model can call tools."""
    found = _usable(turn)
    if not found or not turn.agent.may_use("skill") or (turn.model is not None and not turn.model.tools):
        return []
    text = "\n".join([INTRO, *(_line(skill) for skill in found)])
    if len(text) // 4 > turn.config.search_above:
        names = ", ".join(skill.name for skill in found)
        shown = names if len(names) <= NAMES else f"{names[:NAMES].rpartition(',')[0]}, …"
        text = f"{INTRO} There are {len(found)}; find one with `search`, words for the task. Some are: {shown}"
    return [SystemBlock(id="skills", text=text)]


INTRO = "Skills: ways of working that somebody wrote down. When one fits the task, read it first with the tool `skill`."
# The most characters of names that are listed if the whole list would cost too much.
NAMES = 2000
MAX_FOUND = 8


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {skill.description}"


def _usable(turn: Turn) -> list[Skill]:
    found = skills_for(turn.vault, turn.home, claude=turn.config.claude, paths=turn.config.paths)
    return [skill for skill in found if skill.usable]


@tool(domain="read", parallel_safe=True, offered_in=lambda turn: bool(_usable(turn)))
def skill(
    ctx: ToolContext,
    name: Annotated[str, "the name of a skill"] = "",
    file: Annotated[str, "another file of the skill, as it names it: references/more.md"] = "",
    search: Annotated[str, "words for the task, to find skills that fit it; leave out the name then"] = "",
) -> str:
    """Read a skill: how to do something, step by step, as somebody wrote it down."""
    claude, paths = ctx.config.claude, ctx.config.paths
    if not name:
        return find_skills(search, ctx.vault, ctx.home, claude=claude, paths=paths)
    if file:
        return read_page(name, file, ctx.vault, ctx.home, claude=claude, paths=paths)
    return read_skill(name, ctx.vault, ctx.home, claude=claude, paths=paths)


@hookimpl
def tools() -> list[Tool]:
    """Offer ``skill``."""
    return [skill]


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow skill``."""
    return [Command("skill", "List and show skills, and report what is wrong with them.", skill_group)]


# ---------------------------------------------------------------- Finding skills


# Folders for skills in a vault: Moryflow's own, and those of agentskills and Claude Code.
VAULT_FOLDERS = (".moryflow/skills", ".agents/skills", ".claude/skills")

# The folder for the user's Claude Code skills, below their home; its entries may be links to other places in the home.
CLAUDE = ".claude/skills"

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
LONGEST_NAME, LONGEST_DESCRIPTION = 64, 1024


class Skill(NamedTuple):
    """A skill.

    :ivar file: its ``SKILL.md``; `root` is the home or the vault that must contain it, after links are resolved.
    :ivar characters: length of its text.
    :ivar problem: why it cannot be used; empty if it can.
    """

    name: str
    description: str
    file: Path
    root: Path
    source: str
    characters: int = 0
    problem: str = ""

    @property
    def usable(self) -> bool:
        return not self.problem


def skills_for(vault: Path, home: Path, *, claude: bool = True, paths: Sequence[str] = ()) -> list[Skill]:
    """Return all skills, the user's before the vault's; if several have the same name, the first one is used.

    :param claude: whether to include the user's skills for Claude Code.
    """
    found: list[Skill] = []
    for file, root, source in _places(vault, home, claude=claude, paths=paths):
        skill = _read(file, root, source)
        first = next((other for other in found if other.usable and other.name == skill.name), None)
        if skill.usable and first:
            skill = _unusable_skill(skill.file, root, source, f"the name {skill.name!r} is taken by {first.file}")
        found.append(skill)
    return found


def _places(vault: Path, home: Path, *, claude: bool, paths: Sequence[str]) -> Iterator[tuple[Path, Path, str]]:
    own = [(home / "skills", home, "user")]
    if claude:
        with contextlib.suppress(RuntimeError):  # the system knows of no home
            own.append((Path.home() / CLAUDE, Path.home(), "user"))
    own += [(Path(path).expanduser(), Path(path).expanduser(), "user") for path in paths]
    folders = [*own, *((vault / name, vault, "vault") for name in VAULT_FOLDERS)]
    seen: set[Path] = set()
    for folder, root, source in folders:
        real = Path(os.path.realpath(folder))
        if real in seen:
            continue  # the vault is the user's home
        seen.add(real)
        with contextlib.suppress(OSError):  # it does not exist, is not a folder, or may not be entered
            files = [place / "SKILL.md" for place in sorted(folder.iterdir())]
            yield from ((file, root, source) for file in files if os.path.lexists(file))


def _read(file: Path, root: Path, source: str) -> Skill:
    try:
        if not file.resolve().is_relative_to(root.resolve()):
            return _unusable_skill(file, root, source, f"it leads out of {root}")
        found = file.stat()
        fields, characters, problem = _parsed(file, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    except (OSError, RuntimeError) as error:  # up to Python 3.12, RuntimeError means a circular link
        return _unusable_skill(
            file, root, source, leads_nowhere(file) or f"it cannot be read: {getattr(error, 'strerror', error)}"
        )
    given, description = fields.get("name"), fields.get("description")
    name = given if isinstance(given, str) and _is_name(given) else file.parent.name
    wrong = problem if not fields else _name_problem(name) or _description_problem(description)
    if wrong:
        return _unusable_skill(file, root, source, problem or wrong)
    shown = " ".join(str(description).split())
    shown = shown if len(shown) <= LONGEST_DESCRIPTION else f"{shown[: LONGEST_DESCRIPTION - 1]}…"
    return Skill(name, shown, file, root, source, characters)


@lru_cache(maxsize=1024)
def _parsed(file: Path, *_state: int) -> tuple[Mapping[str, Any], int, str]:
    """Return a file's fields, the length of its text, and what is wrong with its frontmatter, if anything.

    Cached, because every step needs it and parsing may take a second.

    :param _state: values that change whenever the file does; they are part of the cache's key.
    """
    try:
        read = read_markdown(file, json5=False)
    except WrongFile as wrong:
        return {}, 0, f"line {wrong.line}: {wrong}" if wrong.line else str(wrong)
    return read.metadata, len(read.body), str(read.loose or "")


def _unusable_skill(file: Path, root: Path, source: str, problem: str) -> Skill:
    return Skill(file.parent.name, "", file, root, source, problem=problem)


def _is_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and NAME.match(name) is not None


def _name_problem(name: str) -> str:
    """Return what is wrong with the name of the folder, which counts if the name in the file is missing or only a title."""
    if _is_name(name):
        return ""
    return f"the name {name[:80]!r} may hold lower-case letters, digits and single hyphens, at most {LONGEST_NAME}"


def _description_problem(description: Any) -> str:
    if not isinstance(description, str) or not description.strip():
        return "it has no description: say when it is to be used, in a line 'description: …'"
    if any("\ud800" <= character <= "\udfff" for character in description):
        return "the description is not valid Unicode text, so no model can be told of it"
    return ""


# ---------------------------------------------------------------- Reading a skill


_FILES = 50
_LARGEST = 1024 * 1024


def read_skill(name: str, vault: Path, home: Path, *, claude: bool = True, paths: Sequence[str] = ()) -> str:
    """Return a skill's body and the list of its other files.

    :raises ToolError: there is no such skill, or it cannot be used.
    """
    chosen = _find_skill(name, vault, home, claude=claude, paths=paths)
    try:
        body = read_markdown(chosen.file, json5=False).body
    except WrongFile as wrong:  # the file has just been changed
        raise ToolError(f"the skill {name!r} cannot be used: {wrong}", code="invalid", where=str(chosen.file)) from wrong
    others = _other_files(chosen)
    listed = "\n".join(f"- {other}" for other in others[:_FILES])
    head = f"Other files of this skill, in {chosen.file.parent}; give one as `file` to read it:"
    return f"{body}\n\n{head}\n{listed}" if others else body


def find_skills(words: str, vault: Path, home: Path, *, claude: bool = True, paths: Sequence[str] = ()) -> str:
    """Return name and description of the few skills that share the most words with `words`."""
    usable = {skill.name: skill for skill in skills_for(vault, home, claude=claude, paths=paths) if skill.usable}
    best = best_matches(words, {name: ((4, name), (2, skill.description)) for name, skill in usable.items()})
    return "\n".join(_line(usable[name]) for name in best[:MAX_FOUND]) or "no skill fits; try other words"


def read_page(name: str, file: str, vault: Path, home: Path, *, claude: bool = True, paths: Sequence[str] = ()) -> str:
    """Return another file of a skill. Files in the skill's folder, wherever it is, are read without a question, but no others.

    :raises ToolError: there is no such skill or file, the file is outside the skill, or it is not text.
    """
    from moryflow_sdk.support.protected_files import sensitive

    chosen = _find_skill(name, vault, home, claude=claude, paths=paths)
    folder = chosen.file.resolve().parent
    try:
        real = (folder / file).resolve(strict=True)
        if not real.is_relative_to(folder) or sensitive(str(real.relative_to(folder))):
            raise ToolError(f"{file[:200]!r} is not a file of the skill {name!r}", code="outside", next_step="use read for it")
        return _text(real)
    except UnicodeDecodeError as error:
        raise ToolError(f"{file} is not UTF-8 text", code="not_text", where=str(folder / file)) from error
    except (OSError, ValueError) as error:
        listed = ", ".join(_other_files(chosen)[:_FILES]) or "none"
        problem = f"the skill {name!r} has no file {file[:200]!r} that can be read; it has: {listed}"
        raise ToolError(problem, code="not_found", next_step="name one of these") from error


def _find_skill(name: str, vault: Path, home: Path, *, claude: bool, paths: Sequence[str]) -> Skill:
    found = skills_for(vault, home, claude=claude, paths=paths)
    chosen = next((skill for skill in found if skill.usable and skill.name == name), None)
    if chosen is None:
        raise _no_such_skill(name, found)
    return chosen


def _other_files(skill: Skill) -> list[str]:
    """Return the files in a skill's folder beside its own, without hidden ones and those that may hold secrets."""
    from moryflow_sdk.support.protected_files import sensitive

    folder, found = skill.file.parent, list[str]()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        found += (str(path.relative_to(folder)) for path in paths if is_file(path) and path != skill.file)
    return sorted(path for path in found if not sensitive(path))


def _text(path: Path) -> str:
    """Return the text of a regular file."""
    with open_regular(path, follow=False) as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise OSError(f"{path} is larger than {_LARGEST} bytes")
    return data.decode("utf-8-sig")


def _no_such_skill(name: str, found: list[Skill]) -> ToolError:
    broken = next((skill for skill in found if skill.name == name), None)
    if broken is not None:
        problem = f"the skill {name!r} cannot be used: {broken.problem}"
        return ToolError(problem, code="invalid", where=str(broken.file), next_step="moryflow skill list")
    names = [skill.name for skill in found if skill.usable]
    hint = did_you_mean(name, names) or f"; there are: {', '.join(names) or 'none'}"
    return ToolError(f"there is no skill {name[:80]!r}{hint}", code="not_found", next_step="moryflow skill list")


# ---------------------------------------------------------------- ``moryflow skill``


def skill_group() -> Any:
    """Return the command ``moryflow skill``. click is imported only here, so that a host in another program never loads it."""
    import click

    @click.group("skill")
    def group() -> None:
        """List and show skills, and report what is wrong with them."""

    @group.command("list")
    @click.pass_obj
    def list_skills(context: Any) -> None:
        """List your skills and those of the vault; for those that cannot be used, say why."""
        found, most = context.run(_all, vault=context.vault)
        lines = [f"{skill.name:<24}  {skill.source:<5}  {skill.description or f'not used: {skill.problem}'}" for skill in found]
        rows = [_row(skill) for skill in found]
        listed = sum(len(_line(skill)) + 1 for skill in found if skill.usable) // 4
        if listed > most:
            lines.append(f"the list costs about {listed:,} tokens, more than {most:,}, so the model searches for skills")
        nothing = "no skills; make a folder with a SKILL.md in ~/.moryflow/skills"
        context.print(rows, text="\n".join(lines) or nothing)

    @group.command("show")
    @click.argument("name")
    @click.pass_obj
    def show_skill(context: Any, name: str) -> None:
        """Show what the model reads of a skill."""

        async def work(turn: Turn) -> str:
            return read_skill(name, turn.vault, turn.home, claude=turn.config.claude, paths=turn.config.paths)

        text = context.run(work, vault=context.vault)
        context.print({"name": name, "text": text}, text=text)

    return group


async def _all(turn: Turn) -> tuple[list[Skill], int]:
    """Return all skills, and how many tokens their list may cost."""
    return skills_for(turn.vault, turn.home, claude=turn.config.claude, paths=turn.config.paths), turn.config.search_above


def _row(skill: Skill) -> dict[str, Any]:
    row = {"name": skill.name, "description": skill.description, "source": skill.source, "file": str(skill.file)}
    return {**row, "tokens": skill.characters // 4, "usable": skill.usable, "problem": skill.problem}

"""Find skills and read their heads."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk.markdown_files import WrongFile, read_markdown
from moryflow_sdk.own_files import leads_nowhere

VAULT_FOLDERS = (".moryflow/skills", ".agents/skills", ".claude/skills")
"""Where a vault keeps skills; the convention of agentskills, and what users of other systems have."""

CLAUDE = ".claude/skills"
"""Where a person keeps skills for Claude Code, below their own folder; they may be links to elsewhere in it."""

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
LONGEST_NAME, LONGEST_DESCRIPTION = 64, 1024


class Skill(NamedTuple):
    """A skill.

    :ivar file: its ``SKILL.md``; `root` is the home or the vault that it must really lie in.
    :ivar problem: why it cannot be used; empty when it can.
    """

    name: str
    description: str
    file: Path
    root: Path
    source: str
    body: str = ""
    problem: str = ""

    @property
    def usable(self) -> bool:
        return not self.problem


def skills_for(vault: Path, home: Path, *, claude: bool = True) -> list[Skill]:
    """Return every skill, the person's own before the vault's; the first of a name is the one that is used.

    :param claude: also what the person has for Claude Code.
    """
    found: list[Skill] = []
    for file, root, source in _places(vault, home, claude=claude):
        skill = _read(file, root, source)
        first = next((other for other in found if other.usable and other.name == skill.name), None)
        if skill.usable and first:
            skill = _wrong(skill.file, root, source, f"the name {skill.name!r} is taken by {first.file}")
        found.append(skill)
    return found


def _places(vault: Path, home: Path, *, claude: bool) -> Iterator[tuple[Path, Path, str]]:
    own = [(home / "skills", home, "user")]
    if claude:
        with contextlib.suppress(RuntimeError):  # the system knows of no home
            own.append((Path.home() / CLAUDE, Path.home(), "user"))
    folders = [*own, *((vault / name, vault, "vault") for name in VAULT_FOLDERS)]
    seen: set[Path] = set()
    for folder, root, source in folders:
        real = Path(os.path.realpath(folder))
        if real in seen:
            continue  # the vault is the person's own folder
        seen.add(real)
        try:
            places = sorted(folder.iterdir())
        except OSError:  # it does not exist, is no folder, or cannot be listed
            continue
        for place in places:
            if os.path.lexists(place / "SKILL.md"):
                yield place / "SKILL.md", root, source


def _read(file: Path, root: Path, source: str) -> Skill:
    try:
        if not file.resolve().is_relative_to(root.resolve()):
            return _wrong(file, root, source, f"it leads out of {root}")
        read = read_markdown(file)
    except (OSError, RuntimeError) as error:  # the second, up to Python 3.12, is a link that leads in a circle
        return _wrong(file, root, source, leads_nowhere(file) or f"it cannot be read: {error}")
    except WrongFile as wrong:
        place = f"line {wrong.line}: " if wrong.line else ""
        return _wrong(file, root, source, f"{place}{wrong}")
    name, description = read.metadata.get("name"), read.metadata.get("description")
    if problem := _name_problem(name) or _description_problem(description):
        return _wrong(file, root, source, problem)
    return Skill(str(name), " ".join(str(description).split()), file, root, source, read.body)


def _wrong(file: Path, root: Path, source: str, problem: str) -> Skill:
    return Skill(file.parent.name, "", file, root, source, problem=problem)


def _name_problem(name: Any) -> str:
    if not isinstance(name, str) or not name:
        return "it has no name: add a line 'name: …' to its frontmatter"
    if len(name) > LONGEST_NAME or not NAME.match(name):
        return f"the name {name[:80]!r} may hold small letters, digits and single hyphens, at most {LONGEST_NAME}"
    return ""


def _description_problem(description: Any) -> str:
    if not isinstance(description, str) or not description.strip():
        return "it has no description: say when it is to be used, in a line 'description: …'"
    if any("\ud800" <= character <= "\udfff" for character in description):
        return "the description holds what is no Unicode text, so no model can be told of it"
    if len(description) > LONGEST_DESCRIPTION:
        return f"the description is longer than {LONGEST_DESCRIPTION} characters"
    return ""

"""What the model is given of a skill."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from moryflow_sdk import ToolError

from .finding import Skill, skills_for

_FILES = 50


def read_skill(name: str, vault: Path, home: Path) -> str:
    """Return a skill's body and where its other files are.

    :raises ToolError: there is no such skill, or it cannot be used.
    """
    found = skills_for(vault, home)
    chosen = next((skill for skill in found if skill.usable and skill.name == name), None)
    if chosen is None:
        raise _missing(name, found)
    others = sorted(path for path in chosen.file.parent.rglob("*") if path.is_file() and path != chosen.file)
    listed = "\n".join(f"- {path.relative_to(chosen.file.parent)}" for path in others[:_FILES])
    files = f"\n\nOther files of this skill, in {chosen.file.parent}:\n{listed}" if others else ""
    return f"{chosen.body}{files}"


def _missing(name: str, found: list[Skill]) -> ToolError:
    broken = next((skill for skill in found if skill.name == name), None)
    if broken is not None:
        return ToolError(f"the skill {name!r} cannot be used: {broken.problem}", code="invalid", where=str(broken.file))
    names = [skill.name for skill in found if skill.usable]
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names) or 'none'}"
    return ToolError(f"there is no skill {name[:80]!r}{hint}", code="not_found", next_step="moryflow skill list")

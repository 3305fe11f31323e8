"""What the model is given of a skill."""

from __future__ import annotations

import os
import stat
from difflib import get_close_matches
from pathlib import Path

from moryflow_sdk import ToolError

from .finding import Skill, skills_for

_FILES = 50
_LARGEST = 1024 * 1024


def read_skill(name: str, vault: Path, home: Path, *, claude: bool = True) -> str:
    """Return a skill's body and where its other files are.

    :raises ToolError: there is no such skill, or it cannot be used.
    """
    chosen = _chosen(name, vault, home, claude=claude)
    others = _others(chosen)
    listed = "\n".join(f"- {other}" for other in others[:_FILES])
    head = f"Other files of this skill, in {chosen.file.parent}; give one as `file` to read it:"
    return f"{chosen.body}\n\n{head}\n{listed}" if others else chosen.body


def read_page(name: str, file: str, vault: Path, home: Path, *, claude: bool = True) -> str:
    """Return another file of a skill. What belongs to it is read without a question, wherever the skill is; nothing else is.

    :raises ToolError: there is no such skill or file, it leads out of the skill, or it is not text.
    """
    chosen = _chosen(name, vault, home, claude=claude)
    folder = chosen.file.resolve().parent
    try:
        real = (folder / file).resolve(strict=True)
        if not real.is_relative_to(folder) or not _may_be_shown(real, folder):
            raise ToolError(f"{file[:200]!r} is not a file of the skill {name!r}", code="outside", next_step="use read for it")
        return _text(real)
    except UnicodeDecodeError as error:
        raise ToolError(f"{file} is not UTF-8 text", code="not_text", where=str(folder / file)) from error
    except (OSError, ValueError) as error:
        listed = ", ".join(_others(chosen)[:_FILES]) or "none"
        problem = f"the skill {name!r} has no file {file[:200]!r} that can be read; it has: {listed}"
        raise ToolError(problem, code="not_found", next_step="name one of these") from error


def _chosen(name: str, vault: Path, home: Path, *, claude: bool) -> Skill:
    found = skills_for(vault, home, claude=claude)
    chosen = next((skill for skill in found if skill.usable and skill.name == name), None)
    if chosen is None:
        raise _missing(name, found)
    return chosen


def _others(skill: Skill) -> list[str]:
    folder = skill.file.parent
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path != skill.file)


def _may_be_shown(real: Path, folder: Path) -> bool:
    from moryflow_sdk.sensitive import sensitive

    return not sensitive(str(real.relative_to(folder)))


def _text(path: Path) -> str:
    """Return the text of a regular file; a pipe does not hang it.

    :raises OSError: it is something else, or too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise OSError(f"{path} is not a text file of at most {_LARGEST} bytes")
        return file.read(_LARGEST).decode("utf-8-sig")


def _missing(name: str, found: list[Skill]) -> ToolError:
    broken = next((skill for skill in found if skill.name == name), None)
    if broken is not None:
        problem = f"the skill {name!r} cannot be used: {broken.problem}"
        return ToolError(problem, code="invalid", where=str(broken.file), next_step="moryflow skill list")
    names = [skill.name for skill in found if skill.usable]
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names) or 'none'}"
    return ToolError(f"there is no skill {name[:80]!r}{hint}", code="not_found", next_step="moryflow skill list")

"""Which instruction files hold for a vault, in the order in which the model reads them.

The person's own come first, what they have told Claude Code before what they have told Moryflow; then those of the project
from its root down to the vault, then those that the configuration names: what is nearer to the work is read later. In each
folder ``AGENTS.md`` is taken, else ``CLAUDE.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .reading import TWICE, Instructions, read_instructions
from .settings import InstructionSettings

NAMES = ("AGENTS.md", "CLAUDE.md")

CLAUDE = ".claude/CLAUDE.md"
"""What a person has told Claude Code for all projects, below their own folder."""

NAMED_IN = "agents.runtime.instructions.files"
_WILD = re.compile(r"[*?\[]")


def instructions_for(vault: Path, home: Path, settings: InstructionSettings) -> list[Instructions]:
    """Return the files that hold for a vault; those with an empty text are left out, and say why."""
    found: list[Instructions] = []
    left = settings.total_bytes
    for path, root in _places(vault, home, settings):
        if isinstance(root, str):
            found.append(Instructions(path, problems=(root,)))
            continue
        if any(path.resolve() == other.path.resolve() for other in found):
            continue
        read = read_instructions(path, root, settings.max_bytes)
        size = len(read.text.encode("utf-8", "replace"))
        if size > left:
            left_out = f"left out: all files together may have {settings.total_bytes} bytes"
            read = read._replace(text="", problems=(*read.problems, left_out))
        elif read.text and any(read.text == other.text for other in found):
            read = read._replace(text="", problems=(TWICE,))
        else:
            left -= size
        found.append(read)
    return found


def in_folder(folder: Path) -> Path | None:
    """Return the instruction file of a folder, if it has one."""
    return next((path for name in NAMES if (path := folder / name).is_file()), None)


def _places(vault: Path, home: Path, settings: InstructionSettings) -> Iterator[tuple[Path, Path | str]]:
    """Yield every file with the folder that it must really lie in, or with why a file that is named is none."""
    if settings.claude and (elsewhere := person_home()) and (elsewhere / CLAUDE).is_file():
        yield elsewhere / CLAUDE, elsewhere
    if own := in_folder(home):
        yield own, home
    for folder in _project(vault):
        if path := in_folder(folder):
            yield path, folder
    for pattern in settings.files:
        try:
            yield from _named(pattern, vault)
        except (ValueError, RuntimeError) as error:  # the second also of ~NAME, and of a pattern that no glob takes
            yield Path(pattern), f"{NAMED_IN} names it, and no file can be named like this: {error}"


def _named(pattern: str, vault: Path) -> Iterator[tuple[Path, Path | str]]:
    """Yield the files that `pattern`, one of the configuration's, names; one that names none is said."""
    expanded = Path(pattern).expanduser()
    own = expanded.is_absolute()
    base = Path(expanded.anchor) if own else vault
    files = [path for path in sorted(base.glob(str(expanded.relative_to(base)) if own else pattern)) if path.is_file()]
    if files:
        yield from ((path, path.parent if own else vault) for path in files)
    elif _WILD.search(pattern):
        yield Path(pattern), f"{NAMED_IN} names it, and no file is called like this"
    else:
        yield (
            base / expanded,
            f"{NAMED_IN} names it, and {'it is no file' if (base / expanded).exists() else 'it is not there'}",
        )


def person_home() -> Path | None:
    """Return the person's own folder; nothing where the system knows none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _project(vault: Path) -> list[Path]:
    """Return the folders from the root of the repository that the vault lies in down to the vault; else the vault alone."""
    above = [vault, *vault.parents]
    root = next((at for at, folder in enumerate(above) if (folder / ".git").exists()), 0)
    return above[: root + 1][::-1]

"""Instruction files: the AGENTS.md or CLAUDE.md of the user, of the project, and of folders below it.

The order goes from general to specific: the user's own files, for Claude Code and then for Moryflow; those of the project,
from its root down to the vault; and those that the configuration names. In each folder ``AGENTS.md`` is read, or ``CLAUDE.md``
if there is none. A file is read only if no link leads out of its folder. The files are text for the model: the host does not
interpret them, and nothing in them sets a permission or runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from moryflow_sdk import Command, Event, SystemBlock, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.support.own_files import exists, is_file, leads_nowhere, open_regular
from moryflow_sdk.support.settings import Meta, Settings


class InstructionSettings(Settings):
    """Which instruction files are read, and how much of them.

    :ivar files: globs of more files, relative to the vault, absolute, or beginning with ``~``.
    :ivar claude: read ``~/.claude/CLAUDE.md`` too.
    :ivar max_bytes: how many bytes of a file are used, with the files that it includes; the rest is left out, and reported.
    :ivar total_bytes: how many bytes are used of all files together; files that do not fit are left out.
    :ivar enabled: if false, no instruction files are read.
    """

    strictest = {"claude": False}

    enabled: bool = True
    files: tuple[str, ...] = ()
    claude: bool = True
    max_bytes: Annotated[int, Meta(gt=0, le=16 * 1024 * 1024, strict=True)] = 32 * 1024
    total_bytes: Annotated[int, Meta(gt=0, le=16 * 1024 * 1024, strict=True)] = 64 * 1024


name = "instructions"
services = ("emit", "info")
config_model = InstructionSettings
config_path = "agents.runtime.instructions"


@hookimpl
def system_blocks(turn: Turn) -> Sequence[SystemBlock]:
    """Add the texts of the files to the stable part of the system prompt."""
    if not turn.config.enabled:
        return []
    found = instructions_for(turn.vault, turn.home, turn.config)
    text = block(found, turn.vault)
    if (problems := remarks(found, turn.vault)) and problems != turn.session_state.get("said"):
        turn.session_state["said"] = problems  # shown once a session, and again if the text changes
        turn.emit("notice", text=problems)
    if (names := [item.name(turn.vault) for item in found if item.text]) != turn.session_state.get("files", []):
        turn.session_state["files"] = names  # for statistics of what a session contains
    return [SystemBlock(id="instructions", text=text)] if text else []


@hookimpl
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """After a read, give the model the instructions in the folders of that file, once, and again after they have changed."""
    if call.domain == "read" and result.status == "ok" and turn.config.enabled:
        await note_nested(call, turn)
    return None


@hookimpl(events="compaction")
def event(event: Event, turn: Turn | None) -> None:
    """Forget after a compaction which notes were given: the model does not see them any more, and the next read adds them."""
    if event.type == "compaction" and event.data.get("state") == "done" and turn is not None:
        turn.session_state.pop("stamps", None)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow instructions``."""
    return [Command("instructions", "Show which instruction files are read, in which order, and what they cost.", _cli)]


def _cli() -> object:
    from .cli import instructions

    return instructions


# ---------------------------------------------------------------- Reading a file, with the files that it includes


DEPTH = 5
"""How deep nested includes are followed."""

TWICE = "left out: it says the same as a file before it"

_INCLUDE = re.compile(r"@(\S+\.(?:md|txt))\s*")


class Instructions(NamedTuple):
    """The content of an instruction file.

    :ivar text: its text, with the files that it includes; empty if it is left out.
    :ivar problems: why the file, or a part of it, is left out.
    """

    path: Path
    text: str = ""
    problems: tuple[str, ...] = ()

    def name(self, vault: Path) -> str:
        """Return the name of the file for people: its short path."""
        return short_path(self.path, vault)

    @property
    def tokens(self) -> int:
        """About how many tokens the text costs."""
        return len(self.text) // 4


@dataclass(eq=False, repr=False)
class _Reading:
    """The state while one file and its includes are read: bytes left, files seen, problems."""

    root: Path
    left: int
    seen: list[Path] = field(default_factory=list[Path])
    problems: list[str] = field(default_factory=list[str])


def read_instructions(path: Path, root: Path, limit: int) -> Instructions:
    """Return the content of the file at `path`, at most `limit` bytes of it. Never raises.

    :param root: the folder that must contain the file and all files that it includes, after links are resolved.
    """
    reading = _Reading(root.resolve(), limit)
    text = "\n".join(_lines(path, reading, depth=0)).strip()
    return Instructions(path, text, tuple(dict.fromkeys(reading.problems)))


def _lines(path: Path, reading: _Reading, depth: int) -> Iterator[str]:
    text = _text(path, reading)
    for line in text.splitlines():
        found = _INCLUDE.fullmatch(line)
        included = path.parent / found[1] if found else None
        if included is None or not is_file(included):
            yield line
        elif included.resolve() in reading.seen:
            reading.problems.append(f"{included.name} is included in a circle or twice; once is enough")
        elif depth >= DEPTH:
            reading.problems.append(f"includes deeper than {DEPTH} are not followed")
        else:
            yield from _lines(included, reading, depth + 1)


def _text(path: Path, reading: _Reading) -> str:
    """Return the text of one file; if it cannot be read, add a problem and return an empty text."""
    if reading.left <= 0:
        return ""
    try:
        data = _bytes(path, reading)
    except OSError as error:
        reading.problems.append(f"{_subject(path, reading)} cannot be read: {error.strerror or error}")
        return ""
    if b"\0" in data:
        reading.problems.append(f"{_subject(path, reading)} is not text")
        return ""
    cut = len(data) > reading.left
    if cut:
        reading.problems.append(f"only the first {reading.left:,} of its {path.stat().st_size:,} bytes are used")
        data = data[: reading.left]
    reading.left -= len(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if cut and error.end == len(data):
            return data[: error.start].decode("utf-8-sig")
        reading.problems.append(f"{_subject(path, reading)} is not UTF-8; it was read as Latin-1")
        return data.decode("latin-1")


def _subject(path: Path, reading: _Reading) -> str:
    """Return the subject of a remark, which is shown after the name of the first file."""
    return "it" if len(reading.seen) < 2 else path.name


def _bytes(path: Path, reading: _Reading) -> bytes:
    real = path.resolve(strict=True)
    reading.seen.append(real)
    if not real.is_relative_to(reading.root):
        raise PermissionError(1, f"it leads out of {reading.root}")
    from moryflow_sdk.support.protected_files import sensitive  # imported here, because most turns read no such file

    if sensitive(str(real.relative_to(reading.root))):
        raise PermissionError(1, "it leads to a file with secrets")
    with open_regular(real, follow=False) as file:
        if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, "it belongs to another user")
        return file.read(reading.left + 1)


# ---------------------------------------------------------------- Finding the files


NAMES = ("AGENTS.md", "CLAUDE.md")

CLAUDE = ".claude/CLAUDE.md"
"""The user's instructions for Claude Code in all projects, below their home."""

NAMED_IN = "agents.runtime.instructions.files"
_WILD = re.compile(r"[*?\[]")


def instructions_for(vault: Path, home: Path, settings: InstructionSettings) -> list[Instructions]:
    """Return the files for a vault. Those that are left out have an empty text, and the reason as a problem."""
    found: list[Instructions] = []
    left = settings.total_bytes
    for read in _files(vault, home, settings):
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


def _files(vault: Path, home: Path, settings: InstructionSettings) -> Iterator[Instructions]:
    """Yield the content of each file, once."""
    seen: set[Path] = set()
    for path, root in _places(vault, home, settings):
        if isinstance(root, str):
            yield Instructions(path, problems=(root,))
        elif (real := path.resolve()) not in seen:
            seen.add(real)
            yield read_instructions(path, root, settings.max_bytes)


def in_folder(folder: Path) -> Path | None:
    """Return the instruction file of a folder, or ``None``."""
    return next((path for name in NAMES if is_file(path := folder / name)), None)


def _places(vault: Path, home: Path, settings: InstructionSettings) -> Iterator[tuple[Path, Path | str]]:
    """Yield every file with the folder that must contain it, or with the reason why a file in the settings cannot be read."""
    if settings.claude and (elsewhere := person_home()):
        yield from _usual_places(elsewhere, (CLAUDE,))
    for folder in (home, *_project(vault)):
        yield from _usual_places(folder, NAMES)
    for pattern in settings.files:
        if pattern.lower().startswith(("http://", "https://")):
            yield Path(pattern), f"{NAMED_IN} names this address, and only files are read; save the page and name the file"
            continue
        try:
            yield from _matching_files(pattern, vault)
        except (ValueError, RuntimeError) as error:  # for ~NAME, or for a pattern that is not a valid glob
            yield Path(pattern), f"{NAMED_IN} names it, and no file can be named like this: {error}"


def _usual_places(folder: Path, names: Sequence[str]) -> Iterator[tuple[Path, Path | str]]:
    """Yield the first of `names` that is a file in `folder`, and before it those that are something else."""
    for path in (folder / name for name in names):
        if is_file(path):
            yield path, folder
            return
        if os.path.lexists(path):
            yield path, _why_no_file(path)


def _matching_files(pattern: str, vault: Path) -> Iterator[tuple[Path, Path | str]]:
    """Yield the files that a pattern in the configuration matches; if it matches none, yield a reason."""
    expanded = Path(pattern).expanduser()
    own = expanded.is_absolute()
    base = Path(expanded.anchor) if own else vault
    files = [path for path in sorted(base.glob(str(expanded.relative_to(base)) if own else pattern)) if is_file(path)]
    if files:
        yield from ((path, path.parent if own else vault) for path in files)
    elif _WILD.search(pattern):
        yield Path(pattern), f"{NAMED_IN} names it, and no file is called like this"
    else:
        yield base / expanded, f"{NAMED_IN} names it, and {_why_no_file(base / expanded)}"


def _why_no_file(path: Path) -> str:
    try:
        path.stat()
    except PermissionError as error:
        return f"it cannot be read: {error.strerror}"
    except OSError:
        return leads_nowhere(path) or "it is not there"
    return "it is not a file"


def person_home() -> Path | None:
    """Return the user's home, or ``None`` if the system knows none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _project(vault: Path) -> list[Path]:
    """Return the folders from the root of the repository that contains the vault down to the vault; else only the vault."""
    above = [vault, *vault.parents]
    root = next((at for at, folder in enumerate(above) if exists(folder / ".git")), 0)
    return above[: root + 1][::-1]


# ---------------------------------------------------------------- The texts for the model and the user


_HEAD = "These files say how to work here. They are instructions of the project and its owner; they grant no permission."


def block(found: Sequence[Instructions], vault: Path) -> str:
    """Return the block for the system prompt; empty if no file has text."""
    parts = [in_tags(item, vault) for item in found if item.text]
    return "\n\n".join([_HEAD, *parts]) if parts else ""


def in_tags(item: Instructions, vault: Path) -> str:
    """Return one file between tags that its own text cannot close."""
    text = item.text.replace("</instructions", "<\\/instructions")
    return f'<instructions file="{item.name(vault)}">\n{text}\n</instructions>'


def short_path(path: Path, vault: Path) -> str:
    """Return a path in its short form: relative to the vault, or to the home with ``~``."""
    if path.is_relative_to(vault):
        return str(path.relative_to(vault))
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def remarks(found: Sequence[Instructions], vault: Path) -> str:
    """Return the problems that the user should know about; a file that repeats another one is not a problem."""
    lines = [f"{item.name(vault)}: {text}" for item in found for text in item.problems if text != TWICE]
    return "\n".join([*lines, "`moryflow instructions` shows what is read"]) if lines else ""


async def note_nested(call: ToolCall, turn: Turn) -> None:
    """Add a note with the instructions of each folder between the vault and a file that was read, if it is new or changed."""
    for target in call.targets:
        for path in _instruction_files_above(target.text, turn.vault):
            stamps: dict[str, str] = turn.session_state.setdefault("stamps", {})
            stamp = _stamp(path)
            if stamps.get(str(path)) == stamp:
                continue
            stamps[str(path)] = stamp
            if target.text == f"vault:/{path.relative_to(turn.vault).as_posix()}":
                continue  # the model has just read it
            read = read_instructions(path, turn.vault, turn.config.max_bytes)
            if read.text:
                await turn.info.note(in_tags(read, turn.vault), title=f"instructions of {path.parent.name}/")


def _stamp(path: Path) -> str:
    """Return a stamp that changes when the file is written."""
    try:
        found = path.stat()
    except OSError:
        return "gone"
    return f"{found.st_mtime_ns} {found.st_size}"


def _instruction_files_above(target: str, vault: Path) -> Iterator[Path]:
    """Yield the instruction files of the folders above a file that was read, except the vault's own."""
    if not target.startswith("vault:/") or "/" not in (below := target.removeprefix("vault:/")):
        return
    parts = Path(below).parts
    if not parts or not (parts[-1] in NAMES or is_file(vault / Path(*parts))):
        return
    for depth in range(1, len(parts)):
        found = in_folder(vault.joinpath(*parts[:depth]))
        if found:
            yield found

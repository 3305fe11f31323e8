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
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk import Command, Event, SystemBlock, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.support.own_files import exists, is_file, open_regular
from moryflow_sdk.support.settings import Settings


class InstructionSettings(Settings):
    """Which instruction files are read, and how much of them.

    :ivar files: globs of more files, relative to the vault, absolute, or beginning with ``~``.
    :ivar claude: read ``~/.claude/CLAUDE.md`` too.
    :ivar enabled: if false, no instruction files are read.
    """

    strictest = {"claude": False}

    enabled: bool = True
    files: tuple[str, ...] = ()
    claude: bool = True


# How many bytes of a file are used, with the files that it includes; the rest is left out, and reported.
MAX_BYTES = 32 * 1024
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


# How many bytes are read of a file at most.
LARGEST = 16 * 1024 * 1024
_INCLUDE = re.compile(r"^@(\S+\.(?:md|txt))[ \t]*$", re.MULTILINE)


class Instructions(NamedTuple):
    """The content of an instruction file.

    :ivar text: its text, with the files that it includes; empty if it is left out.
    :ivar problem: why the file, or a part of it, is left out.
    """

    path: Path
    text: str = ""
    problem: str = ""

    def name(self, vault: Path) -> str:
        """Return the name of the file for people: its short path."""
        return short_path(self.path, vault)

    @property
    def tokens(self) -> int:
        """About how many tokens the text costs."""
        return len(self.text) // 4


def read_instructions(path: Path, root: Path, limit: int) -> Instructions:
    """Return the content of the file at `path`, at most `limit` bytes of it. Never raises.

    :param root: the folder that must contain the file and all files that it includes, after links are resolved.
    """

    def included(found: re.Match[str]) -> str:
        other = path.parent / found[1]
        return _text(other, root) if is_file(other) else found[0]

    try:
        data = _INCLUDE.sub(included, _text(path, root)).strip().encode()
    except OSError as error:
        return Instructions(path, problem=f"it cannot be read: {error.strerror or error}")
    problem = f"only the first {limit:,} of its {len(data):,} bytes are used" if len(data) > limit else ""
    return Instructions(path, data[:limit].decode(errors="ignore"), problem)


def _text(path: Path, root: Path) -> str:
    """Return the text of one file, read as Latin-1 if it is not UTF-8."""
    data = _bytes(path, root.resolve())
    if b"\0" in data:
        raise OSError(1, "it is not text")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _bytes(path: Path, root: Path) -> bytes:
    real = path.resolve(strict=True)
    if not real.is_relative_to(root):
        raise PermissionError(1, f"it leads out of {root}")
    from moryflow_sdk.support.protected_files import sensitive  # imported here, because most turns read no such file

    if sensitive(str(real.relative_to(root))):
        raise PermissionError(1, "it leads to a file with secrets")
    with open_regular(real, follow=False) as file:
        if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, "it belongs to another user")
        return file.read(LARGEST)


# ---------------------------------------------------------------- Finding the files


NAMES = ("AGENTS.md", "CLAUDE.md")

# The user's instructions for Claude Code in all projects, below their home.
CLAUDE = ".claude/CLAUDE.md"

NAMED_IN = "agents.runtime.instructions.files"


def instructions_for(vault: Path, home: Path, settings: InstructionSettings) -> list[Instructions]:
    """Return the content of each file for a vault, once. Those that are left out have an empty text, and the reason."""
    found: dict[Path, Instructions] = {}
    for path, root in _places(vault, home, settings):
        real = path.resolve()
        if root is None:
            found.setdefault(real, Instructions(path, problem=f"{NAMED_IN} names it, and it is not there"))
        elif real not in found:
            found[real] = read_instructions(path, root, MAX_BYTES)
    return list(found.values())


def in_folder(folder: Path) -> Path | None:
    """Return the instruction file of a folder, or ``None``."""
    return next((path for name in NAMES if is_file(path := folder / name)), None)


def _places(vault: Path, home: Path, settings: InstructionSettings) -> Iterator[tuple[Path, Path | None]]:
    mine = person_home()
    if settings.claude and mine and is_file(mine / CLAUDE):
        yield mine / CLAUDE, mine
    for folder in (home, *_project(vault)):
        if path := in_folder(folder):
            yield path, folder
    for pattern in settings.files:
        files: list[Path] = []
        with suppress(ValueError, RuntimeError):  # for ~NAME, or for a pattern that is not a valid glob
            expanded = Path(pattern).expanduser()
            base = Path(expanded.anchor) if expanded.is_absolute() else vault
            below = str(expanded.relative_to(base)) if expanded.is_absolute() else pattern
            files = [path for path in sorted(base.glob(below)) if is_file(path)]
        yield from ((path, path.parent if Path(pattern).expanduser().is_absolute() else vault) for path in files)
        if not files:
            yield Path(pattern), None


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
    """Return the problems that the user should know about."""
    lines = [f"{item.name(vault)}: {item.problem}" for item in found if item.problem]
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
            read = read_instructions(path, turn.vault, MAX_BYTES)
            if read.text:
                await turn.info.note(in_tags(read, turn.vault), title=f"instructions of {path.parent.name}/")


def _stamp(path: Path) -> str:
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

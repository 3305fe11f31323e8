"""Instructions of folders below the vault, told when a file in them is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from moryflow_sdk import ToolCall, Turn

from .finding import NAMES, in_folder
from .reading import read_instructions
from .wording import quoted


async def tell_of(call: ToolCall, turn: Turn) -> None:
    """Note the instructions of every folder between the vault and a file that was read, unless they were told as they are."""
    for target in call.targets:
        for path in _above(target.text, turn.vault):
            told: dict[str, str] = turn.session_state.setdefault("stamps", {})
            stamp = _stamp(path)
            if told.get(str(path)) == stamp:
                continue
            told[str(path)] = stamp
            if target.text == f"vault:/{path.relative_to(turn.vault).as_posix()}":
                continue  # the model has just read it
            read = read_instructions(path, turn.vault, turn.config.max_bytes)
            if read.text:
                await turn.info.note(quoted(read, turn.vault), title=f"instructions of {path.parent.name}/")


def _stamp(path: Path) -> str:
    """Return what changes when somebody writes the file."""
    try:
        found = path.stat()
    except OSError:
        return "gone"
    return f"{found.st_mtime_ns} {found.st_size}"


def _above(target: str, vault: Path) -> Iterator[Path]:
    """Yield the instruction files of the folders that hold a read file, the vault's own left out."""
    if not target.startswith("vault:/") or "/" not in (below := target.removeprefix("vault:/")):
        return
    parts = Path(below).parts
    if not parts or not (parts[-1] in NAMES or (vault / Path(*parts)).is_file()):
        return
    for depth in range(1, len(parts)):
        found = in_folder(vault.joinpath(*parts[:depth]))
        if found:
            yield found

"""Checkers and formatters after edits: commands of the user's, run once after the last edit of a step. Off until one is named.

The model reads only problems that are new since before the step's edits, and what a formatter changed. A formatter runs before
the snapshot after the edit is taken, so that an undo takes its changes back too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from moryflow_sdk import Event, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

name = "checkers"
services = ("emit", "files", "history", "rules")
config_path = "agents.runtime.checkers"

# The tools whose changes are checked. Their names are known before a call is judged, its domain is not.
EDITS = frozenset({"write", "edit", "multiedit", "apply_patch", "delete"})


def _splits(command: str) -> str:
    import shlex

    if not shlex.split(command):  # raises ValueError for quotation marks that do not fit together
        raise ValueError("the command is empty")
    return command


class CheckerCommand(Settings):
    """A command to run after edits.

    :ivar glob: the edited files that it is for; several globs are separated by commas.
    :ivar command: the program with its arguments, without a shell; `{files}` stands for the edited files.
    :ivar name: how it is named to you and the model; by default its program.
    :ivar formatter: whether it changes the files; it then gets them as its last arguments, unless it says `{files}`.
    """

    glob: Annotated[str, Meta(min_length=1)] = "*"
    command: Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]*$", then=_splits)]
    name: str = ""
    formatter: bool = False


class CheckerSettings(Settings):
    """What is run after edits."""

    commands: Annotated[tuple[CheckerCommand | str, ...], Meta("presets by name, and commands of your own")] = ()

    @property
    def problems(self) -> list[str]:
        """Sentences about presets that do not exist."""
        wrong = [entry for entry in self.commands if isinstance(entry, str) and entry not in PRESETS]
        return [f"commands: there is no preset {entry!r:.40}; the presets are {', '.join(PRESETS)}" for entry in wrong]


config_model = CheckerSettings


class Checker(NamedTuple):
    """A command with its globs."""

    name: str
    globs: tuple[str, ...]
    words: tuple[str, ...]
    formatter: bool


_PYTHON, _SCRIPT = "*.py,*.pyi", "*.ts,*.tsx,*.mts,*.cts"
PRESETS: dict[str, tuple[str, str, bool]] = {
    "ruff": (_PYTHON, "ruff check --no-fix --force-exclude --output-format concise {files}", False),
    "ruff-format": (_PYTHON, "ruff format --force-exclude {files}", True),
    "pyright": (_PYTHON, "pyright {files}", False),
    "mypy": (_PYTHON, "mypy --no-error-summary --no-pretty {files}", False),
    "tsc": (_SCRIPT, "tsc --noEmit --pretty false", False),
    "eslint": (f"*.js,*.jsx,*.mjs,*.cjs,{_SCRIPT}", "eslint {files}", False),
    "gofmt": ("*.go", "gofmt -w {files}", True),
    "cargo": ("*.rs,Cargo.toml", "cargo check --quiet --message-format short", False),
    "clippy": ("*.rs,Cargo.toml", "cargo clippy --quiet --message-format short", False),
}


def checkers(config: CheckerSettings) -> list[Checker]:
    """Return the commands that the user named."""
    import shlex

    found: list[Checker] = []
    for entry in config.commands:
        if isinstance(entry, str):
            if entry not in PRESETS:
                continue
            called, (glob, command, formatter) = entry, PRESETS[entry]
        else:
            called, glob, command, formatter = entry.name, entry.glob, entry.command, entry.formatter
        words = tuple(shlex.split(command))
        words += ("{files}",) if formatter and "{files}" not in words else ()
        globs = tuple(part.strip() for part in glob.split(",") if part.strip())
        found.append(Checker(called or words[0].rpartition("/")[2], globs, words, formatter))
    return found


def _targets(texts: tuple[str, ...]) -> list[str]:
    return [text.removeprefix("vault:/") for text in texts if text.startswith("vault:/")]


@hookimpl(timeout=60.0, events=("tool.start",))
async def event(event: Event, turn: Turn | None) -> None:
    """Run the checkers before the first edit of a step, on what it is about to edit."""
    if turn is None or not turn.config.commands or event.data["tool"] not in EDITS or event.data["state"] != "running":
        return
    from .step import before_edit

    await before_edit(turn, _targets(event.data["targets"]))


@hookimpl(timeout=60.0)
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """After the last edit of a step, format what it edited, and add the problems that are new."""
    if not turn.config.commands or call.tool not in EDITS:
        return None
    from .step import after_edit

    return await after_edit(call, result, turn, _targets(tuple(target.text for target in call.targets)))


def doctor(config: CheckerSettings) -> Iterator[tuple[str, str, str]]:
    """Say for ``moryflow doctor`` which presets would work here, and which command of the user's has no program."""
    import shutil

    programs = {"ruff-format": "ruff", "clippy": "cargo-clippy"}
    there = [preset for preset in PRESETS if shutil.which(programs.get(preset, preset))]
    would = f"would work here: {', '.join(there)}" if there else f"none of {', '.join(PRESETS)} is installed"
    named = checkers(config)
    for one in named:
        if "/" not in one.words[0] and shutil.which(one.words[0]) is None:
            text, step = (
                f"{one.name}: the program {one.words[0]!r} is not found",
                f"install it, or remove it from {config_path}",
            )
            yield "warning", text, step
    yield "ok", f"{', '.join(one.name for one in named) or 'off'}; {would}", ""

"""The memory bank: notes about a project, which agents read before risky changes and write only after the user agreed.

A bank is a real folder ``memory-bank`` at the top of the vault. Without it, this plugin does nothing but look for it once a
turn. Each file of the bank has two parts: one that tools write, and one that belongs to the user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from moryflow_sdk import (
    Agent,
    Command,
    Deny,
    Message,
    SystemBlock,
    Target,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    Turn,
    file_target,
    hookimpl,
    task_target,
    tool,
)
from moryflow_sdk.support.settings import Meta, Settings

Count = Annotated[int, Meta(gt=0, le=1_000_000, strict=True)]

# Globs of paths whose change is high risk: keys, dependencies, migrations, infrastructure. Case is ignored.
#
# Files with secrets and files that run later are high risk too; they are in other tables, which permissions use as well.
SENSITIVE_PATHS: tuple[str, ...] = (
    "src/{auth,security}/**", "**/{auth,authn,authz,authentication,authorization,security,oauth,crypto}/**",
    "**/*{package,tsconfig}.json", "**/jsconfig.json", "**/{docker,infra,infrastructure,terraform,k8s,helm,deploy,ansible}/**",
    "**/{package-lock.json,npm-shrinkwrap.json,yarn.lock,pnpm-lock.yaml,pnpm-workspace.yaml,bun.lock,bun.lockb,deno.lock}",
    "**/{pyproject.toml,setup.py,setup.cfg,poetry.lock,uv.lock,pdm.lock,pipfile,pipfile.lock,environment.y*ml}",
    "**/{requirements*,constraints*}.{txt,in}", "**/{cargo.toml,cargo.lock,go.mod,go.sum,go.work}",
    "**/{gemfile,gemfile.lock,*.gemspec,composer.json,composer.lock,mix.exs,mix.lock,pubspec.yaml,pubspec.lock}",
    "**/{pom.xml,build.gradle,build.gradle.kts,settings.gradle,settings.gradle.kts,gradle.lockfile,*.csproj,packages.lock.json}",
    "**/{package.swift,package.resolved,podfile,podfile.lock,deno.json,flake.nix,flake.lock}",
    "**/{.github,.gitlab}/**",
    "**/{dockerfile,dockerfile.*,*.dockerfile,docker-compose*.y*ml,compose*.y*ml}", "**/*.{tf,bicep}",
    "**/{migrations,migration,alembic}/**",
)  # fmt: skip


class MemoryBankSettings(Settings):
    """How the memory bank is used.

    :ivar guard_mode: what happens before a write if the bank was not read: ``off``: nothing; ``warn``: a reminder;
        ``block``: high-risk writes are refused.
    :ivar sensitive_paths: globs for files whose change is high risk, relative to the working folder; they replace the
        built-in ones.
    :ivar more_sensitive_paths: more such globs; they do not replace the built-in ones.
    :ivar reader_files: to read more files than this in one turn, the model is told to start the agent ``memory-reader``.
    :ivar reader_lines: see ``readerFiles``.
    """

    strictest = {
        "guardMode": "block",
        "sensitivePaths": ["**"],
        "moreSensitivePaths": ["**"],
    }

    guard_mode: Literal["off", "warn", "block"] = "warn"
    sensitive_paths: tuple[str, ...] = SENSITIVE_PATHS
    more_sensitive_paths: tuple[str, ...] = ()
    reader_files: Count = 3
    reader_lines: Count = 300

    @property
    def hints(self) -> bool:
        """Whether the model gets hints to read and to propose. With the guard off, the bank is only shown and protected."""
        return self.guard_mode != "off"


# ---------------------------------------------------------------- The bank of a vault


FOLDER = "memory-bank"
MEMORY = f"{FOLDER}/MEMORY.md"
# How many characters of it go into the system prompt at most.
MAX_SHOWN = 8000
PATTERNS = f"{FOLDER}/details/patterns.md"
PREFIX = f"vault:/{FOLDER}"
SKILL = Path(__file__).parent / "skills" / "memory-bank"
# The agents of the bank. Any agent may start the reader; only `memory_write` starts the writer. The names grant nothing.
READER, WRITER = "memory-reader", "memory-bank-writer"
READ_TOOLS = ("read", "ls", "glob", "grep")
PROTOCOL_VERSION = "memory-bank/v1"
# The sections that the front page (`MEMORY.md`) must have, in this order.
SECTIONS = ("Project", "Routing Rules", "Top Quick Answers", "Drill-Down Protocol", "Write Safety")
USER_PLACEHOLDER = "Your own notes. No tool changes this part."
# The next step if there is no bank: only the user creates one, no tool and no command of an agent.
MADE_BY = "ask the user to run `moryflow memory-bank init`"


@cache
def page_of_skill(name: str) -> str:
    """Return a page of the skill that comes with Moryflow."""
    return (SKILL / "references" / name).read_text(encoding="utf-8")


class Bank(NamedTuple):
    """The memory bank of a vault.

    :param problem: why the bank cannot be used although something of that name exists.
    """

    vault: str
    problem: str = ""

    def has(self, name: str) -> bool:
        """Whether the regular file `name` (``memory-bank/…``) exists."""
        try:
            return stat.S_ISREG(os.lstat(f"{self.vault}/{name}").st_mode)
        except OSError:
            return False

    def required(self) -> str:
        """Return the file that must be read before a risky write; empty if the bank has neither of the two."""
        return next((name for name in (PATTERNS, MEMORY) if self.has(name)), "")


def usable_bank(turn: Turn) -> Bank | None:
    """Return the bank of the turn's vault if it can be used, else ``None``."""
    bank = bank_of(turn)
    return None if bank is None or bank.problem else bank


def bank_of(turn: Turn) -> Bank | None:
    """Return the bank of the turn's vault, whether or not it can be used."""
    return _bank_in_turn(turn.id, turn.vault) if turn.id else find_bank(turn.vault)


@lru_cache(maxsize=256)
def _bank_in_turn(_: str, vault: Path) -> Bank | None:
    """Look for the bank, once a turn: the first argument, the turn's id, is part of the cache's key."""
    return find_bank(vault)


def find_bank(vault: Path) -> Bank | None:
    """Return the bank of `vault`, or ``None``. A link is not followed, because it may lead anywhere."""
    try:
        mode = os.lstat(f"{vault}/{FOLDER}").st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return Bank(str(vault), f"{FOLDER} is a link, and a memory bank must be a folder of the vault itself")
    return Bank(str(vault)) if stat.S_ISDIR(mode) else None


def inside(target: Target) -> bool:
    """Whether a file target is the bank or in it, by its resolved path or by its path as given."""
    return target.kind == "file" and (_below(target.text) or (target.lexical is not None and _below(target.lexical)))


def name_in_bank(target: Target) -> str:
    """Return the path (``memory-bank/…``) of a target in the bank, or an empty text for other targets."""
    return target.text.removeprefix("vault:/") if target.kind == "file" and _below(target.text) else ""


def bank_path(target: str) -> str:
    """Return the path that a model means: ``details/a.md`` is relative to the bank, an absolute path stays as it is."""
    return target if target.startswith((f"{FOLDER}/", "/", "~")) else f"{FOLDER}/{target}"


def _below(text: str) -> bool:
    """Whether a target's text names the bank or something in it; case is ignored, because some volumes ignore it."""
    return text[: len(PREFIX) + 1].casefold() in (PREFIX, PREFIX + "/")


def as_text(data: bytes) -> str | None:
    """Return the text of a file of the bank; ``None`` if it is not UTF-8 text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n")


def read_text(turn: Any, name: str) -> str | None:
    """Return the text of the bank's file `name`, or ``None`` if it is missing, too large or not text."""
    files = turn.files
    target = files.resolve(name, domain="read")
    if target.error or target.text != f"vault:/{name}":
        return None
    try:
        return as_text(files.read(target, limit=1024 * 1024))
    except ToolError:
        return None


# ---------------------------------------------------------------- The two parts of a file


MACHINE = ("<!-- MACHINE_BLOCK_START -->", "<!-- MACHINE_BLOCK_END -->")
USER = ("<!-- USER_BLOCK_START -->", "<!-- USER_BLOCK_END -->")
MARKERS = (*MACHINE, *USER)


class Blocks(NamedTuple):
    """A file split at its markers: ``head + machine + between + user + tail`` is the file, byte for byte."""

    head: str
    machine: str
    between: str
    user: str
    tail: str

    @property
    def around(self) -> tuple[str, str, str, str]:
        """The parts that no tool may change."""
        return self.head, self.between, self.user, self.tail

    def with_machine(self, inner: str) -> str:
        """Return the text of the file with `inner` between the machine markers."""
        return f"{self.head}{MACHINE[0]}\n{inner.strip(chr(10))}\n{MACHINE[1]}{self.between}{self.user}{self.tail}"

    @property
    def machine_text(self) -> str:
        """The text between the machine markers."""
        return self.machine.removeprefix(MACHINE[0]).removesuffix(MACHINE[1])


def split(text: str) -> Blocks | None:
    """Return the blocks of a file, or ``None`` if it does not have each marker once, in order."""
    if any(text.count(marker) != 1 for marker in MARKERS):
        return None
    places = [text.index(marker) for marker in MARKERS]
    if places != sorted(places):
        return None
    machine_end = places[1] + len(MACHINE[1])
    user_end = places[3] + len(USER[1])
    return Blocks(
        head=text[: places[0]],
        machine=text[places[0] : machine_end],
        between=text[machine_end : places[2]],
        user=text[places[2] : user_end],
        tail=text[user_end:],
    )


def problem_of(text: str) -> tuple[str, int] | None:
    """Return the problem with the markers of a file, and its line; ``None`` if they are correct."""
    lines = text.splitlines()
    for marker in MARKERS:
        found = [number for number, line in enumerate(lines, 1) if marker in line]
        if not found:
            return f"{marker} is missing", 1
        if len(found) > 1 or text.count(marker) > 1:
            return f"{marker} occurs more than once", found[-1]
    if split(text) is None:
        return "the markers are not in order: machine block first, then the user's", 1
    return None


# ---------------------------------------------------------------- The plugin


name = "memory_bank"
services = ("emit", "files", "history", "spawn")
config_model = MemoryBankSettings
config_path = "agents.runtime.memoryBank"
gate = True


def _with_a_bank(turn: Turn) -> bool:
    return usable_bank(turn) is not None


@tool(domain="read", targets=lambda args: (file_target(bank_path(str(args["target"])), "read"),), offered_in=_with_a_bank)
async def memory_propose(
    target: Annotated[str, "the file of memory-bank/, for example details/patterns.md"],
    draft: Annotated[str, "Markdown to put there: conclusion first, its boundary, a pointer"],
    ctx: ToolContext,
    replaces: Annotated[str, "whole lines of the file that the draft takes the place of, as they stand there"] = "",
    why: Annotated[str, "one sentence: why it is worth keeping"] = "",
) -> ToolResult:
    """Propose something worth keeping in the memory bank. Nothing is written: the user is asked."""
    from .proposals import propose

    return await propose(ctx, target, draft, replaces, why)


@tool(domain="task", targets=lambda _: (task_target(WRITER),), offered_in=_with_a_bank)
async def memory_write(
    ctx: ToolContext, proposal: Annotated[str, "the id of the proposal; may be left out when there is one"] = ""
) -> ToolResult:
    """Have a proposal written after the user has replied mb:write to it, or is asked now. The writer does it, you never do."""
    from .writer import write

    return await write(ctx, proposal)


@hookimpl
def tools() -> list[Tool]:
    """Offer the tools ``memory_propose`` and ``memory_write``; without a bank, they are not shown to the model."""
    return [memory_propose, memory_write]


@hookimpl
def agents() -> list[Agent]:
    """Offer the reader, which answers with a context package. The writer is not offered: no agent may start it."""
    return [
        Agent(
            id=READER,
            name="Memory reader",
            description="Reads the memory bank and key sources for a question; answers with a context package.",
            mode="subagent",
            prompt=page_of_skill("memory-reader-prompt.md"),
            tools=READ_TOOLS,
            max_steps=20,
            source=name,
            needs=FOLDER,
        )
    ]


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow memory-bank``."""
    return [Command(name="memory-bank", help="Make and check the memory bank of this folder.", cli=_group)]


@hookimpl
def system_blocks(turn: Turn) -> list[SystemBlock]:
    """Add the protocol and MEMORY.md, but not for the reader and the writer, which have their own instructions."""
    bank = usable_bank(turn)
    if bank is None or (turn.spawned is not None and turn.agent.id in (READER, WRITER)):
        return []
    from .guard import sensitive_globs
    from .prompt import block_of

    if turn.config.guard_mode != "off":
        sensitive_globs(turn.config)  # compile them now, so that no gate has to wait for it
    return [block_of(turn, bank)]


@hookimpl
def chat_messages(messages: Sequence[Message], turn: Turn) -> Sequence[Message] | None:
    """Let reads count only while the model sees them; mark messages that speak for reading first or for a proposal."""
    if usable_bank(turn) is None:
        return None
    from .prompt import add_message_hints, forget_after_compaction

    forget_after_compaction(messages, turn)
    return add_message_hints(messages, turn)


@hookimpl
def tool_before(call: ToolCall) -> ToolCall | None:
    """Run the reader in the foreground, because the agent needs its answer."""
    if call.args.get("agent") != READER or not call.args.get("background"):
        return None
    return call.replace(args={**call.args, "background": False})


@hookimpl(before="permission")
async def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    """Protect the bank from writes, and require reading it before a risky write."""
    if turn.parent is None and not any(target.domain == "edit" for target in call.targets):
        return None
    from .guard import judge

    return await judge(call, turn)


@hookimpl
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Record which files of the bank were read, and add hints."""
    if usable_bank(turn) is None:
        return None
    from .guard import review_result

    return await review_result(call, result, turn)


def _group() -> Any:
    from .cli import memory_bank

    return memory_bank

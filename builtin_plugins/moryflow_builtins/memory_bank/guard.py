"""The guard of calls: how risky a write is, what must be read before it, and who may write in the bank.

Risk depends on the operation and the path, nothing else. After a call, the guard records what was read, and adds hints.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from moryflow_sdk import Deny, Target, ToolCall, ToolResult, Turn
from moryflow_sdk.risk import Risk, risk_functions
from moryflow_sdk.support.patterns import TooMany, braces, path_regex
from moryflow_sdk.support.protected_files import RUNS_LATER, SECRETS, sensitive

from . import FOLDER, MADE_BY, READER, SENSITIVE_PATHS, MemoryBankSettings, bank_of, inside, usable_bank
from .prompt import add_file_dates, escalation, has_read_required, note_package, note_reads
from .writer import Grant, grant_of

LEVELS: tuple[Risk, ...] = ("low", "medium", "high")

_PLAN = re.compile(r"\.moryflow/plans/[^/]+\.md")


def edit_targets(call: ToolCall) -> tuple[Target, ...]:
    return tuple(target for target in call.targets if target.domain == "edit")


def assess(call: ToolCall, settings: MemoryBankSettings) -> Risk:
    """Return the built-in judgement: several files, a folder, a listed tool or a sensitive path is ``high``."""
    targets = edit_targets(call)
    files = {target.path or target.text for target in targets}
    if len(files) > 1 or call.tool == "multiedit":
        return "high"
    if any(target.kind == "file" and target.identity is not None and Path(target.path or "").is_dir() for target in targets):
        return "high"
    matches = sensitive_globs(settings)
    names = [name for target in targets for name in _names(target)]
    if any(matches.match(name) for name in names):
        return "high"
    if settings.sensitive_paths == SENSITIVE_PATHS and any(map(_is_protected, names)):
        return "high"
    return "medium" if any(target.kind != "file" for target in targets) else "low"


def _is_protected(name: str) -> bool:
    # A plan is in Moryflow's folder, and nothing there runs.
    return bool(SECRETS.find(name) or RUNS_LATER.find(name)) and not _PLAN.fullmatch(name)


def risk_of(call: ToolCall, settings: MemoryBankSettings) -> Risk:
    """Return the risk of a write as a plugin judges it, else by the built-in judgement; a plugin that fails judges ``high``."""
    for function in risk_functions():
        try:
            judged = function(call)
        except Exception:  # foreign code
            judged = "high"
        if judged is not None:
            return judged if judged in LEVELS else "high"
    return assess(call, settings)


def _names(target: Target) -> tuple[str, ...]:
    """Return the paths of a target that globs are matched against: resolved and as given, in lower case."""
    texts = (target.text, target.lexical or target.text)
    return tuple(dict.fromkeys(text.partition(":")[2].lstrip("/").casefold() for text in texts))


def sensitive_globs(settings: MemoryBankSettings) -> re.Pattern[str]:
    """Return one compiled expression for the configured globs; it is cached."""
    return sensitive_paths((*settings.sensitive_paths, *settings.more_sensitive_paths))


@lru_cache(maxsize=8)
def sensitive_paths(globs: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for many globs. A glob that cannot be read matches everything, so that it protects too much."""
    sources: list[str] = []
    for glob in globs:
        try:
            sources += [path_regex("", one.casefold(), folders=True) for one in braces(glob.removeprefix("/"))]
        except (TooMany, ValueError):
            sources.append(".*")
    return re.compile("|".join(f"(?:{source})\\Z" for source in sources) or r"(?!)", re.DOTALL)


# When this many files changed in one turn, the model is reminded to propose what is worth remembering.
MANY_FILES = 5

WRITER_READS = frozenset({"read", "edit"})


async def judge(call: ToolCall, turn: Turn) -> Deny | None:
    """Judge a call. Permission rules and modes do not change the result."""
    if turn.spawned is not None:
        grant = grant_of(turn)
        if grant is not None:
            return _writer(grant, call)
    if turn.agent.id == READER and turn.parent is not None:
        refused = _reader(call)
        if refused is not None:
            return refused
    targets = edit_targets(call)
    if not targets:
        return None
    if any(inside(target) for target in targets):
        bank = bank_of(turn)
        if bank is None:
            return _deny(f"{FOLDER}/ is made and kept by its own commands", MADE_BY)
        if bank.problem:
            return _deny(f"nothing is written there: {bank.problem}", "tell the user to run `moryflow memory-bank check`")
        if turn.parent is not None:
            step = "say in your answer what should be kept there"
        else:
            step = "propose the change with memory_propose"
        return _deny(f"only the memory-bank writer may change {FOLDER}/", step)
    return await _before_write(call, turn)


def _deny(reason: str, next_step: str) -> Deny:
    return Deny(f"memory bank: {reason}", cause="memory_bank", bypass="never", next_step=next_step)


def _writer(grant: Grant, call: ToolCall) -> Deny | None:
    """Judge a call of the writer: it may edit the one file that the user agreed to, and read files without secrets."""
    wanted = f"vault:/{grant.proposal.target}"
    step = f"edit {grant.proposal.target} and end"
    if call.domain not in WRITER_READS or any(target.domain not in WRITER_READS for target in call.targets):
        return _deny(f"the writer may read and edit, not {call.tool}", step)
    for target in call.targets:
        if target.domain == "read" and not _readable(target):
            return _deny(f"the writer may not read {target.given}", step)
        if target.domain == "edit" and (target.text != wanted or target.lexical not in (None, wanted)):
            return _deny(f"the writer may change {grant.proposal.target} and nothing else", step)
    return None


def _reader(call: ToolCall) -> Deny | None:
    """Judge a call of the reader: it may only read, and no file that looks like one with secrets, whatever the rules allow."""
    if call.domain != "read":
        return _deny(f"the memory reader only reads, it may not use {call.tool}", "answer with the package")
    if not all(_readable(target) for target in call.targets):
        return _deny("the memory reader reads no secrets and nothing outside the working folder", "read another file")
    return None


def _readable(target: Target) -> bool:
    names = (target.text, target.lexical or target.text)
    return target.kind != "file" or all(name.startswith("vault:/") and not sensitive(name) for name in names)


async def _before_write(call: ToolCall, turn: Turn) -> Deny | None:
    """Deny a high-risk write before the bank was read (``block``), or prepare a reminder, which is added to the result."""
    settings: MemoryBankSettings = turn.config
    if settings.guard_mode == "off":
        return None
    bank = usable_bank(turn)
    if bank is None or has_read_required(turn, bank):
        return None
    required = bank.required()
    if not required:
        if not turn.session_state.get("toldOff"):
            turn.session_state["toldOff"] = True
            what = f"{FOLDER}/ has neither MEMORY.md nor details/patterns.md, so no write is gated"
            turn.emit("notice", text=f"memory bank: {what}. Next: moryflow memory-bank init")
        return None
    risk = risk_of(call, settings)
    targets = [target.text for target in edit_targets(call)]
    if settings.guard_mode == "block" and risk == "high":
        turn.emit("gate", action="blocked", risk=risk, targets=targets, required=required)
        return _deny(f"this is a high-risk write, and {required} was not read in this turn", f"read {required}")
    if risk not in turn.state.get("warned", ()):
        turn.emit("gate", action="warned", risk=risk, targets=targets, required=required)
        turn.emit("notice", text=f"memory bank: a {risk}-risk write to {', '.join(targets)[:200]}; {required} was not read")
        turn.state["warned"] = [*turn.state.get("warned", ()), risk]
        reminder = f"this was a {risk}-risk write, and {required} was not read in this turn. Next: read {required}"
        turn.state["waiting"] = {**turn.state.get("waiting", {}), call.id: reminder}
    return None


def add_result_hints(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult:
    """Return the result with at most one hint: a waiting reminder, or to start the reader, or to propose something."""
    waiting = turn.state.get("waiting")
    hint = ""
    if waiting and call.id in waiting:
        hint = waiting[call.id] if result.status == "ok" else ""
        turn.state["waiting"] = {key: text for key, text in waiting.items() if key != call.id}
    hint = hint or escalation(turn, turn.config) or proposal_hint(call, result, turn)
    return result.replace(output=f"{result.output}\n\n[memory bank] {hint}".lstrip()) if hint else result


def proposal_hint(call: ToolCall, result: ToolResult, turn: Turn) -> str:
    """Return, once a turn, the hint to propose something: after a risky change, or after many changed files."""
    settings: MemoryBankSettings = turn.config
    state = turn.state
    targets = [target.text for target in edit_targets(call) if not inside(target)]
    if not targets or result.status != "ok" or not settings.hints or turn.parent is not None or state.get("spoken"):
        return ""
    changed = sorted({*state.get("changed", ()), *targets})
    state["changed"] = changed
    if state.get("answers"):
        return ""
    if len(changed) >= MANY_FILES:
        what = f"{len(changed)} files were changed in this turn"
    elif assess(call, settings) == "high":
        what = f"{targets[0].partition('/')[2]} is a file whose changes usually follow a decision"
    else:
        return ""
    state["spoken"] = True
    return f"{what}. If one was made that is meant to last, propose it with memory_propose after the work is done"


async def review_result(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Return the result checked and hinted; ``None`` to leave it."""
    bank = usable_bank(turn)
    if bank is None:
        return None
    note_reads(call, result, turn)
    final = add_file_dates(result, call) if turn.agent.id == READER and turn.parent is not None else result
    if any(target.kind == "task" and target.text == f"task:{READER}" for target in call.targets) and result.status == "ok":
        from .reader import check_package

        final, whole = await check_package(result, turn, bank.required())
        if whole:
            note_package(turn)
    final = add_result_hints(call, final, turn)
    return None if final is result else final

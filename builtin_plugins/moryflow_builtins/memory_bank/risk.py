"""How risky a write is: by operation and path, nothing else."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from moryflow_sdk import Target, ToolCall
from moryflow_sdk.protected_files import RUNS_LATER, SECRETS
from moryflow_sdk.risk import Risk, RiskFunction, risk_functions

from .settings import SENSITIVE_PATHS, MemoryBankSettings

LEVELS: tuple[Risk, ...] = ("low", "medium", "high")
PATIENCE = 0.5
"""Seconds a plugin's own judgement may take."""

_PLAN = re.compile(r"\.moryflow/plans/[^/]+\.md")

_hung: list[RiskFunction] = []
"""Functions that took longer; they are not called again."""


def edited(call: ToolCall) -> tuple[Target, ...]:
    """Return what `call` is going to write."""
    return tuple(target for target in call.targets if target.domain == "edit")


def assess(call: ToolCall, settings: MemoryBankSettings) -> Risk:
    """Return the built-in judgement: several files, a folder or a listed tool is high, a sensitive path is high."""
    targets = edited(call)
    files = {target.path or target.text for target in targets}
    if len(files) > 1 or call.tool in settings.high_risk_tools:
        return "high"
    if any(_is_folder(target) for target in targets):
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


async def risk_of(call: ToolCall, settings: MemoryBankSettings) -> Risk:
    """Return the risk of a write: as a plugin judges it, else the built-in judgement."""
    for function in risk_functions():
        judged = await _judged_by(function, call)
        if judged is not None:
            return judged
    return assess(call, settings)


async def _judged_by(function: RiskFunction, call: ToolCall) -> Risk | None:
    """Ask a plugin's function. It is other people's code on a path that protects: whatever goes wrong means high."""
    if function in _hung:
        return "high"
    try:
        judged = await asyncio.wait_for(_in_thread(function, call), PATIENCE)
    except TimeoutError:
        _hung.append(function)
        return "high"
    return judged if judged is None or judged in LEVELS else "high"


def _in_thread(function: RiskFunction, call: ToolCall) -> asyncio.Future[Risk | None]:
    """Call `function` on a daemon thread, so that neither the loop nor the end of the program waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Risk | None] = loop.create_future()

    def work() -> None:
        try:
            judged = function(call)
        except BaseException:  # SystemExit too
            judged = "high"
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(judged))

    threading.Thread(target=work, name="memory-bank-risk", daemon=True).start()
    return future


def _is_folder(target: Target) -> bool:
    return target.kind == "file" and target.identity is not None and Path(target.path or "").is_dir()


def _names(target: Target) -> tuple[str, ...]:
    """Return the path of a target as globs see it, where it leads to and as it was given."""
    texts = (target.text, target.lexical or target.text)
    return tuple(dict.fromkeys(text.partition(":")[2].lstrip("/").casefold() for text in texts))


def sensitive_globs(settings: MemoryBankSettings) -> re.Pattern[str]:
    """Return the expression for the configured globs; made once."""
    return sensitive_paths((*settings.sensitive_paths, *settings.more_sensitive_paths))


@lru_cache(maxsize=8)
def sensitive_paths(globs: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for many globs; one that cannot be read matches everything, so that nothing is let through."""
    from moryflow_sdk.patterns.globs import TooMany, braces, path_regex

    sources: list[str] = []
    for glob in globs:
        try:
            sources += [path_regex("", one.casefold(), folders=True) for one in braces(glob.removeprefix("/"))]
        except (TooMany, ValueError):
            sources.append(".*")
    return re.compile("|".join(f"(?:{source})\\Z" for source in sources) or r"(?!)", re.DOTALL)

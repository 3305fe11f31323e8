"""What survives three compactions of a long coding session: forty planted facts, and several ways to keep them.

The summarizer is a stand-in that extracts, one that writes nothing, and the real local model where it is installed: set
``MORYFLOW_LOCAL_MODEL_HOME`` to a home that has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from conversations import Extractive, Item, append, path_of, step
from measuring import Figure, place
from moryflow import open_host
from moryflow.compaction.prune import PruneLimits, plan_pruning
from moryflow.runtime.session_commands import compact_now
from moryflow.store.messages import ContextBuilder

LOCAL = "MORYFLOW_LOCAL_MODEL_HOME"
FEW = 2
"""Words around the facts where a small model reads them on a processor: minutes instead of an hour."""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    return asyncio.run(_facts())


def _planted(words: int = 20) -> tuple[list[list[Item]], dict[str, list[str]]]:
    """Return 200 turns in four parts, and 40 facts by kind, all of them in the first three parts.

    :param words: how much is said around them.
    """
    facts: dict[str, list[str]] = {"files": [], "outputs": [], "denials": [], "failures": [], "said": []}
    turns: list[list[Item]] = []
    for number in range(200):
        items: list[Item] = [("user", {"text": f"Turn {number}: go on with the work. " + "Some words around it. " * words})]
        kind = ("files", "outputs", "denials", "failures", "said")[number % 5] if number < 120 and number % 3 == 0 else ""
        items += _fact(number, kind, facts) if kind else step(number, size=80 * words)
        turns.append([*items, ("assistant", {"text": "That is done. " * words, "calls": []})])
    return [[item for turn in turns[start : start + 50] for item in turn] for start in range(0, 200, 50)], facts


def _fact(number: int, kind: str, facts: dict[str, list[str]]) -> list[Item]:
    path = f"src/planted/module_{number}.py"
    call = {"id": f"c{number}", "name": "write", "arguments": json.dumps({"path": path})}
    output: dict[str, Any] = {"call_id": f"c{number}", "tool": "write", "status": "ok", "output": "written"}
    fact = path
    match kind:
        case "outputs":
            fact = f".agent-output/grep-{number}.txt"
            output |= {"tool": "grep", "output": "many lines\n" * 100, "path": fact, "output_id": f"o{number}"}
        case "denials":
            output |= {"status": "denied", "output": f"denied: rule {number} forbids it."}
            fact = f"rule {number} forbids it"
        case "failures":
            output |= {"status": "error", "output": f"the disk sector {number} is unreadable"}
            fact = f"the disk sector {number} is unreadable"
        case "said":
            fact = f"It must listen on port {7000 + number}"
            facts[kind].append(fact)
            return [("user", {"text": f"{fact}."}), *step(number)]
    facts[kind].append(fact)
    return [("assistant", {"text": "", "calls": [{**call, "name": output["tool"]}]}), ("tool", output)]


async def _facts() -> list[Figure]:
    parts, facts = _planted()
    total = sum(map(len, facts.values()))
    found = _after_pruning(parts, facts)
    kinds: list[tuple[str, Any]] = [
        ("host's sections alone", Extractive(64_000, keeps=False)),
        ("sections and an extract of what was said", Extractive(64_000)),
        ("sections and the local model's summary (fewer words between)", "local"),
    ]
    for name, model in kinds:
        view, seconds = await _after_three(_planted(FEW)[0] if model == "local" else parts, model)
        if not view:
            print(f"no figures for {name}: set {LOCAL} to a home with the model (moryflow model install local)")
            continue
        found += [
            (f"facts of {total} after three compactions, {name}", _survive(view, facts), "", None),
            (f"of them the host's own {_own(facts)} (files, outputs, denials, failures)", *_kept(view, facts)),
            ("tokens of that view, all included", len(view) / 4, "", None),
            ("time for its three compactions", seconds, "s", None),
        ]
    return found


def _after_pruning(parts: list[list[Item]], facts: dict[str, list[str]]) -> list[Figure]:
    path = path_of([item for part in parts for item in part])
    pruning = plan_pruning(path, {}, PruneLimits(10_000, 5_000, 3), lambda text: len(text) / 4)
    pruned = ContextBuilder().build(
        [*path, *path_of([*[("note", {"text": ""})] * len(path), ("prune", {"nodes": dict(pruning.nodes)})])[-1:]]
    )
    text = "\n".join(message.text + str(message.tool_calls) for message in pruned)
    total = sum(map(len, facts.values()))
    return [
        (f"facts of {total} after pruning only", _survive(text, facts), "", None),
        ("tokens of that view", len(text) / 4, "", None),
    ]


def _own(facts: dict[str, list[str]]) -> int:
    return sum(len(group) for kind, group in facts.items() if kind != "said")


def _kept(view: str, facts: dict[str, list[str]]) -> tuple[float, str, float]:
    """Return how many of the host's own facts are in `view`, as the rest of a figure; all of them must be."""
    own = _own(facts)
    kept = sum(fact in view for kind, group in facts.items() if kind != "said" for fact in group)
    return float(kept), f"of {own}", float(own)


def _survive(text: str, facts: dict[str, list[str]]) -> float:
    return float(sum(fact in text for group in facts.values() for fact in group))


async def _after_three(parts: list[list[Item]], model: Any) -> tuple[str, float]:
    """Return the view after three compactions and the seconds they took; nothing where the model is not installed.

    :param model: a provider, or ``local`` for SmolLM2 from the home that ``MORYFLOW_LOCAL_MODEL_HOME`` names.
    """
    local = model == "local"
    with place() as here:
        here.configure(agents={"runtime": {"compaction": {"maxOutputTokens": 128, "timeout": 900}}})
        installed = Path(os.environ.get(LOCAL) or here.home)
        if local and (installed / "runtime").is_dir():
            (here.home / "runtime").symlink_to(installed / "runtime")
        async with await open_host(here.home, environ={}, builtins=("moryflow_builtins.local_model",) if local else ()) as host:
            if not local:
                host.plugin_set = replace(host.plugin_set, providers=(model,))
            elif not _installed(host):
                return "", 0.0
            session = await host.new_session(here.vault, model="local" if local else None)
            seconds = 0.0
            for number, part in enumerate(parts):
                await append(host, session.id, part)
                began = time.perf_counter()
                if number:
                    await compact_now(host, session)
                seconds += time.perf_counter() - began
            view = ContextBuilder().build(await host.store.path(session.id))
    return "\n".join(message.text for message in view), seconds


def _installed(host: Any) -> bool:
    return host.models(host.plugin_set).choose("local")[0].installed()

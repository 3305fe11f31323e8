"""Old tool outputs become one line; the call and its result stay a pair (D15, D16, S0.19, S4.14). Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from .settings import CompactionSettings

if TYPE_CHECKING:
    from moryflow.sessions import Node

_FIRST_LINE = 100
_WORTH = 0.05
_TOO_LARGE = " · no room for it; ask for a smaller part"


@dataclass(frozen=True)
class Pruning:
    """Which nodes lose their output in the view, and what stands there instead."""

    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    saved: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.nodes)


@dataclass(frozen=True)
class PruneLimits:
    """How far pruning may go.

    :ivar protect: tokens of the newest outputs that stay.
    :ivar minimum: less saved than this is not worth a lost prompt cache (D15).
    :ivar turns: the newest turns are left alone.
    """

    protect: float
    minimum: float
    turns: int
    tools: tuple[str, ...] = ()


def limits_of(settings: CompactionSettings) -> PruneLimits:
    """Return the ordinary limits."""
    return PruneLimits(
        settings.prune_protect_tokens, settings.prune_minimum_tokens, settings.protected_turns, settings.protected_tools
    )


def harder(settings: CompactionSettings, room: float) -> PruneLimits:
    """Return the limits for when no summary could be had: scaled to the window, the newest turn still left alone."""
    protect = min(settings.prune_protect_tokens, room / 4)
    return PruneLimits(protect, min(settings.prune_minimum_tokens, room / 10), 1, settings.protected_tools)


def plan_pruning(nodes: Sequence[Node], done: Mapping[str, str], limits: PruneLimits, size: Callable[[str], float]) -> Pruning:
    """Return what to prune of the visible `nodes`; nothing when it saves too little.

    :param done: what is pruned already, by node id.
    :param size: tokens of a text.
    """
    found: dict[str, str] = {}
    dropped: Counter[str] = Counter()
    kept = saved = 0.0
    for node in reversed(nodes[: _before_turns(nodes, limits.turns)]):
        if node.kind != "tool" or node.id in done:
            continue
        tokens = size(node.payload.get("output", ""))
        kept += tokens
        tool = node.payload.get("tool", "")
        if kept <= limits.protect or any(fnmatchcase(tool, glob) for glob in limits.tools):
            continue
        line = placeholder(node.payload)
        if (gain := tokens - size(line)) > 0:
            found[node.id] = line
            dropped[tool] += 1
            saved += gain
    return Pruning(found, dict(dropped), saved) if found and saved >= limits.minimum else Pruning()


def plan_rescue(
    nodes: Sequence[Node], done: Mapping[str, str], excess: float, tools: Sequence[str], size: Callable[[str], float]
) -> Pruning:
    """Return what to prune where nothing else is left to go: outputs of the newest turn too, oldest first, no more than needed.

    :param excess: tokens that must go; an output that is a small part of them is left alone.
    """
    found: dict[str, str] = {}
    dropped: Counter[str] = Counter()
    saved = 0.0
    for node in nodes:
        tool = node.payload.get("tool", "")
        if node.kind != "tool" or node.id in done or any(fnmatchcase(tool, glob) for glob in tools):
            continue
        line = placeholder(node.payload, _TOO_LARGE)
        gain = size(node.payload.get("output", "")) - size(line)
        if gain < max(1.0, excess * _WORTH):
            continue
        found[node.id] = line
        dropped[tool] += 1
        saved += gain
        if saved >= excess:
            break
    return Pruning(found, dict(dropped), saved)


def plan_images(nodes: Sequence[Node], done: Mapping[str, str], keep_last: int = 0) -> Pruning:
    """Return a pruning of every image but those of the newest nodes: what is left out first when nothing else fits (D60)."""
    shown = [node for node in nodes if node.payload.get("images") and node.id not in done]
    shown = shown[: len(shown) - keep_last] if keep_last else shown
    found = {node.id: _image_line(node.payload) for node in shown if node.kind in ("user", "tool")}
    return Pruning(found, {"image": len(found)} if found else {}, float(len(found)))


def placeholder(payload: Mapping[str, Any], hint: str = "") -> str:
    """Return the line that stands for an output: tool, first line, size, stored path, and a hint (D16)."""
    output = payload.get("output", "")
    first = next((line.strip() for line in output.splitlines() if line.strip()), "")
    cut = first if len(first) <= _FIRST_LINE else first[: _FIRST_LINE - 1] + "…"
    stored = payload.get("path") or payload.get("output_id")
    where = f" · whole output: {stored}" if stored else ""
    return f"[pruned {payload.get('tool', 'tool')}: {cut} · {len(output)} characters{where}{hint}]"


def _image_line(payload: Mapping[str, Any]) -> str:
    number = len(payload["images"])
    return f"{payload.get('output', '')}\n[{number} image{'s' if number > 1 else ''} left out: no room]".lstrip()


def _before_turns(nodes: Sequence[Node], turns: int) -> int:
    """Return where the last `turns` turns begin; the newest outputs are counted from there back."""
    begins = [index for index, node in enumerate(nodes) if node.kind == "user"]
    return begins[-turns] if len(begins) >= turns else 0

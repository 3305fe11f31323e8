"""Replaces old tool outputs by one line in the view; every call keeps its result. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow.config.schema import UNKNOWN_WINDOW, CompactionSettings
from moryflow.store.messages import with_files

from .measure import IMAGE_TOKENS, Estimate
from .plan import finished_turns

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import Journal
    from moryflow.store import Node

# The context window for which the default settings are chosen.
_WINDOW = 128_000
_FIRST_LINE = 100
# Tokens that are kept at least of an output or text that is cut.
_LEAST = 64
_CUT = "[cut: the beginning of"
_TOO_LARGE = " · no room for it; ask for a smaller part"


@dataclass(frozen=True)
class Pruning:
    """Replacements for the content of nodes in the view.

    :ivar nodes: node id → the text shown instead.
    :ivar dropped: how many outputs of each tool were replaced.
    :ivar saved: tokens that the replacements save.
    """

    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    saved: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.nodes)


class PruneLimits(NamedTuple):
    """How far pruning may go.

    :ivar protect: tokens of the newest outputs that stay.
    :ivar minimum: tokens that must be saved at least; less is not worth a lost prompt cache.
    :ivar turns: how many of the newest finished turns are not pruned.
    :ivar tools: glob patterns of tools whose outputs are not pruned.
    """

    protect: float
    minimum: float
    turns: int
    tools: tuple[str, ...] = ()


def limits_of(settings: CompactionSettings, window: int | None) -> PruneLimits:
    """Return the ordinary limits. Default settings are scaled from a window of 128,000 tokens; the user's own are not."""
    own, share = settings.model_fields_set, (window or UNKNOWN_WINDOW) / _WINDOW
    protect = settings.prune_protect_tokens * (1.0 if "prune_protect_tokens" in own else share)
    minimum = settings.prune_minimum_tokens * (1.0 if "prune_minimum_tokens" in own else share)
    return PruneLimits(protect, minimum, settings.protected_turns, settings.protected_tools)


def plan_pruning(nodes: Sequence[Node], done: Mapping[str, str], limits: PruneLimits, size: Estimate) -> Pruning:
    """Return the outputs to prune among the visible `nodes`; none if they would save too little.

    Outputs of the newest finished turns stay, and so do outputs that the model has not seen yet.

    :param done: the replacements of nodes that are pruned already, by node id.
    :param size: returns the tokens of a text.
    """
    left_alone = finished_turns(nodes, limits.turns)
    unseen = unseen_from(nodes)
    found = _Replacements(done, size)
    kept = 0.0
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if node.kind != "tool":
            continue
        kept += found.tokens(node)
        if kept > limits.protect and place < unseen and place not in left_alone and not _is_of_tools(node, limits.tools):
            found.add(node, placeholder(node.payload))
    return found.pruning() if found.saved >= limits.minimum else Pruning()


def plan_cut(nodes: Sequence[Node], done: Mapping[str, str], room: float, size: Estimate) -> Pruning:
    """Return cuts that bring the outputs that the model has not seen yet to `room` tokens in total, the largest first."""
    found = _Replacements(done, size)
    found.cut_newest(nodes, room)
    return found.pruning()


def plan_fit(
    nodes: Sequence[Node], done: Mapping[str, str], excess: float, tools: Sequence[str] | None, size: Estimate
) -> Pruning:
    """Return a pruning that saves `excess` tokens, or as many as possible.

    Older outputs go first, the oldest before others, then the newest are cut, then protected outputs go. At last texts and
    images of the agent and of the user are cut, but not the newest prompt and answer; the next summary reads them whole.

    :param tools: the tools whose outputs are protected; ``None`` leaves all outputs alone.
    """
    found = _Replacements(done, size)
    outputs = [node for node in nodes[: unseen_from(nodes)] if node.kind == "tool"] if tools is not None else []
    for node in outputs:
        if found.saved < excess and not _is_of_tools(node, tools or ()):
            found.add(node, placeholder(node.payload, _TOO_LARGE))
    if found.saved < excess and tools is not None:
        found.cut_newest(nodes, max(0.0, unseen_tokens(nodes, done, size) - (excess - found.saved)))
    for node in outputs:
        if found.saved < excess:
            found.add(node, placeholder(node.payload, _TOO_LARGE))
    for kind in ("assistant", "user"):
        newest = next((node.id for node in reversed(nodes) if node.kind == kind), "")
        for node in nodes:
            if found.saved < excess and node.kind == kind and node.id != newest:
                text = with_files(node.payload)
                head = text[: int(len(text) * min(1.0, _LEAST / max(size(text), 1.0)))]
                found.add(node, f"{head}\n[cut: {len(text) - len(head)} more characters; there is no room and no summary]")
    return found.pruning()


class _Replacements:
    """Collects replacements for outputs and texts, and counts the tokens that they save."""

    def __init__(self, done: Mapping[str, str], size: Estimate) -> None:
        self._done = dict(done)
        self._size = size
        self._nodes: dict[str, str] = {}
        self._dropped: Counter[str] = Counter()
        self.saved = 0.0

    def tokens(self, node: Node) -> float:
        images = 0 if node.id in self._done else len(node.payload.get("images", ()))
        return self._size(_text_now(node, self._done)) + IMAGE_TOKENS * images

    def add(self, node: Node, line: str) -> None:
        gain = self.tokens(node) - self._size(line)
        if gain > 0:
            self._nodes[node.id] = self._done[node.id] = line
            self._dropped[node.payload.get("tool", "text")] += 1
            self.saved += gain

    def cut_newest(self, nodes: Sequence[Node], room: float) -> None:
        """Cut the outputs that the model has not seen yet to `room` tokens in total, the largest first."""
        new = [node for node in nodes[unseen_from(nodes) :] if node.kind == "tool"]
        tokens = sorted(map(self.tokens, new))
        share = room
        for number, own in enumerate(tokens):  # small outputs stay whole, and the room they do not use goes to the others
            share = room / (len(tokens) - number)
            if own > share:
                break
            room -= own
        for node in new:
            if self.tokens(node) > share:
                self.add(node, cut_output(node.payload, _text_now(node, self._done), max(share, _LEAST), self._size))

    def pruning(self) -> Pruning:
        return Pruning(self._nodes, dict(self._dropped), self.saved)


def _text_now(node: Node, done: Mapping[str, str]) -> str:
    return done.get(node.id) or (node.payload.get("output", "") if node.kind == "tool" else with_files(node.payload))


def _is_of_tools(node: Node, tools: Sequence[str]) -> bool:
    return any(fnmatchcase(node.payload.get("tool", ""), glob) for glob in tools)


def unseen_from(nodes: Sequence[Node]) -> int:
    """Return the index of the answer whose results the model has not seen yet, or ``len(nodes)`` if there is none."""
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if node.kind == "user":
            break
        if node.kind == "assistant":
            return place if node.payload.get("calls") else len(nodes)
    return len(nodes)


def unseen_tokens(nodes: Sequence[Node], done: Mapping[str, str], size: Estimate) -> float:
    """Return the tokens of the outputs that the model has not seen yet, as the view shows them."""
    return sum(size(_text_now(node, done)) for node in nodes[unseen_from(nodes) :] if node.kind == "tool")


def placeholder(payload: Mapping[str, Any], hint: str = "") -> str:
    """Return the line that replaces an output: tool, first line, size, stored path, and a hint."""
    output = payload.get("output", "")
    first = next((line.strip() for line in output.splitlines() if line.strip()), "")
    cut = first if len(first) <= _FIRST_LINE else first[: _FIRST_LINE - 1] + "…"
    return f"[pruned {payload.get('tool', 'tool')}: {cut} · {len(output)} characters{_whole_output(payload)}{hint}]"


def _whole_output(payload: Mapping[str, Any]) -> str:
    """Return a note on where the whole output is, or ``""`` if it is not stored."""
    stored = payload.get("path") or payload.get("output_id")
    return f" · whole output: {stored}" if stored else ""


def cut_output(payload: Mapping[str, Any], text: str, tokens: float, size: Estimate) -> str:
    """Return about the first `tokens` tokens of an output, with a line on its size and where the whole output is."""
    output = payload.get("output", "")
    line = f"{_CUT} {len(output)} characters; no room for more{_whole_output(payload)}; ask for a smaller part]"
    body = text.rpartition(f"\n{_CUT}")[0] or text
    free = max(0.0, tokens - size(line) - 1)
    head = body[: int(len(body) * min(1.0, free / max(size(body), 1.0)))]
    end = head.rfind("\n")
    head = head[:end] if end > len(head) / 2 else head
    return f"{head}\n{line}".lstrip("\n")


def note_pruning(journal: Journal, pruning: Pruning, tokens: float, trigger: str) -> None:
    """Add a prune node and its event to the journal. No node and no stored output is deleted."""
    journal.node("prune", {"nodes": dict(pruning.nodes)})
    tokens_after = max(0, round(tokens - pruning.saved))
    journal.event(
        "compaction",
        kind="prune",
        state="done",
        tokens_before=round(tokens),
        tokens_after=tokens_after,
        dropped=dict(pruning.dropped),
        trigger=trigger,
    )

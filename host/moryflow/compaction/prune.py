"""Replaces old tool outputs by one line in the view; every call keeps its result. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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

_WINDOW = 128_000
"""The context window for which the default settings are chosen."""
_FIRST_LINE = 100
_LEAST = 64
"""Tokens that are kept at least of an output or text that is cut."""
_WORTH = 0.05
_TEXT_KINDS = ("assistant", "user")
"""The kinds of nodes in earlier turns whose texts :func:`plan_texts` cuts, in this order."""
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

    def combined_with(self, later: Pruning) -> Pruning:
        """Return both combined; for a node in both, the replacement of `later` counts."""
        dropped = Counter(self.dropped) + Counter(later.dropped)
        return Pruning({**self.nodes, **later.nodes}, dict(dropped), self.saved + later.saved)


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


def strict_limits(settings: CompactionSettings, room: float) -> PruneLimits:
    """Return stricter limits for when no summary could be made: scaled to the room, and only the newest turn is not pruned."""
    protect = min(settings.prune_protect_tokens, room / 4)
    return PruneLimits(protect, min(settings.prune_minimum_tokens, room / 10), 1, settings.protected_tools)


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


def plan_rescue(nodes: Sequence[Node], done: Mapping[str, str], excess: float, tools: Sequence[str], size: Estimate) -> Pruning:
    """Return the outputs to prune when ordinary pruning is not enough: oldest first, of the newest turn too, until it fits.

    :param excess: tokens that must be saved; an output that would save only a small part of them stays.
    """
    found = _Replacements(done, size)
    for node in nodes[: unseen_from(nodes)]:
        if found.saved >= excess:
            break
        if node.kind == "tool" and not _is_of_tools(node, tools):
            found.add(node, placeholder(node.payload, _TOO_LARGE), least=max(1.0, excess * _WORTH))
    return found.pruning()


def plan_cut(nodes: Sequence[Node], done: Mapping[str, str], room: float, size: Estimate) -> Pruning:
    """Return cuts that bring the outputs that the model has not seen yet to `room` tokens in total, the largest first."""
    found = _Replacements(done, size)
    new = [node for node in nodes[unseen_from(nodes) :] if node.kind == "tool"]
    tokens = sorted(found.tokens(node) for node in new)
    share = room
    for number, own in enumerate(tokens):  # small outputs stay whole, and the room they do not use goes to the others
        share = room / (len(tokens) - number)
        if own > share:
            break
        room -= own
    for node in new:
        if found.tokens(node) > share:
            found.add(node, cut_output(node.payload, found.text(node), max(share, _LEAST), size))
    return found.pruning()


def plan_fit(nodes: Sequence[Node], done: Mapping[str, str], excess: float, tools: Sequence[str], size: Estimate) -> Pruning:
    """Return a pruning of outputs and images that saves `excess` tokens, or as many as possible.

    Older outputs go first, then the newest are cut, then protected outputs go, and images last.
    """
    found = Pruning()
    plans: tuple[Callable[[Mapping[str, str], float], Pruning], ...] = (
        lambda done, excess: plan_rescue(nodes, done, excess, tools, size),
        lambda done, excess: plan_cut(nodes, done, max(0.0, unseen_tokens(nodes, done, size) - excess), size),
        lambda done, excess: plan_rescue(nodes, done, excess, (), size),
        lambda done, excess: plan_images(nodes, done, excess),
    )
    for plan in plans:
        if found.saved >= excess:
            break
        found = found.combined_with(plan({**done, **found.nodes}, excess - found.saved))
    return found


class _Replacements:
    """Collects replacements for outputs, and counts the tokens that they save."""

    def __init__(self, done: Mapping[str, str], size: Estimate) -> None:
        self._done = done
        self._size = size
        self._nodes: dict[str, str] = {}
        self._dropped: Counter[str] = Counter()
        self.saved = 0.0

    def text(self, node: Node) -> str:
        return _output_now(node, self._done)

    def tokens(self, node: Node) -> float:
        return self._size(self.text(node))

    def add(self, node: Node, line: str, least: float = 0.0) -> None:
        """Show `line` instead of the output if that saves tokens, and at least `least` of them."""
        gain = self.tokens(node) - self._size(line)
        if gain > 0 and gain >= least:
            self._nodes[node.id] = line
            self._dropped[node.payload.get("tool", "")] += 1
            self.saved += gain

    def pruning(self) -> Pruning:
        return Pruning(self._nodes, dict(self._dropped), self.saved)


def _output_now(node: Node, done: Mapping[str, str]) -> str:
    return done.get(node.id) or node.payload.get("output", "")


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
    return sum(size(_output_now(node, done)) for node in nodes[unseen_from(nodes) :] if node.kind == "tool")


def plan_images(nodes: Sequence[Node], done: Mapping[str, str], excess: float) -> Pruning:
    """Return a pruning that leaves out images, the oldest first, until `excess` tokens are saved: the last resort."""
    shown = [node for node in nodes if node.kind in ("user", "tool") and node.payload.get("images") and node.id not in done]
    return _replace_until(
        excess, shown, "image", lambda node: (_image_line(node.payload), IMAGE_TOKENS * len(node.payload["images"]))
    )


def plan_texts(nodes: Sequence[Node], done: Mapping[str, str], excess: float, size: Estimate) -> Pruning:
    """Return cuts of texts that save `excess` tokens: answers to earlier prompts first, then those prompts, and last the
    agent's texts since the newest prompt, without its newest answer.

    For when no summary can be made and the request would not fit.
    """
    newest, last = (
        max((at for at, node in enumerate(nodes) if node.kind == kind), default=0) for kind in ("user", "assistant")
    )
    earlier = sorted(
        (node for node in nodes[:newest] if node.kind in _TEXT_KINDS), key=lambda node: _TEXT_KINDS.index(node.kind)
    )
    said = [*earlier, *(node for node in nodes[newest:last] if node.kind == "assistant")]

    def cut(node: Node) -> tuple[str, float]:
        text = with_files(node.payload)
        line = _cut_text(text, _LEAST, size)
        return line, size(text) - size(line)

    uncut = [node for node in said if node.id not in done and not node.payload.get("images")]
    return _replace_until(excess, uncut, "text", cut)


def _replace_until(excess: float, nodes: Sequence[Node], what: str, line_of: Callable[[Node], tuple[str, float]]) -> Pruning:
    """Replace `nodes` one by one until `excess` tokens are saved; `line_of` returns the new line and what it saves."""
    found: dict[str, str] = {}
    saved = 0.0
    for node in nodes:
        if saved >= excess:
            break
        line, gain = line_of(node)
        if gain > 0:
            found[node.id] = line
            saved += gain
    return Pruning(found, {what: len(found)} if found else {}, saved)


def _cut_text(text: str, tokens: float, size: Estimate) -> str:
    """Return about the first `tokens` tokens of `text`, and a line that says how much is missing."""
    head = text[: int(len(text) * min(1.0, tokens / max(size(text), 1.0)))]
    return f"{head}\n[cut: {len(text) - len(head)} more characters; there is no room and no summary]"


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


def _image_line(payload: Mapping[str, Any]) -> str:
    number = len(payload["images"])
    return f"{payload.get('output', '')}\n[{number} image{'s' if number > 1 else ''} left out: no room]".lstrip()


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

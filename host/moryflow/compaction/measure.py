"""Measures a view: the tokens that the provider counted, an estimate for the rest, and the limits that apply to them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import Message, ModelError, SystemPrompt, ToolSchema, Usage, thaw

from moryflow.config.schema import CompactionSettings
from moryflow.kernel.model_request import RequestBuilder
from moryflow.kernel.tool_call import offered_tools
from moryflow.store.messages import ContextBuilder

if TYPE_CHECKING:
    from moryflow.hooks.plugin_set import PluginSet, RegisteredTool
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.store import Node


Estimate = Callable[[str], float]

# Tokens of an image of unknown size; Anthropic counts width times height / 750, at most about 1,600.
IMAGE_TOKENS = 1200
_PIXELS_PER_TOKEN = 750
# Tokens that the wire format adds to each message, call and tool; counted where a limit must not be exceeded.
FRAME = 10
# If a provider's count is below this share of the estimate, the provider did not count the whole prompt.
_TRUSTED_SHARE = 0.25


_SIGNS = re.compile(r"[0-9!-/:-@\[-`{-~]")


def chars(text: str) -> float:
    """Return characters / 4, exactly."""
    return len(text) / 4


def estimator(name: str, plugin_set: PluginSet) -> Estimate:
    """Return the ``count_tokens`` of the plugin `name`; if it is missing or fails, characters / 4.

    ``config check`` and ``doctor`` report a missing one.
    """
    plugin = plugin_set.plugins.get(name)
    count = getattr(plugin.object, "count_tokens", None) if plugin else None
    if not callable(count):
        return chars

    def counted(text: str) -> float:
        try:
            value = float(count(text))  # type: ignore[arg-type]
        except Exception:  # a plugin's tokenizer must not stop a turn
            return chars(text)
        return value if 0 <= value < 1e9 else chars(text)

    return counted


def careful(text: str) -> float:
    """Return an estimate for requests that must fit a window: digits, signs and the bytes of wide characters count more."""
    wide = len(text.encode("utf-8", "replace")) - len(text)
    return len(text) / 4 + wide * 0.4 + len(_SIGNS.findall(text)) * 0.35


class Meter:
    """Estimates messages and caches the results, because the message of a node never changes.

    :param frame: tokens to add for each message and each call.
    """

    def __init__(self, estimate: Estimate = chars, frame: float = 0.0) -> None:
        self.estimate = estimate
        self.frame = frame
        self._known: dict[str, tuple[str, float]] = {}

    def message(self, message: Message) -> float:
        """Return an estimate of the tokens of `message`, with its images and calls."""
        found = self._known.get(message.node)
        if found is None or found[0] is not message.text:
            found = (message.text, self._count(message))
            if message.node:
                self._known[message.node] = found
        return found[1]

    def view(self, messages: Sequence[Message]) -> float:
        """Return an estimate of the tokens of `messages` together."""
        return sum(map(self.message, messages))

    def _count(self, message: Message) -> float:
        text = self.estimate(message.text) + self.frame
        if not (message.tool_calls or message.images):
            return text
        calls = sum(self.estimate(call.name + call.arguments) + 2 * self.frame for call in message.tool_calls)
        return text + calls + sum(_image(image.width, image.height) for image in message.images)


def _image(width: int | None, height: int | None) -> float:
    return min(1600.0, width * height / _PIXELS_PER_TOKEN) if width and height else IMAGE_TOKENS


def characters(messages: Sequence[Message]) -> int:
    """Return the characters of `messages`, arguments of calls included."""
    return sum(len(each.text) + sum(len(call.name + call.arguments) for call in each.tool_calls) for each in messages)


def request_tokens(path: Sequence[Node], view: Sequence[Message], meter: Meter, overhead: float) -> float:
    """Return the tokens of the next request.

    Up to the last answer, the usage that its provider counted is taken; if the view was shortened since, all is estimated.

    :param view: the messages of `path`.
    :param overhead: tokens of the system prompt and the tools.
    """
    estimate = overhead + meter.view(view)
    counted = last_counted(path)
    if counted is None:
        return estimate
    node, usage = counted
    rest = 0.0
    for message in reversed(view):
        if message.node == node:
            break
        rest += meter.message(message)
    if usage.input < _TRUSTED_SHARE * (estimate - rest):
        return estimate
    return usage.input + usage.output + rest


def last_counted(path: Sequence[Node]) -> tuple[str, Usage] | None:
    """Return the last answer whose provider counted a view that has not been shortened since, with its usage."""
    for node in reversed(path):
        if node.kind in ("compaction", "prune") or node.voids:
            return None
        if node.kind == "assistant" and node.payload.get("usage", {}).get("input", 0) > 0:
            usage = {name: value for name, value in node.payload["usage"].items() if name in Usage.model_fields}
            return node.id, Usage(**usage)
    return None


SHARE = 0.8
OUTPUT_BUDGET, OUTPUT_SHARE = 4096, 0.2


class Limit(NamedTuple):
    """The sizes at which a view is shortened, and at which a request is too large.

    :ivar tokens: a longer view is shortened.
    :ivar inclusive: whether a view of exactly `tokens` is already too long.
    :ivar most: the largest request that leaves room for the answer; the same as `tokens` if the window is unknown.
    """

    tokens: float
    inclusive: bool = False
    most: float = 0.0

    def is_exceeded_by(self, tokens: float) -> bool:
        """Whether a view of `tokens` is too long."""
        return tokens >= self.tokens if self.inclusive else tokens > self.tokens


def usable(window: int, output_budget: int | None = None) -> float:
    """Return the tokens of the window that remain for the request once the answer has its room."""
    return window - (min(OUTPUT_BUDGET, window * OUTPUT_SHARE) if output_budget is None else min(output_budget, window))


def limit_of(window: int | None, settings: CompactionSettings) -> Limit:
    """Return the limit for a context window; for an unknown one, the configured character limit / 4."""
    if not window or window < 0:
        tokens = settings.fallback_char_limit / 4
        return Limit(tokens, most=tokens)
    match settings.policy:
        case "share":
            limit = Limit(SHARE * usable(window, settings.output_budget))
        case "buffer":
            limit = Limit(max(window - settings.buffer, window / 2), inclusive=True)
        case "reserve":
            limit = Limit(max(window - settings.reserve, window / 2))
    return limit._replace(most=min(window, max(usable(window, settings.output_budget), limit.tokens)))


LESS = "moryflow session context shows what they cost; fewer tools, plugins or instructions, or a model with a larger window"
SHORTER = "give the agent a file that it can read in parts, or take a model with a larger window"
_SUMMARISE = "moryflow session compact, or moryflow run without -c, which begins a new session"


def does_not_fit(tokens: float, window: int) -> ModelError:
    """Return the error for a conversation that is larger than the window."""
    return too_large("the conversation does", tokens, window, _SUMMARISE)


def too_large(what: str, tokens: float, window: int, next_step: str) -> ModelError:
    """Return the error that something does not fit the window; `what` is subject and verb, such as "the prompt alone does"."""
    message = f"{what} not fit the window of the model: about {tokens:.0f} tokens of {window}"
    return ModelError(message, code="context", next_step=next_step)


class Report(NamedTuple):
    """The view of a session and its tokens.

    :ivar tokens: tokens of the next request, by the provider's own count where there is one.
    :ivar parts: estimated tokens of system, tools, instructions, summary and turns.
    :ivar plugins: estimated tokens that each plugin adds with prompt blocks and tools.
    :ivar blocks: the system prompt in its order: id, plugin (empty for the host's own), tokens and text of each block.
    :ivar sources: estimated tokens of tools by their source, such as an MCP server.
    """

    messages: Sequence[Mapping[str, Any]]
    tokens: int
    parts: Mapping[str, int]
    plugins: Mapping[str, int]
    blocks: Sequence[Mapping[str, Any]]
    sources: Mapping[str, int]
    window: int | None
    limit: int

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": sum(message["tokens"] for message in self.messages),
            "request_tokens": self.tokens,
            "window": self.window,
            "limit": self.limit,
            "parts": dict(self.parts),
            "plugins": dict(self.plugins),
            "blocks": list(self.blocks),
            "sources": dict(self.sources),
            "messages": list(self.messages),
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Report:
        """Return the report from the output of :meth:`as_json`, usually of another process."""
        return cls(tokens=found["request_tokens"], **{name: found[name] for name in _REPORTED})


_REPORTED = ("messages", "parts", "plugins", "blocks", "sources", "window", "limit")


async def report(scope: TurnContext, path: Sequence[Node], settings: CompactionSettings) -> Report:
    """Return what the next request of a session with this active `path` would contain."""
    meter = Meter(estimator(settings.estimator, scope.plugin_set))
    context = ContextBuilder()
    view = context.build(path)
    parts: Counter[str] = Counter({"system": 0, "tools": 0, "instructions": 0, "summary": 0, "turns": 0})
    plugins: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    blocks: list[dict[str, Any]] = []
    if scope.model is not None:
        builder = RequestBuilder(scope, context, scope.model)
        blocks = _count_prompt(await builder.system_prompt(), meter, parts, plugins)
        for owned, tokens in _tool_sizes(builder.schemas(), scope, meter):
            parts["tools"] += tokens
            plugins[owned.plugin] += tokens
            if owned.tool.source:
                sources[owned.tool.source] += tokens
    for message in view:
        parts["summary" if message.role == "system" else "turns"] += round(meter.message(message))
    overhead = parts["system"] + parts["tools"] + parts["instructions"]
    window = scope.model.context_window if scope.model else None
    return Report(
        messages=[
            {**message.model_dump(mode="json", exclude_defaults=True), "tokens": round(meter.message(message))}
            for message in view
        ],
        tokens=round(request_tokens(path, view, meter, overhead)),
        parts=parts,
        plugins=plugins,
        blocks=blocks,
        sources=sources,
        window=window,
        limit=round(limit_of(window, settings).tokens),
    )


def _count_prompt(prompt: SystemPrompt, meter: Meter, parts: Counter[str], plugins: Counter[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in prompt.blocks:
        tokens = round(meter.estimate(block.text))
        found.append({"id": block.id, "plugin": block.plugin, "tokens": tokens, "text": block.text})
        parts["instructions" if block.plugin else "system"] += tokens
        if block.plugin:
            plugins[block.plugin] += tokens
    return found


def _tool_sizes(schemas: Sequence[ToolSchema], scope: TurnContext, meter: Meter) -> Iterator[tuple[RegisteredTool, int]]:
    owners = offered_tools(scope)
    for schema in schemas:
        text = schema.name + schema.description + json.dumps(thaw(schema.parameters))
        yield owners[schema.name], round(meter.estimate(text))

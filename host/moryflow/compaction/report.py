"""What the model would see now, with tokens per part and per plugin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Message, SystemPrompt, ToolSchema, thaw

from moryflow.kernel.messages import ContextBuilder
from moryflow.kernel.model_request import RequestBuilder
from moryflow.kernel.tool_prepare import offered_tools

from .measure import Meter, limit_of, measured
from .memory import estimator

if TYPE_CHECKING:
    from moryflow.config.schema import CompactionSettings
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.store import Node


@dataclass(frozen=True)
class Report:
    """The view of a session and what it costs.

    :ivar tokens: of the next request, the provider's own count where there is one.
    :ivar parts: estimated tokens of system, tools, instructions, summary and turns.
    :ivar plugins: estimated tokens that each plugin adds with prompt blocks and tools.
    """

    messages: Sequence[Mapping[str, Any]]
    tokens: int
    parts: Mapping[str, int]
    plugins: Mapping[str, int]
    window: int | None
    limit: int

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "tokens": sum(message["tokens"] for message in self.messages),
            "request_tokens": self.tokens,
            "window": self.window,
            "limit": self.limit,
            "parts": dict(self.parts),
            "plugins": dict(self.plugins),
            "messages": list(self.messages),
        }


async def report(scope: TurnContext, path: Sequence[Node], settings: CompactionSettings) -> Report:
    """Return what the next request of a session with this active `path` would hold."""
    meter = Meter(estimator(settings.estimator, scope.plugin_set))
    context = ContextBuilder()
    view = context.build(path)
    parts: Counter[str] = Counter({"system": 0, "tools": 0, "instructions": 0, "summary": 0, "turns": 0})
    plugins: Counter[str] = Counter()
    if scope.model is not None:
        builder = RequestBuilder(scope, context, scope.model)
        _count_prompt(await builder.system_prompt(), meter, parts, plugins)
        _count_tools(builder.schemas(), scope, meter, parts, plugins)
    for message in view:
        parts["summary" if message.role == "system" else "turns"] += round(meter.message(message))
    overhead = parts["system"] + parts["tools"] + parts["instructions"]
    window = scope.model.context_window if scope.model else None
    return Report(
        messages=[_shown(message, meter) for message in view],
        tokens=round(measured(path, view, meter, overhead)),
        parts=parts,
        plugins=plugins,
        window=window,
        limit=round(limit_of(window, settings).tokens),
    )


def _count_prompt(prompt: SystemPrompt, meter: Meter, parts: Counter[str], plugins: Counter[str]) -> None:
    for block in prompt.blocks:
        tokens = round(meter.estimate(block.text))
        parts["instructions" if block.plugin else "system"] += tokens
        if block.plugin:
            plugins[block.plugin] += tokens


def _count_tools(
    schemas: Sequence[ToolSchema], scope: TurnContext, meter: Meter, parts: Counter[str], plugins: Counter[str]
) -> None:
    owners = offered_tools(scope)
    for schema in schemas:
        tokens = round(meter.estimate(schema.name + schema.description + json.dumps(thaw(schema.parameters))))
        parts["tools"] += tokens
        plugins[owners[schema.name].plugin] += tokens


def _shown(message: Message, meter: Meter) -> dict[str, Any]:
    return {**message.model_dump(mode="json", exclude_defaults=True), "tokens": round(meter.message(message))}

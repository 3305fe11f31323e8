"""The names of spans' attributes, in one table: OpenTelemetry's names for generative AI, and ours for the rest."""

from __future__ import annotations

# The version of the conventions that the names below follow. It is the last one that OpenTelemetry published in its own
# schemas; the names that we use are the same in the separate repository that continues them.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"

CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"

NAMES = {
    "agent": "gen_ai.agent.name",
    "arguments": "gen_ai.tool.call.arguments",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "call": "gen_ai.tool.call.id",
    "error": "error.type",
    "finish": "gen_ai.response.finish_reasons",
    "input": "gen_ai.usage.input_tokens",
    "input_messages": "gen_ai.input.messages",
    "model": "gen_ai.request.model",
    "operation": "gen_ai.operation.name",
    "output": "gen_ai.usage.output_tokens",
    "output_messages": "gen_ai.output.messages",
    "provider": "gen_ai.provider.name",
    "result": "gen_ai.tool.call.result",
    "session": "gen_ai.conversation.id",
    "tool": "gen_ai.tool.name",
    "tool_type": "gen_ai.tool.type",
    # Ours.
    "by": "moryflow.question.by",
    "cause": "moryflow.decision.cause",
    "cost": "moryflow.cost.usd",
    "count": "moryflow.hook.count",
    "decision": "moryflow.decision",
    "domain": "moryflow.tool.domain",
    "end_reason": "moryflow.turn.end_reason",
    "hook": "moryflow.hook",
    "kind": "moryflow.compaction.kind",
    "ms": "moryflow.tool.body_ms",
    "outcome": "moryflow.hook.outcome",
    "plugin": "moryflow.plugin",
    "plugin_set": "moryflow.plugin_set",
    "purpose": "moryflow.turn.purpose",
    "reply": "moryflow.question.reply",
    "state": "moryflow.compaction.state",
    "step": "moryflow.step",
    "steps": "moryflow.turn.steps",
    "tokens_after": "moryflow.compaction.tokens_after",
    "tokens_before": "moryflow.compaction.tokens_before",
    "trigger": "moryflow.compaction.trigger",
    "truncated": "moryflow.tool.truncated",
    "turn": "moryflow.turn",
    "us": "moryflow.hook.us",
    "verdict": "moryflow.hook.verdict",
}

# The conventions' names of services that Moryflow's models are named after otherwise.
PROVIDERS = {
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini", "mistral": "mistral_ai",
    "moonshot": "moonshot_ai", "vertex_ai": "gcp.vertex_ai", "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip


def provider_of(model: str) -> str:
    """Return the name of the service that a model's id begins with: ``openai/gpt-5`` is ``openai``."""
    name = model.partition("/")[0].partition(":")[0]
    return PROVIDERS.get(name, name)

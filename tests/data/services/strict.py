"""Strict servers on loopback that play sixteen services: they refuse what each is documented or reported to refuse.

The rules and their sources are in :data:`RULES`; ``docs/services.md`` has the same rows in words.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

Body = dict[str, Any]
SIGNATURE = "c2lnbmF0dXJlLW9mLXRob3VnaHQ="


class Rule(NamedTuple):
    """What some services refuse: `check` returns the message of the refusal, or an empty text."""

    services: frozenset[str]
    source: str
    check: Callable[[Body], str]
    param: str | None = None
    status: int = 400


class Service(NamedTuple):
    """A service: its name in the configuration, a model of it, and how it sends reasoning."""

    provider: str
    model: str
    reasoning: str = ""


SERVICES = {
    "openai": Service("openai", "gpt-5"),
    "azure": Service("azurecopy", "gpt-5"),
    "gemini": Service("gem", "gemini-3-flash", "extra_content"),
    "deepseek": Service("deepseek", "deepseek-flash", "reasoning_content"),
    "kimi": Service("moonshot", "kimi-k3", "reasoning_content"),
    "qwen": Service("qwen", "qwen3-max", "reasoning_content"),
    "glm": Service("zai", "glm-4.7", "reasoning_content"),
    "mistral": Service("mistral", "mistral-medium-latest", "content"),
    "openrouter": Service("openrouter", "google/gemini-3-pro", "reasoning_details"),
    "groq": Service("groq", "openai/gpt-oss-120b", "reasoning"),
    "bedrock": Service("gateway", "bedrock-claude", "thinking_blocks"),
    "anthropic": Service("anthropic", "claude-sonnet-4-5", "thinking_blocks"),
    "vllm": Service("vllm", "qwen3", "reasoning"),
    "llamacpp": Service("llamacpp", "qwen3", "reasoning_content"),
    "ollama": Service("ollama", "qwen3", "reasoning"),
    "lmstudio": Service("lmstudio", "qwen3", "reasoning"),
}
ALL = frozenset(SERVICES)
LOCAL = frozenset({"vllm", "llamacpp", "ollama", "lmstudio"})


def asked(body: Body) -> list[Body]:
    """The answers with calls in the history."""
    return [message for message in body["messages"] if message["role"] == "assistant" and message.get("tool_calls")]


def keys_of(body: Body, allowed: set[str], name: str) -> str:
    """What an answer in the history has beside the protocol's fields and those of the service itself."""
    known = {"role", "content", "tool_calls", *allowed}
    odd = [key for message in body["messages"] if message["role"] == "assistant" for key in message if key not in known]
    return f"'messages.1' : for 'role:assistant' property '{odd[0]}' is unsupported by {name}" if odd else ""


def schema_fault(body: Body) -> str:
    def fault(part: Any) -> str:
        if isinstance(part, list):
            return next(filter(None, map(fault, part)), "")
        if not isinstance(part, dict):
            return ""
        kind = part.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in part:
            return "array schema missing items"
        if not set(part.get("required", ())) <= set(part.get("properties", {})) and "properties" in part:
            return "required names no property"
        return next(filter(None, map(fault, part.values())), "")

    tools = [(tool["function"]["name"], fault(tool["function"]["parameters"])) for tool in body.get("tools", ())]
    return next((f"Invalid schema for function '{name}': {wrong}." for name, wrong in tools if wrong), "")


def pairs_fault(body: Body) -> str:
    """Each call needs its result right after the answer."""
    messages = body["messages"]
    for at, message in enumerate(messages):
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        if [later.get("tool_call_id") for later in messages[at + 1 : at + 1 + len(ids)]] != ids:
            return "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    return ""


def alternation_fault(body: Body) -> str:
    roles = [message["role"] for message in body["messages"]]
    if "system" in roles[1:]:
        return "System message must be at the beginning."
    return "Conversation roles must alternate" if any(a == b == "user" for a, b in zip(roles, roles[1:], strict=False)) else ""


def unsigned(body: Body) -> str:
    calls = [message["tool_calls"][0] for message in asked(body)]
    if all(((call.get("extra_content") or {}).get("google") or {}).get("thought_signature") for call in calls):
        return ""
    return "Function call is missing a thought_signature in functionCall parts."


def rule(services: set[str] | frozenset[str], source: str, check: Callable[[Body], str], **more: Any) -> Rule:
    return Rule(frozenset(services), source, check, **more)


def says(message: str, holds: Callable[[Body], bool]) -> Callable[[Body], str]:
    return lambda body: message if holds(body) else ""


RULES = [
    rule(ALL, "https://platform.openai.com/docs/guides/function-calling", pairs_fault),
    rule(
        {"openai", "azure"},
        "https://github.com/anomalyco/opencode/issues/37964",
        says(
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            lambda b: "max_tokens" in b,
        ),
        param="max_tokens",
    ),
    rule(
        {"openai", "azure", "kimi"},
        "https://github.com/Azure/agentic-cli-for-aks/issues/8",
        says("Unsupported value: 'temperature' does not support it with this model.", lambda b: b.get("temperature", 1) != 1),
        param="temperature",
    ),
    rule({"openai", "azure", "bedrock"}, "https://github.com/gumloop/guMCP/pull/136", schema_fault),
    rule(
        {"deepseek"},
        "https://api-docs.deepseek.com/guides/thinking_mode",
        says(
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            lambda b: not all(message.get("reasoning_content") for message in asked(b)),
        ),
    ),
    rule(
        {"kimi"},
        "https://github.com/anomalyco/opencode/issues/10996",
        says(
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
            lambda b: not all(message.get("reasoning_content") for message in asked(b)),
        ),
    ),
    rule({"gemini"}, "https://ai.google.dev/gemini-api/docs/thought-signatures", unsigned),
    rule(
        {"openrouter"},
        "https://github.com/massgen/MassGen/issues/624",
        says(
            "Gemini models require OpenRouter reasoning details to be preserved in each request.",
            lambda b: not all(message.get("reasoning_details") for message in asked(b)),
        ),
    ),
    rule(
        {"mistral"},
        "https://github.com/anomalyco/opencode/issues/1680",
        says(
            "Tool call id was wrong but must be a-z, A-Z, 0-9, with a length of 9.",
            lambda b: not all(re.fullmatch(r"[A-Za-z0-9]{9}", call["id"]) for m in asked(b) for call in m["tool_calls"]),
        ),
    ),
    rule(
        {"mistral"},
        "https://github.com/charmbracelet/crush/issues/1590",
        lambda body: keys_of(body, {"prefix"}, "mistral"),
        status=422,
    ),
    rule({"groq"}, "https://github.com/janhq/jan/issues/8136", lambda body: keys_of(body, {"reasoning"}, "groq")),
    rule(
        {"deepseek", "glm", "qwen"},
        "https://github.com/UKGovernmentBEIS/inspect_ai/issues/4916",
        says(
            "This response_format type is unavailable now", lambda b: b.get("response_format", {}).get("type") == "json_schema"
        ),
    ),
    rule(
        {"groq", "llamacpp"},
        "https://github.com/modelship-ai/modelship/pull/71",
        says("Cannot use custom grammar constraints with tools.", lambda b: bool(b.get("response_format") and b.get("tools"))),
    ),
    rule(
        {"bedrock"},
        "https://github.com/BerriAI/litellm/issues/24158",
        says(
            "litellm.UnsupportedParamsError: Bedrock doesn't support tool calling without `tools=` param specified.",
            lambda b: bool(asked(b)) and not b.get("tools"),
        ),
    ),
    rule(
        {"bedrock", "groq"},
        "https://github.com/BerriAI/litellm/issues/13407",
        says("does not support parameters: ['reasoning_effort']", lambda b: "reasoning_effort" in b),
    ),
    rule(LOCAL, "https://github.com/vllm-project/vllm/issues/41114", alternation_fault),
]


class StrictServer:
    """Plays one of the services.

    :ivar refused: the messages of its refusals; `bodies` are all requests.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self.refused: list[str] = []
        self.bodies: list[Body] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, body: Body) -> tuple[int, bytes]:
        self.bodies.append(body)
        for wanted in RULES:
            if self.service in wanted.services and (message := wanted.check(body)):
                self.refused.append(message)
                error = {"message": message, "type": "invalid_request_error", "param": wanted.param}
                return wanted.status, json.dumps({"error": error}).encode()
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in self._deltas(body)]
        return 200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, "[DONE]"]).replace(
            '"[DONE]"', "[DONE]"
        ).encode()

    def _deltas(self, body: Body) -> Iterator[tuple[Body, str | None]]:
        written = json.dumps(body["messages"], ensure_ascii=False)
        last = body["messages"][-1]
        if "You write the record" in written:
            yield {"content": "## Goal\nLook around.\n## Progress\nDone."}, "stop"
        elif "You name conversations" in written:
            yield {"content": "Looking around here"}, "stop"
        elif body.get("response_format") or "JSON Schema" in json.dumps(last):
            yield {"content": '{"n": 1}'}, "stop"
        elif last["role"] == "user" and "look" in json.dumps(last) and body.get("tools"):
            yield from self._calls()
        else:
            yield {"content": "all done"}, "stop"

    def _calls(self) -> Iterator[tuple[Body, str | None]]:
        """Reasoning in the form of the service, in pieces, then two calls at once."""
        number = len(self.bodies)
        calls: list[Body] = [
            {"index": at, "id": f"call-{number}-{at}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            for at in (0, 1)
        ]
        match SERVICES[self.service].reasoning:
            case "extra_content":
                calls[0]["extra_content"] = {"google": {"thought_signature": SIGNATURE}}
            case "reasoning_details":
                for text in ("I ", "look."):
                    yield {"reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0}]}, None
                sealed = {"type": "reasoning.encrypted", "data": SIGNATURE, "id": calls[0]["id"], "index": 0}
                yield {"reasoning_details": [sealed]}, None
            case "thinking_blocks":
                for piece in ({"thinking": "I look."}, {"thinking": "", "signature": SIGNATURE}):
                    yield {"thinking_blocks": [{"type": "thinking", **piece}]}, None
            case "content":
                yield {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I look."}]}]}, None
            case "":
                pass
            case key:
                for text in ("I ", "look."):
                    yield {key: text}, None
        yield {"tool_calls": calls}, None
        yield {}, "tool_calls"


def _blocks(message: Body) -> list[Body]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _anthropic_fault(body: Body) -> str:
    """What Anthropic refuses in a turn that thinks or calls tools.

    Sources: https://platform.claude.com/docs/en/build-with-claude/extended-thinking and
    https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview
    """
    messages = [(message["role"], _blocks(message)) for message in body["messages"]]
    for at, (_, blocks) in enumerate(messages):
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in (messages[at + 1][1] if calls else ()) if block["type"] == "tool_result"]
        if calls != results:
            return "`tool_use` ids were found without `tool_result` blocks immediately after"
        if any(block["type"] == "thinking" and block.get("signature") != SIGNATURE for block in blocks):
            return "Invalid `signature` in `thinking` block"
    for tool in body.get("tools", ()):
        if '"items": [' in json.dumps(tool):
            return "input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12"
    if not body.get("thinking"):
        return ""
    if body.get("temperature", 1) != 1:
        return "`temperature` may only be set to 1 when thinking is enabled"
    if body["max_tokens"] <= body["thinking"].get("budget_tokens", 0):
        return "`max_tokens` must be greater than `thinking.budget_tokens`"
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        return "Thinking may not be enabled when tool_choice forces tool use"
    answers = [blocks for role, blocks in messages if role == "assistant"]
    if messages[-1][1][0]["type"] == "tool_result" and answers[-1][0]["type"] not in ("thinking", "redacted_thinking"):
        return "Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    return ""


class StrictAnthropic(StrictServer):
    """Plays Anthropic's own protocol, which litellm speaks."""

    @property
    def url(self) -> str:
        return super().url.removesuffix("/v1")

    def answer(self, body: Body) -> tuple[int, bytes]:
        self.bodies.append(body)
        if message := _anthropic_fault(body):
            self.refused.append(message)
            return 400, json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).encode()
        blocks = list(self._answer_blocks(body))
        head = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "m",
            "usage": {"input_tokens": 7, "output_tokens": 1},
        }
        events: list[Body] = [{"type": "message_start", "message": head}]
        for at, (first, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": at, "content_block": first})
            events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": at})
        reason = "tool_use" if blocks[-1][0]["type"] == "tool_use" else "end_turn"
        events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}})
        events.append({"type": "message_stop"})
        return 200, "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()

    def _answer_blocks(self, body: Body) -> Iterator[tuple[Body, list[Body]]]:
        last = _blocks(body["messages"][-1])
        chat = {**body, "messages": [{"role": "system", "content": body.get("system", "")}, *body["messages"]]}
        looks = last[-1]["type"] != "tool_result" and "look" in json.dumps(last) and body.get("tools")
        deltas = list(
            self._deltas({**chat, "response_format": body.get("output_format") or body.get("output_config", {}).get("format")})
        )
        if not looks or "content" in deltas[0][0]:
            yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": deltas[0][0].get("content", "all done")}]
            return
        if body.get("thinking"):
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "I look."}, signed]
        for at in (0, 1):
            call = {"type": "tool_use", "id": f"toolu_{len(self.bodies)}_{at}", "name": "ls", "input": {}}
            yield call, [{"type": "input_json_delta", "partial_json": "{}"}]


def _handler(server: StrictServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, data = server.answer(body)
            self.send_response(status)
            self.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler

"""One model call: stream the answer, retry errors that may pass, note and publish what arrives."""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from moryflow_sdk import (
    Finished,
    ModelError,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    ReasoningDelta,
    Status,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolRequest,
    Usage,
    freeze,
    thaw,
)

from moryflow.base.events import later

from .model_request import RequestBuilder
from .tool_call import call_row
from .turn_context import Journal, TurnContext

TRIES = 5
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
# Tries for a server that refuses the connection. It rarely appears within seconds, and the user would wait for nothing.
UNREACHABLE_TRIES = 2
# A name that nothing resolves: this machine is offline, or the address is wrong, and each try may take ten seconds to say so.
_NO_NAME = re.compile(r"name or service not known|name resolution|nodename nor servname|getaddrinfo", re.IGNORECASE)

# The failures after which another model may be asked: of the service, and not of the request.
FALLS_BACK = frozenset({"rate_limit", "overloaded", "timeout", "unreachable"})

# Called before the wait between two attempts: the next attempt's number, the seconds until then, and the reason.
OnRetry = Callable[[int, float, str], Awaitable[None]]


class ModelCall:
    """The model's side of a turn."""

    def __init__(self, scope: TurnContext, journal: Journal, provider: ModelProvider | None) -> None:
        self._scope = scope
        self._journal = journal
        self._provider = provider
        self._message: AnswerEvents | None = None
        self._replaced = ""
        self._step_usage: tuple[Usage, float | None] = (Usage(), None)
        self._failed: set[str] = set()
        self.failure: ModelError | None = None
        """The error of an answer that broke off inside its calls. The turn raises it once those calls have their results."""

    def fallback(self, error: ModelError, requests: RequestBuilder) -> bool:
        """Go on with the next model of ``models.fallback`` that can take the request, and say so; whether there is one.

        Only after a failure that another service does not share, and only before anything of an answer arrived.
        """
        scope = self._scope
        if error.code not in FALLS_BACK or error.tool_calls or self._partial_text or self._replaced or scope.model is None:
            return False
        self._failed.add(scope.model.id)
        for name in scope.around.config.get("models.fallback") or ():
            found = ((each, info) for each in scope.plugin_set.providers if (info := each.find(name)) is not None)
            provider, model = next(found, (None, None))
            if provider is None or model is None or model.id in self._failed or not requests.fits(model):
                continue
            text = f"{scope.model.id} failed ({error.message}); going on with {model.id}"
            self._journal.event("session.notice", text=text)
            self._provider, scope.model = provider, model
            requests.switch(model)
            return True
        return False

    async def ask(self, requests: RequestBuilder) -> Finished:
        """Stream one answer and note it in the journal.

        :raises ModelError: the call failed; :meth:`keep_partial` then notes the text that had arrived.
        """
        request = await requests.build()
        self._replaced, self.failure = "", None
        self._message = AnswerEvents(self._journal, self._name_call)
        try:
            return self._end(await self._stream(request))
        except ModelError as error:
            if not error.tool_calls:
                raise
            self.failure = error
            calls = tuple(call.replace(problem=call.problem or "incomplete") for call in error.tool_calls)
            return self._end(Finished(reason="tool_calls", tool_calls=calls, extra=error.extra, origin=error.origin))
        finally:
            if self._message is not None:
                self._message.end("cut")

    def _end(self, finished: Finished) -> Finished:
        is_empty = finished.reason == "stop" and not finished.tool_calls and not self._partial_text.strip()
        self._scope.usage.finish = "empty" if is_empty else finished.reason
        return self.note(finished)

    async def _stream(self, request: ModelRequest) -> Finished:
        assert self._provider is not None
        throttle, provider = self._scope.around.throttle, request.model.provider
        while throttle and (seconds := await throttle.take(provider)) > 0:
            self._journal.delta("session.status", status="busy", text=f"{provider} is at its limit; {seconds:.0f} s")
            await asyncio.sleep(min(seconds, LONGEST_WAIT))
        finished = Finished()
        async for event in stream(self._provider, request, self._start_again):
            message = self._message
            assert message is not None
            match event:
                case TextDelta():
                    message.say("text", event.text)
                case ReasoningDelta():
                    message.say("reasoning", event.text)
                case ToolInputDelta():
                    message.input(event.call, event.name, event.text)
                case Status(lasting=True):
                    self._journal.event("session.notice", text=event.text)
                case Status():
                    self._journal.delta("session.status", status="busy", text=event.text)
                case Finished():
                    finished = event
        if throttle:
            await throttle.spend(provider, finished.usage.input + finished.usage.output)
        return finished

    async def _start_again(self, attempt: int, seconds: float, reason: str) -> None:
        """Mark the text so far as replaced by the next attempt's, and publish when that attempt begins."""
        assert self._message is not None
        self._message.end("retried")
        self._replaced = self._partial_text or self._replaced
        self._message = AnswerEvents(self._journal, self._name_call)
        data = {"attempt": attempt, "in": round(seconds, 1), "at": later(seconds), "reason": reason}
        self._journal.delta("session.status", status="retry", **data)

    def note(self, answer: Finished) -> Finished:
        """Note the assistant node and its calls; return the answer with call ids that are unique in the session."""
        scope = self._scope
        finished = answer.replace(tool_calls=tuple(self._unique(request) for request in answer.tool_calls))
        text, message = self._partial_text, self._message
        self._message, self._replaced = None, ""
        if message is not None:
            message.end(finished.reason)
        scope.node = message.id if message is not None else secrets.token_hex(8)
        payload: dict[str, Any] = {
            "text": text,
            "calls": [_call_json(call) for call in finished.tool_calls],
            "usage": finished.usage.model_dump(),
            "model": scope.model.id if scope.model else "",
            "finish": finished.reason,
        }
        if message is not None and message.reasoning:
            payload["reasoning"] = "".join(message.reasoning)
        if finished.extra or any(call.extra for call in finished.tool_calls):
            payload |= {"extra": thaw(finished.extra), "origin": finished.origin}
        self._journal.node("assistant", payload, scope.node)
        for call in finished.tool_calls:
            named = ToolCall.model_construct(id=call.id, tool=call.name[:200], args={}, step=scope.step)
            self._journal.call(call_row(scope, named, "pending", None, call.arguments))
            self._journal.event(
                "tool.start", call_id=call.id, tool=call.name, args=_parsed_arguments(call.arguments), state="pending"
            )
        self._account(finished.usage, text)
        return finished

    @property
    def _partial_text(self) -> str:
        """The text of the current answer, as far as it has arrived."""
        return "".join(self._message.text) if self._message is not None else ""

    def _account(self, usage: Usage, text: str) -> None:
        model = self._scope.model
        if model is not None and self._provider is not None and model.input_price is None:
            model = self._provider.find(model.id) or model  # the provider may have learned prices only while it answered
        cost = model.cost(usage) if model else None
        self._step_usage = (usage, cost)
        self._scope.usage.add(usage, cost)
        self._scope.budget.spend(cost=cost)
        self._scope.usage.text = text or self._scope.usage.text

    def _unique(self, request: ToolRequest) -> ToolRequest:
        """Return `request` with an id that is unique in the session. Results are matched by id, and models repeat ids."""
        message = self._message
        if message is None:
            return request.replace(id=self._name_call(request.id))
        if (published := message.call_id(request.id)) is not None:
            return request.replace(id=published)
        message.input(request.id, request.name, request.arguments)
        return request.replace(id=message.call_id(request.id))

    def _name_call(self, wanted: str) -> str:
        seen = self._scope.live.call_ids
        call_id = wanted if wanted and wanted not in seen else f"call_{secrets.token_hex(8)}"
        seen.add(call_id)
        return call_id

    def finish_step(self) -> None:
        """Note the end of the step, with its usage and cost."""
        usage, cost = self._step_usage
        tokens = {"input": usage.input, "output": usage.output, "cached": usage.cached}
        self._journal.event("step.finish", usage=tokens, cost=cost, node=self._scope.node)

    def keep_partial(self) -> None:
        """Note the text of an answer that was cut off: the user has already seen it."""
        place = self._message.id if self._message is not None and self._message.text else ""
        text, self._message = self._partial_text or self._replaced, None
        if not text:
            return
        self._scope.usage.text = text
        model = self._scope.model.id if self._scope.model else ""
        payload = {"text": text, "calls": [], "model": model, "finish": "cut", "partial": True}
        self._journal.node("assistant", payload, place)


def _parsed_arguments(arguments: str) -> Any:
    """Return the arguments as events carry them: parsed if they are JSON, else the model's text, cut at 2000 characters."""
    try:
        return freeze(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments[:2000]


def _call_json(call: ToolRequest) -> dict[str, Any]:
    kept = {"id": call.id, "name": call.name[:200], "arguments": call.arguments}
    extra = {"extra": thaw(call.extra)} if call.extra else {}
    return {**kept, **extra, **({"problem": call.problem} if call.problem else {})}


async def stream(provider: ModelProvider, request: ModelRequest, on_retry: OnRetry) -> AsyncIterator[ModelEvent]:
    """Yield the events of an answer. A retryable failure, also in the middle of the answer, starts a new try after a pause.

    :param on_retry: awaited before each further try; the new try's events replace those yielded before.
    :raises ModelError: the last try failed, or the error is not retryable.
    """
    attempt = 0
    is_reachable = False
    while True:
        attempt += 1
        try:
            async for event in provider.stream(request):
                is_reachable = is_reachable or not isinstance(event, Status)
                yield event
            return
        except ModelError as error:
            limit = UNREACHABLE_TRIES if error.code == "unreachable" and not is_reachable else TRIES
            if not error.retryable or attempt >= limit or (error.code == "unreachable" and _NO_NAME.search(error.message)):
                raise
            pause = wait_before(attempt, error.retry_after)
            await on_retry(attempt + 1, pause, error.message)
        await asyncio.sleep(pause)


def wait_before(attempt: int, retry_after: float | None) -> float:
    """Return the seconds to wait after failed attempt number `attempt`: doubling, with jitter, or `retry_after` up to 120."""
    if retry_after is not None:
        return min(max(retry_after, 0.0), 120.0)
    pause = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT)
    return pause * random.uniform(0.85, 1.15)


Kind = Literal["text", "reasoning", "tool_input"]


class AnswerEvents:
    """Collects an answer as it arrives, and publishes ``message.start``, the deltas, and ``message.end``.

    Each try of a model call is a message of its own.

    :ivar id: the ``message_id`` of its events; the node that stores the answer has the same id.
    :param name_call: returns a session-wide unique id for the id that the model gave a call.
    """

    def __init__(self, journal: Journal, name_call: Callable[[str], str]) -> None:
        self.id = secrets.token_hex(8)
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self._journal = journal
        self._name_call = name_call
        self._open: dict[str, Kind] = {}
        self._calls: dict[str, str] = {}

    def say(self, kind: Literal["text", "reasoning"], text: str) -> None:
        """Publish a piece of the answer's text or reasoning."""
        (self.text if kind == "text" else self.reasoning).append(text)
        self._begin(kind, kind)
        self._journal.delta(f"{kind}.delta", message_id=self.id, text=text)

    def input(self, call: str, tool: str, text: str) -> None:
        """Publish a piece of a call's arguments; `call` is the id that the model gave the call."""
        if call not in self._calls:
            self._calls[call] = self._name_call(call)
        call_id = self._calls[call]
        self._begin(call_id, "tool_input", call_id=call_id, tool=tool[:200])
        if text:
            self._journal.delta("tool.input.delta", message_id=self.id, call_id=call_id, text=text)

    def call_id(self, call: str) -> str | None:
        """Return the id under which the input of `call` was published, then forget it: a model may use one id for two calls."""
        return self._calls.pop(call, None)

    def end(self, finish: str) -> None:
        """Publish the end of every open part. `finish` is why the answer ended, or ``retried`` if another try replaces it."""
        for place, kind in self._open.items():
            about = {"call_id": place} if kind == "tool_input" else {}
            self._journal.delta("message.end", message_id=self.id, kind=kind, finish=finish, **about)
        self._open.clear()

    def _begin(self, place: str, kind: Kind, **about: str) -> None:
        if place not in self._open:
            self._open[place] = kind
            self._journal.delta("message.start", message_id=self.id, kind=kind, **about)

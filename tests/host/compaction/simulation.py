"""Random conversations against a model with real windows, which notes what is wrong with each request that it gets."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from moryflow.runtime.session_commands import compact_now, undo
from moryflow_sdk import (
    BaseProvider,
    ConfigError,
    Finished,
    Message,
    ModelError,
    ModelInfo,
    ModelRequest,
    TextDelta,
    ToolRequest,
    Usage,
)
from moryflow_sdk.chat_completions import Endpoint
from moryflow_sdk.chat_completions.request import Encoder

WINDOWS = (4000, 6000, 8000, 12_000, 16_000, 32_000, 64_000, 128_000, 200_000)

VOICE = """
services = ("spawn",)

@tool(domain="read", parallel_safe=True)
def say(word: str, characters: int) -> str:
    "Say it again and again."
    return (f"{word} " * characters)[:characters]

@tool(domain="read")
async def helper(prompt: str, ctx: ToolContext) -> str:
    "Let another agent do it."
    return (await ctx.spawn(Agent(id="child", prompt="Help."), prompt)).text

@hookimpl
def tools():
    return [say, helper]

@hookimpl
def tool_gate(call):
    return Allow()
"""

GOOD = "## Goal\nFinish.\n## Progress\n" + "Turn after turn was read and answered. " * 8 + "\n## Next Steps\nGo on."
SUMMARIES = {
    "good": GOOD,
    "long": "## Goal\nFinish.\n## Progress\n" + "Turn after turn was read and answered. " * 150,
    "chat": "Sure! What shall we do next?",
    "form": "## Goal\n\n## Progress\nNone.",
    "empty": "",
    "huge": GOOD + "and so on " * 20_000,
}


def wire_tokens(request: ModelRequest) -> float:
    """Return the characters / 4 of what goes over the wire, with all that stands around the words."""
    return len(Encoder(Endpoint("http://x/v1", "x")).body(request, "m").decode()) / 4


class SimulatedModel(BaseProvider):
    """Calls tools as chance and `plan` will, then answers.

    :ivar plan: the sizes of the outputs that each further step asks for.
    :ivar word: what the outputs say; else each says its own.
    :ivar answer: the characters of each answer; where it is 0, chance says.
    :ivar count: the tokens of a request.
    :ivar prompts: what was asked last in each session.
    :ivar wrong: what was wrong with a request.
    """

    name = "scripted"

    def __init__(self, window: int, seed: int = 0, *, summaries: Sequence[str] = ("good",), children: bool = False) -> None:
        self.window = window
        self.chance = random.Random(seed)
        self.summaries = summaries
        self.children = children
        self.steps = (0, 1, 2, 3, 6)
        self.sizes = (300, 300, 1500, 1500, 6000, 20_000, 50_000)
        self.plan: list[Sequence[int]] = []
        self.word = ""
        self.answer = 0
        self.count = wire_tokens
        self.prompts: dict[str, str] = {}
        self.wrong: list[str] = []
        self.requests: list[ModelRequest] = []
        self.asked: Counter[str] = Counter()
        self._left: dict[tuple[str, str], int] = {}
        self._calls = 0

    def find(self, model: str) -> ModelInfo | None:
        window = int(model.removeprefix("w")) if model[1:].isdigit() else self.window
        return ModelInfo(id=model, name=model, provider="scripted", context_window=window, tools=True)

    def default(self, environ: Any) -> str | None:
        return f"w{self.window}"

    async def stream(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        self.asked[request.purpose] += 1
        size, window = self.count(request), request.model.context_window
        if size > window:
            self.wrong.append(f"{request.purpose}: {size:.0f} tokens of {window}")
            raise ModelError("maximum context length", code="context")
        if request.purpose == "compact":
            kind = self.chance.choice(self.summaries)
            yield TextDelta(text=SUMMARIES.get(kind, GOOD))
            yield Finished(reason="length" if kind == "cut" else "stop", usage=Usage(input=round(size), output=100))
            return
        self._check(request)
        calls = self._next(request)
        times = self.answer // 10 or self.chance.choice([1, 10, 60])
        text = "" if calls else f"Answer {self._calls}. " + "It is so. " * times
        said = len(text) + sum(len(call.arguments) + 40 for call in calls)
        yield TextDelta(text=text)
        usage = Usage(input=round(size), output=round(said / 4))
        yield Finished(reason="tool_calls" if calls else "stop", tool_calls=calls, usage=usage)

    # ---------------------------------------------------------------- what it does

    def _next(self, request: ModelRequest) -> tuple[ToolRequest, ...]:
        if self.plan:
            return tuple(self._say(size) for size in self.plan.pop(0))
        key = (request.session, self.prompts[request.session])
        self._left.setdefault(key, self.chance.choice(self.steps))
        if not self._left[key]:
            return ()
        self._left[key] -= 1
        if self.children and request.purpose == "main" and self.chance.random() < 0.2:
            self._calls += 1
            prompt = f"Part {self._calls}: " + "look there " * self.chance.choice([2, 50])
            return (ToolRequest(id=f"c{self._calls}", name="helper", arguments=json.dumps({"prompt": prompt})),)
        return tuple(self._say(self.chance.choice(self.sizes)) for _ in range(self.chance.choice([1, 1, 2, 4])))

    def _say(self, size: int) -> ToolRequest:
        self._calls += 1
        arguments = {"word": self.word or f"w{self._calls}", "characters": size}
        return ToolRequest(id=f"c{self._calls}", name="say", arguments=json.dumps(arguments))

    # ---------------------------------------------------------------- what it looks at

    def _check(self, request: ModelRequest) -> None:
        who = request.purpose
        talk = [message for message in request.messages if message.role != "system"]
        if talk[0].role != "user":
            self.wrong.append(f"{who}: the first message is of {talk[0].role}")
        if any(message.role == "system" for message in request.messages[len(request.messages) - len(talk) :]):
            self.wrong.append(f"{who}: a system message behind others")
        if who == "child" and request.session not in self.prompts:
            self.prompts[request.session] = talk[-1].text
        prompt = self.prompts.get(request.session, "")
        if not any(message.role == "user" and message.text == prompt for message in talk):
            self.wrong.append(f"{who}: the prompt is missing")
        if not paired(talk):
            self.wrong.append(f"{who}: calls and results are not pairs")


def paired(talk: Sequence[Message]) -> bool:
    """Whether each call has exactly one result, right behind it and in order."""
    due: list[str] = []
    for message in talk:
        if message.role == "tool":
            if not due or due.pop(0) != message.call_id:
                return False
        elif due:
            return False
        due += [call.id for call in message.tool_calls]
    return not due


async def converse(model: SimulatedModel, host: Any, session: Any, turns: int) -> list[str]:
    """Hold a conversation of random prompts; return how the turns ended."""
    ends: list[str] = []
    for number in range(turns):
        words = model.chance.choice([2, 5, 20, 100])
        ends.append(await ask(model, session, f"Turn {number}: " + "please look at this " * words))
    return ends


async def ask(model: SimulatedModel, session: Any, prompt: str) -> str:
    """Ask, and return how the turn ended."""
    model.prompts[session.id] = prompt
    return (await session.prompt(prompt)).end_reason


async def wander(model: SimulatedModel, host: Any, session: Any, turns: int) -> list[str]:
    """Hold a conversation in which a person does everything that a person can do between two prompts."""
    ends: list[str] = []
    for number in range(turns):
        deed = model.chance.choice(["talk"] * 8 + ["compact", "undo", "branch", "model", "long"])
        try:
            if deed == "compact":
                await compact_now(host, session)
            elif deed == "undo":
                await undo(session)
        except ConfigError:
            pass
        if deed == "model":
            await session.set_model(f"w{model.chance.choice(WINDOWS)}")
        if deed == "branch":
            path = await host.store.path(session.id)
            places = [node.id for node in path if node.kind == "assistant" and not node.payload.get("calls")]
            if places:
                place = model.chance.choice(places)
                await session.note(lambda journal, place=place: journal.switch(place))
        words = model.chance.choice([2, 5, 20, 100])
        if deed == "long":
            words = int(model.window * model.chance.choice([0.05, 0.1]))
        ends.append(await ask(model, session, f"Turn {number}: " + "please look at this " * words))
    return ends

"""Operations on turns: prompt, follow to the end, stop."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from moryflow_sdk.support.secrets import hidden

from moryflow.kernel.outcome import RunOptions
from moryflow.runtime.answers import AnswerSchema
from moryflow.runtime.documents import init_json

from .operations import Call, operation
from .replies import RequestError
from .service import PromptRequest

OnAsk = Annotated[Literal["prompt", "deny", "fail"], "what to do with a question"]
Background = Annotated[
    Literal["wait", "leave"],
    "wait for sub-agents in the background and let the agent go on with what they give; or leave them at work",
]
Environment = Annotated[dict[str, str] | None, "variables for the turn's tools, in place of the server's; never stored"]


@operation("POST", "/sessions/{id}/prompt", "{turn}, once the prompt is stored", status=202)
async def prompt(
    at: Call,
    id: str,
    text: str,
    files: Annotated[list[dict[str, str]], "texts that go along: {path, text}"] = [],  # noqa: B006  it is never changed
    images: Annotated[list[dict[str, str]], "{media_type, data}, data in base64"] = [],  # noqa: B006
    agent: str | None = None,
    model: str | None = None,
    queue: Annotated[bool, "wait while the session works on another prompt"] = False,
    on_ask: OnAsk = "prompt",
    max_steps: int | None = None,
    max_cost: Annotated[float | None, "US dollars"] = None,
    schema: Annotated[dict[str, Any] | None, "a JSON Schema that the answer has to fit"] = None,
    environment: Environment = None,
    background: Background = "wait",
    typed: Annotated[int | None, "characters of text that a person typed, where the rest came from elsewhere"] = None,
) -> Any:
    """Begin a turn. With an Idempotency-Key, the same prompt sent again is the first one."""
    wanted = None if schema is None else AnswerSchema(schema)
    begun = await at.service.session(id)
    asked = text + (wanted.instructions if wanted else "")
    given = {"text": asked, "files": files, "images": images, "typed": len(text) if wanted and typed is None else typed}
    key = at.request.headers.get("idempotency-key", "")[:200]
    options = RunOptions(on_ask=on_ask, max_steps=max_steps, max_cost=max_cost, key=key)
    request = PromptRequest(given, options, queue, wanted, background == "leave", agent, model)
    turn = await at.service.begin(begun, request, environment)
    return {"session": begun.id, "turn": turn}


@operation("POST", "/sessions/{id}/resume", "{turn}", status=202)
async def resume(
    at: Call,
    id: str,
    on_ask: OnAsk = "prompt",
    max_steps: int | None = None,
    max_cost: Annotated[float | None, "US dollars"] = None,
    schema: Annotated[dict[str, Any] | None, "a JSON Schema that the answer has to fit"] = None,
    environment: Environment = None,
    background: Background = "wait",
) -> Any:
    """Go on with what a turn that was interrupted, or waits for an answer, has left."""
    wanted = None if schema is None else AnswerSchema(schema)
    begun = await at.service.session(id)
    options = RunOptions(on_ask=on_ask, max_steps=max_steps, max_cost=max_cost)
    request = PromptRequest(None, options, schema=wanted, leave=background == "leave")
    turn = await at.service.begin(begun, request, environment)
    return {"session": begun.id, "turn": turn}


@operation("GET", "/sessions/{id}/turns/{turn}", "the result, as `run --output json` prints it")
async def turn_result(at: Call, id: str, turn: str) -> Any:
    """Give the result of a turn; the end of one that began in this server is waited for."""
    row = await at.service.host.store.session(id)
    return (await at.service.result_of(row.id, turn)).as_json()


@operation("GET", "/sessions/{id}/trace", "turns with their hook calls, and what each plugin took")
async def trace(
    at: Call,
    id: str,
    turn: Annotated[str, "a number from 1, an id, or last; all, if none is named"] = "",
    plugin: Annotated[str | None, "only this plugin"] = None,
) -> Any:
    """Show what each plugin did in a session and its sub-agents, and what it cost."""
    from moryflow.authoring.trace import traced

    row = await at.service.host.store.session(id)
    return hidden((await traced(at.service.host, row.id, turn, plugin)).as_json())


@operation("GET", "/sessions/{id}/init", "the first line of `run --output stream-json`")
async def init(at: Call, id: str) -> Any:
    """Say who would answer where, with which plugins."""
    opened = await at.service.session(id)
    try:
        return init_json(at.service.host, opened)
    finally:
        at.service.let_go(opened)


@operation("POST", "/sessions/{id}/nobody-left", "{}")
async def nobody_left(at: Call, id: str) -> Any:
    """Refuse the open questions of the turn that runs, and all later ones: nobody is left to answer."""
    await at.service.host.approvals.nobody_left((await at.service.host.store.session(id)).id)
    return {}


@operation("POST", "/sessions/{id}/cancel", "{stopped: whether a turn ran here, sub_agents: how many in the background}")
async def cancel(at: Call, id: str) -> Any:
    """Stop the turn that runs, and its sub-agents; what they have is kept."""
    stopped = await at.service.session(id)
    running, below = at.service.at_work(stopped.id) is not None, len(stopped.children.running)
    if running or below:
        stopped.cancel()
    elif at.service.host.store.seems_held(stopped.id):
        raise RequestError(409, "elsewhere", "the turn runs in another process", "stop it there")
    at.service.let_go(stopped)
    return {"session": stopped.id, "stopped": running, "sub_agents": below}

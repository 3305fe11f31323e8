"""Operations on sessions and their turns: list, open, change, branch; prompt, follow to the end, stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from moryflow_sdk import thaw
from moryflow_sdk.models import Effort
from moryflow_sdk.support.secrets import hidden
from starlette.responses import StreamingResponse

from moryflow.base.paths import readable_vault
from moryflow.kernel.outcome import RunOptions
from moryflow.kernel.turn_context import HOST_STATE
from moryflow.runtime.documents import (
    approval_json,
    context_report,
    fork_session,
    init_json,
    last_nodes,
    node_id_of,
    node_json,
    requested_label,
    session_json,
    tree_of,
    with_title,
)
from moryflow.runtime.session_commands import compact_now, delete_session, record_label
from moryflow.runtime.session_commands import undo as void_compaction
from moryflow.runtime.session_stats import collect_outcomes, collect_stats
from moryflow.runtime.slash_lines import known_commands, run_line, slash_line
from moryflow.runtime.turn_result import AnswerSchema
from moryflow.store import SessionRow

from .operations import Call, operation
from .replies import RequestError
from .service import PromptRequest

MAX_ROWS = 1_000
JSONL = "application/jsonl"
Limit = Annotated[int, "at most this many"]
Mode = Literal["agent", "full_access"]


def _require_confirmation(mode: str | None, confirm: bool, how: str = 'send "confirm": true as well') -> None:
    if mode == "full_access" and not confirm:
        said = "full_access allows every tool what you may do yourself, without asking"
        raise RequestError(409, "confirm_required", said, how)


async def _described(at: Call, row: SessionRow) -> dict[str, Any]:
    return session_json(await with_title(at.service.host.store, row))


@operation("GET", "/sessions", "the sessions, last used first; busy: a turn runs, here or elsewhere")
async def sessions(
    at: Call,
    limit: Limit = 50,
    vault: Annotated[str | None, "only those of this folder"] = None,
    all: Annotated[bool, "hidden ones too: sub-agents, and single tool calls"] = False,
) -> Any:
    """List sessions, last used first."""
    store, limit = at.service.host.store, max(1, min(limit, MAX_ROWS))
    if at.user and at.service.owners is not None:
        rows = [await store.session(id) for id in await at.service.owners.sessions_of(at.user, limit)]
        rows = [row for row in rows if vault in (None, row.vault)]
    else:
        rows = await store.sessions(limit, vault=vault, purpose=None if all else "main")
    busy = [at.service.working_session(row.id) is not None or store.seems_held(row.id) for row in rows]
    return [{**await _described(at, row), "busy": is_busy} for row, is_busy in zip(rows, busy, strict=True)]


@operation("POST", "/sessions", "the session", status=201)
async def new_session(
    at: Call,
    vault: Annotated[str | None, "the folder to work in; where the server was started, if none is named"] = None,
    agent: str | None = None,
    model: str | None = None,
    mode: Mode | None = None,
    confirm: Annotated[bool, "needed for full_access"] = False,
    title: str = "",
) -> Any:
    """Begin a session."""
    _require_confirmation(mode, confirm)
    service, new = at.service, at.service.new
    await service.host.refresh_if_changed()  # the agent or the model may have been saved just now
    session = await service.host.new_session(
        vault or service.vault, agent=agent or new.agent, model=model or new.model, mode=mode or new.mode
    )
    if title:
        await session.note(lambda journal: journal.session(title=title))
    service.let_go(session)
    return session_json(session.row)


@operation("GET", "/search", "places: {session, node, kind, snippet}")
async def search(at: Call, q: Annotated[str, "the words to look for"], limit: Limit = 20) -> Any:
    """Search all sessions for what was said or read."""
    return [hit._asdict() for hit in await at.service.host.store.search(q, max(1, min(limit, MAX_ROWS)))]


@operation("GET", "/sessions/{id}", "the session with its nodes, open questions, what runs, and which sub-agents are working")
async def session(at: Call, id: str, limit: Annotated[int, "nodes at most, the last ones"] = 200) -> Any:
    """Show a session, and from which event on to follow it."""
    service, store = at.service, at.service.host.store
    row = await store.session(id)
    seq = service.events.head  # taken before the reads: a client that follows from here misses nothing, but may see some twice
    family = await store.family(row.id)
    path, open_calls = await store.path(row.id), await store.calls(row.id, states=("pending", "waiting", "running"))
    asked = [one for name in family for one in await store.approvals(session=name, state="pending")]
    below = await store.sessions(MAX_ROWS, purpose=None, parent=row.id)
    shown, here = last_nodes(path, limit), service.working_session(row.id) is not None
    kept = (await store.plugin_state(row.id)).get((HOST_STATE, "session")) or {}
    busy = here or store.seems_held(row.id)
    return {
        **(await _described(at, row)),
        "nodes": [node_json(node) for node in shown],
        "more": len(path) > len(shown),
        "turns": [run._asdict() for run in await store.runs(row.id)],
        "labels": await store.labels(row.id),
        "calls": [{**call._asdict(), "ruling": thaw(call.ruling)} for call in open_calls],
        "approvals": [approval_json(one) for one in asked],
        "working": [child.id for child in below if store.seems_held(child.id)],
        "effort": kept.get("effort"),
        "status": "waiting" if asked else "busy" if busy else "idle",
        "here": here,
        "partial": service.events.partial.get(row.id),
        "seq": seq,
    }


@operation("PATCH", "/sessions/{id}", "the session")
async def change_session(
    at: Call,
    id: str,
    mode: Mode | None = None,
    confirm: Annotated[bool, "needed for full_access"] = False,
    agent: str | None = None,
    model: str | None = None,
    title: str | None = None,
) -> Any:
    """Change the mode, the agent, the model or the title, from the next step on."""
    _require_confirmation(mode, confirm)
    if agent or model:
        await at.service.host.refresh_if_changed()
    async with at.service.opened(id) as changed:
        changed.check_choice(agent, model)  # check first: a refused request must change nothing
        if mode is not None:
            await changed.set_mode(mode)
        if agent is not None:
            await changed.set_agent(agent)
        if model is not None:
            await changed.set_model(model)
        if title is not None:
            await changed.note(lambda journal: journal.session(title=title))
    return await _described(at, await at.service.host.store.session(changed.id))


@operation("DELETE", "/sessions/{id}", "{deleted: [ids]}")
async def remove_session(at: Call, id: str) -> Any:
    """Delete a session with its outputs and its sub-agents. Audit files stay."""
    row = await at.service.host.store.session(id)
    return {"deleted": list(await delete_session(at.service.host, row))}


@operation("GET", "/sessions/{id}/nodes", "{nodes, more, whole: whether the path is another one than that of `parent`}")
async def nodes(
    at: Call,
    id: str,
    before: Annotated[int | None, "only those with a smaller seq"] = None,
    after: Annotated[int | None, "only those with a larger seq"] = None,
    parent: Annotated[str, "the id of the last node that is known, with after"] = "",
    limit: Limit = 200,
) -> Any:
    """Show nodes of the active path, oldest first: the last ones before a place, or those after one."""
    store = at.service.host.store
    path = await store.path((await store.session(id)).id)
    if parent and all(node.id != parent for node in path):
        return {"nodes": [], "more": False, "whole": True}
    wanted = [node for node in path if (before is None or node.seq < before) and (after is None or node.seq > after)]
    shown = last_nodes(wanted, limit) if after is None else wanted
    return {"nodes": [node_json(node) for node in shown], "more": len(wanted) > len(shown), "whole": False}


@operation("GET", "/sessions/{id}/messages", "{messages}")
async def messages(at: Call, id: str) -> Any:
    """Show what the model is sent of a session."""
    found = await _context(at, id)
    return {"session": found["session"], "messages": found["messages"]}


@operation("GET", "/sessions/{id}/context", "messages, and tokens by part and by plugin")
async def context(at: Call, id: str) -> Any:
    """Show what fills the window of the model, by source."""
    return await _context(at, id)


async def _context(at: Call, id: str) -> dict[str, Any]:
    async with at.service.opened(id) as looked_at:
        return {"session": looked_at.id, **(await context_report(at.service.host, looked_at, None)).as_json()}


@operation("GET", "/sessions/{id}/tree", "all nodes, labels and sub-agents")
async def tree(at: Call, id: str) -> Any:
    """Show all branches of a session and its sub-agents."""
    store = at.service.host.store
    return (await tree_of(store, await store.session(id))).as_json()


@operation("GET", "/sessions/{id}/ledger", "hook calls, oldest first")
async def ledger(at: Call, id: str, turn: str | None = None) -> Any:
    """Show what each plugin did in a session, or in one of its turns."""
    store = at.service.host.store
    rows = await store.hook_calls((await store.session(id)).id, turn)
    return [{name: thaw(value) for name, value in row._asdict().items() if name != "input"} for row in rows]


@operation(
    "GET",
    "/sessions/{id}/outcomes",
    "{calls: {id: milliseconds}, compactions: {run: tokens after it}, errors: by turn, turns, filled: tokens sent last}",
)
async def outcomes(at: Call, id: str) -> Any:
    """Say how long calls and turns took, and what turns failed with."""
    store = at.service.host.store
    row = await store.session(id)
    steps = await store.events(row.id, types=("step.finish",))
    filled = thaw(steps[-1].data).get("usage", {}).get("input") if steps else None
    turns = [run._asdict() for run in await store.runs(row.id)]
    return {**(await collect_outcomes(store, row)), "turns": turns, "filled": filled}


@operation("GET", "/sessions/{id}/stats", "counts of turns, tokens, tools, questions, hooks")
async def session_stats(at: Call, id: str) -> Any:
    """Count what happened in a session and its sub-agents."""
    store = at.service.host.store
    return await collect_stats(store, await store.session(id))


@operation("GET", "/sessions/{id}/export", "JSON Lines", raw=JSONL)
async def export(at: Call, id: str) -> Any:
    """Write a session and its sub-agents as JSON Lines, without loss."""
    store = at.service.host.store
    row = await store.session(id)

    async def lines() -> AsyncIterator[str]:
        async for line in store.export(row.id):
            yield line.rstrip("\n") + "\n"

    name = {"content-disposition": f'attachment; filename="{row.id}.jsonl"'}
    return StreamingResponse(lines(), media_type=JSONL, headers=name)


@operation("POST", "/import", "the session, with sub_agents", status=201, raw=JSONL)
async def import_session(
    at: Call, vault: Annotated[str | None, "the folder to work in; where the server was started, if none is named"] = None
) -> Any:
    """Take in a session that was exported, with its sub-agents. It never works in the folder that the file names."""
    store = at.service.host.store
    folder = readable_vault(vault or at.service.vault)
    row = await store.import_((await at.request.body()).splitlines(), str(folder))
    return {**session_json(row), "sub_agents": (await store.family(row.id))[1:]}


# -------------------------------------------------------------------- changes


@operation("POST", "/sessions/{id}/compact", "what the compaction did")
async def compact(at: Call, id: str, focus: Annotated[str, "what the summary must keep above all"] = "") -> Any:
    """Replace the older part of a conversation by a summary, in the model's view only."""
    async with at.service.opened(id) as opened:
        return {"session": opened.id, **await compact_now(at.service.host, opened, focus)}


@operation("POST", "/sessions/{id}/undo-compaction", "{voided: node}")
async def undo_compaction(at: Call, id: str) -> Any:
    """Let the model see again what the last compaction replaced."""
    async with at.service.opened(id) as opened:
        return {"session": opened.id, "voided": await void_compaction(opened)}


@operation("POST", "/sessions/{id}/switch", "{active: node}")
async def switch(at: Call, id: str, node: Annotated[str | None, "an id, its beginning, a label; null: the start"]) -> Any:
    """Go on from another node; nothing is lost."""
    async with at.service.opened(id) as opened:
        target = None if node is None else await node_id_of(at.service.host.store, opened.id, node)
        await opened.note(lambda journal: journal.switch(target))
        return {"session": opened.id, "active": target}


@operation("POST", "/sessions/{id}/fork", "the copy", status=201)
async def fork(at: Call, id: str, node: str | None = None, title: str = "") -> Any:
    """Copy the path to a node into a new session; the old one stays as it is."""
    store = at.service.host.store
    copy, remark = await fork_session(store, await store.session(id), node, title)
    return {**session_json(copy), "remark": remark}


@operation("POST", "/sessions/{id}/label", "{label, node, was}")
async def label(at: Call, id: str, label: str, node: str | None = None, remove: bool = False) -> Any:
    """Name a node, or take the name away."""
    async with at.service.opened(id) as opened:
        wanted = await requested_label(at.service.host.store, opened.row, label, node, remove=remove)
        await record_label(opened, wanted)
        return {"session": opened.id, **wanted.event_data}


How = Annotated[str, "yes; keep or force for files that someone else changed since; show only describes it"]


@operation("POST", "/sessions/{id}/undo", "{text: what was done, prompt}")
async def undo(at: Call, id: str, how: How = "yes") -> Any:
    """Take back the last turn, its messages and its changes to files; `step yes`: only its last step with tool calls."""
    return await _slash(at, id, "undo", how)


@operation("POST", "/sessions/{id}/redo", "{text: what was done, prompt}")
async def redo(at: Call, id: str, how: How = "yes") -> Any:
    """Do again what the last undo took back."""
    return await _slash(at, id, "redo", how)


@operation("POST", "/sessions/{id}/command", "{text: to be shown, prompt: to be sent, foreign: others wrote it}")
async def command(
    at: Call,
    id: str,
    name: Annotated[str, "without the slash"],
    text: str = "",
    confirm: Annotated[bool, "needed for `mode full_access`"] = False,
) -> Any:
    """Run a slash command: help, mode, model, agent, compact, share, or one that a plugin brings."""
    return await _slash(at, id, name, text, confirm)


async def _slash(at: Call, id: str, name: str, text: str, confirm: bool = False) -> dict[str, Any]:
    async def confirmed() -> bool:
        _require_confirmation("full_access", confirm, f'POST /sessions/{id}/command with "confirm": true')
        return True

    async with at.service.opened(id) as opened:
        result = await run_line(at.service.host, opened, (name, text), confirmed)
        return {"session": opened.id, "text": result.text, "prompt": result.prompt, "foreign": result.foreign}


OnAsk = Annotated[Literal["prompt", "deny", "fail"], "what to do with a question"]
Background = Annotated[
    Literal["wait", "leave"],
    "wait for sub-agents in the background and let the agent go on with what they give; or leave them at work",
]
EffortWord = Annotated[
    Effort | Literal["default"] | None, "how long the model reasons, from this turn on; default ends what was chosen"
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
    queue: Annotated[bool, "wait while the session is working on another prompt"] = False,
    on_ask: OnAsk = "prompt",
    max_steps: int | None = None,
    max_cost: Annotated[float | None, "US dollars"] = None,
    effort: EffortWord = None,
    schema: Annotated[dict[str, Any] | None, "a JSON Schema that the answer has to fit"] = None,
    environment: Environment = None,
    background: Background = "wait",
    typed: Annotated[int | None, "characters of text that the user typed, where the rest came from elsewhere"] = None,
) -> Any:
    """Begin a turn. Sent again with the same Idempotency-Key, a prompt begins no second turn.

    A text that is a slash command is run as one and reaches no model; `turn` is null unless the command gives a prompt.
    """
    said: dict[str, Any] | None = None
    if typed != 0 and (line := slash_line(text, known_commands(at.service.host))) is not None:
        said = await _slash(at, id, *line)
        if not said["prompt"]:
            return {**said, "turn": None}
        text, typed = said["prompt"], 0 if said["foreign"] else typed
    wanted = None if schema is None else AnswerSchema(schema)
    if agent or model:
        await at.service.host.refresh_if_changed()
    begun = await at.service.session(id)
    asked = text + (wanted.instructions if wanted else "")
    given = {"text": asked, "files": files, "images": images, "typed": len(text) if wanted and typed is None else typed}
    key = at.request.headers.get("idempotency-key", "")[:200]
    options = RunOptions(on_ask=on_ask, max_steps=max_steps, max_cost=max_cost, key=key, effort=effort, schema=schema)
    request = PromptRequest(given, options, queue, wanted, background == "leave", agent, model)
    turn = await at.service.begin(begun, request, environment)
    return {"session": begun.id, "turn": turn, **({"text": said["text"]} if said else {})}


@operation("POST", "/sessions/{id}/resume", "{turn}", status=202)
async def resume(
    at: Call,
    id: str,
    on_ask: OnAsk = "prompt",
    max_steps: int | None = None,
    max_cost: Annotated[float | None, "US dollars"] = None,
    effort: EffortWord = None,
    schema: Annotated[dict[str, Any] | None, "a JSON Schema that the answer has to fit"] = None,
    environment: Environment = None,
    background: Background = "wait",
) -> Any:
    """Continue a turn that was interrupted or waits for an answer."""
    wanted = None if schema is None else AnswerSchema(schema)
    begun = await at.service.session(id)
    options = RunOptions(on_ask=on_ask, max_steps=max_steps, max_cost=max_cost, effort=effort, schema=schema)
    request = PromptRequest(None, options, schema=wanted, leave=background == "leave")
    turn = await at.service.begin(begun, request, environment)
    return {"session": begun.id, "turn": turn}


@operation("GET", "/sessions/{id}/turns/{turn}", "the result, as `run --output json` prints it")
async def turn_result(at: Call, id: str, turn: str) -> Any:
    """Give the result of a turn; the end of one that began in this server is waited for."""
    row = await at.service.host.store.session(id)
    return await at.service.result_document(row.id, turn)


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
    async with at.service.opened(id) as opened:
        return init_json(at.service.host, opened)


@operation("POST", "/sessions/{id}/nobody-left", "{}")
async def nobody_left(at: Call, id: str) -> Any:
    """Refuse the open questions of the turn that runs, and all later ones: nobody is left to answer."""
    await at.service.host.approvals.nobody_left((await at.service.host.store.session(id)).id)
    return {}


@operation("POST", "/sessions/{id}/cancel", "{stopped: whether a turn ran here, sub_agents: how many in the background}")
async def cancel(at: Call, id: str) -> Any:
    """Stop the turn that runs, and its sub-agents; what they have is kept."""
    async with at.service.opened(id) as stopped:
        running, below = await at.service.cancel(stopped)
        return {"session": stopped.id, "stopped": running, "sub_agents": below}

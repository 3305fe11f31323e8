"""Operations on the host: questions, outputs, agents, tools, models, plugins, settings, and the server itself."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from moryflow_sdk import ConfigError, MoryflowError
from moryflow_sdk.calls import DomainName
from starlette.responses import Response

from moryflow import __version__
from moryflow.approvals import reply_of
from moryflow.base.paths import readable_vault
from moryflow.config.schema import host_models
from moryflow.config.values import check_value, set_value, unset
from moryflow.plugins.manifest import settings_of_plugins
from moryflow.runtime.documents import agents_json, approval_json, config_json, models_json, plugins_json, tool_json
from moryflow.runtime.session_stats import collect_stats, onboarding
from moryflow.runtime.slash_lines import COMMON

from .metrics import gauge, prometheus
from .operations import Call, operation
from .replies import RequestError
from .tokens import bearer, browser_name

PAGE = 65_536
# The most bytes of an output in one response.
MAX_BYTES = 4 << 20

# -------------------------------------------------------------------- the server


@operation("POST", "/code", "{token}")
async def exchange_code(at: Call, code: str) -> Any:
    """Exchange the one-time code of a link for a token of this browser's own; one that has a valid token keeps it."""
    at.service.codes.use(code)
    headers = at.request.headers
    if at.token_id:
        return {"token": bearer(headers["authorization"])}
    return {"token": at.service.tokens.add(browser_name(headers.get("user-agent", "")))}


@operation("POST", "/codes", "{code, link}", status=201)
async def new_code(at: Call) -> Any:
    """Make another one-time link, for another browser or a phone."""
    code = at.service.codes.new()
    return {"code": code, "link": f"{at.service.address}/#code={code}"}


@operation("GET", "/tokens", "{id, name, created, used, here: whether this request has it}, the last used first")
async def tokens(at: Call) -> Any:
    """List the tokens of browsers, and those that `serve tokens add` made; never the tokens themselves."""
    here = at.token_id
    return [{**row._asdict(), "here": row.id == here} for row in at.service.tokens.all()]


@operation("DELETE", "/tokens/{id}", "{revoked: id}")
async def revoke_token(at: Call, id: str) -> Any:
    """Make a token invalid at once; its event streams end."""
    if (row := at.service.tokens.revoke(id)) is None:
        raise RequestError(404, "not_found", f"there is no token {id!r}", "GET /tokens")
    return {"revoked": row.id}


@operation("GET", "/health", "who answers: version, home, folder")
async def health(at: Call) -> Any:
    """Say which Moryflow this is."""
    host = at.service.host
    return {
        "status": "stopping" if at.service.stopping else "ok",
        "version": __version__,
        "api": 1,
        "pid": os.getpid(),
        "home": str(host.home),
        "vault": str(at.service.vault),
        "profile": host.profile,
        "plugin_set": host.plugin_set.id,
        "started": at.service.started,
        "new": at.service.new._asdict(),
        "language": host.config.get("language") or "",
        "trace": bool(host.config.get("trace")),
    }


@operation("GET", "/metrics", "Prometheus text", raw="text/plain")
async def metrics(at: Call) -> Any:
    """Give figures of this server for a monitoring program."""
    service = at.service
    pending = len(await service.host.store.approvals(state="pending"))
    gauges = [
        gauge("moryflow_turns_running", "Turns that run in this server.", service.turns),
        gauge("moryflow_event_streams", "Open event streams.", service.events.readers),
        gauge("moryflow_events_last_seq", "The number of the last event of the store.", service.events.head),
        gauge("moryflow_approvals_pending", "Questions that wait for an answer, of all processes.", pending),
    ]
    text = prometheus([*gauges, *await service.counters.families(), *await service.more_metrics()])
    return Response(text, media_type="text/plain; version=0.0.4")


# -------------------------------------------------------------------- questions and outputs


@operation("GET", "/approvals", "questions, oldest first")
async def approvals(
    at: Call, state: Annotated[Literal["pending", "replied", "expired"] | None, "only these"] = None, session: str | None = None
) -> Any:
    """List questions, of this process and of others."""
    store = at.service.host.store
    of = (await store.session(session)).id if session else None
    return [approval_json(row) for row in await store.approvals(session=of, state=state)]


@operation("GET", "/approvals/{id}", "the question")
async def approval(at: Call, id: str) -> Any:
    """Show a question."""
    return approval_json(await at.service.host.store.approval(id))


@operation("POST", "/approvals/{id}", "the question as it stands")
async def reply(
    at: Call,
    id: str,
    reply: Annotated[str | None, "once, always, exact, preset, reject or stop"] = None,
    remember: Annotated[str | None, "once or always, as other hosts call it"] = None,
    message: Annotated[str, "for the model, with reject; the answers, with once, to questions of ask_user"] = "",
    hash: Annotated[str | None, "request.hash of the question: what was judged"] = None,
) -> Any:
    """Answer a question; the first answer stands. Its hash names the call that is answered."""
    store = at.service.host.store
    asked = await store.approval(id)
    try:
        answer = reply_of(reply or remember or "")
    except MoryflowError as error:
        raise RequestError(422, "invalid", error.message, error.next_step) from error
    if asked.state != "pending":
        by = f": {asked.reply} by {asked.by}" if asked.reply else ""
        code = "answered" if asked.state == "replied" else "expired"
        raise RequestError(409, code, f"this question is no longer open{by}", "GET /approvals?state=pending")
    if hash is None and answer not in ("reject", "stop"):
        raise RequestError(
            422, "no_hash", "an answer must name the call that it is for", 'send "hash": request.hash of the question'
        )
    if hash is not None and hash != asked.request.get("hash"):
        raise RequestError(409, "changed", "the call is not the one that this answer is about", f"GET /approvals/{id}")
    row = await at.service.host.approvals.reply(id, answer, message=message, by="client")
    if row.reply != answer or row.state != "replied":
        raise RequestError(409, "answered", f"this question was answered already: {row.reply or row.state}", "")
    return approval_json(row)


@asynccontextmanager
async def _artifacts(at: Call) -> AsyncIterator[Any]:
    async with at.service.host.read_only(at.service.vault) as scope:
        yield scope.around.services["artifacts"](scope, "moryflow")


@operation("GET", "/outputs/{id}", "{id, tool, size, offset, text, next: offset of what follows, or null}")
async def output(
    at: Call, id: str, offset: Annotated[int, "bytes to skip"] = 0, limit: Annotated[int, "bytes at most"] = PAGE
) -> Any:
    """Read a part of an output that was too long for the model."""
    async with _artifacts(at) as artifacts:
        size = max(4, min(limit, MAX_BYTES))
        data = await artifacts.read(id, offset=offset, limit=size)
        row = await artifacts.get(id)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # leaves an incomplete character to the next part
    text = decoder.decode(data, final=len(data) < size)
    following = offset + len(data) - len(decoder.getstate()[0])
    return {
        **row.model_dump(mode="json", include={"id", "session", "call_id", "tool", "size", "created", "expires", "state"}),
        "offset": offset,
        "text": text,
        "next": following if following < row.size else None,
    }


@operation("GET", "/artifacts/{id}", "the bytes", raw="application/octet-stream")
async def artifact(at: Call, id: str) -> Any:
    """Download a stored output whole."""
    async with _artifacts(at) as artifacts:
        data = await artifacts.read(id, offset=0, limit=1 << 40)
        row = await artifacts.get(id)
    name = {"content-disposition": f'attachment; filename="{row.tool}-{row.id}.txt"'}
    return Response(data, media_type="application/octet-stream", headers=name)


# -------------------------------------------------------------------- what there is


@operation("GET", "/agents", "the agents that can be chosen")
async def agents(at: Call, all: bool = False) -> Any:
    """List the agents."""
    return agents_json(at.service.host, everyone=all)


@operation("GET", "/tools", "the tools, with the plugin of each")
async def tools(at: Call) -> Any:
    """List the tools."""
    return [tool_json(owned) for _, owned in sorted(at.service.host.tools.items())]


@operation("GET", "/models", "the models worth naming")
async def models(at: Call) -> Any:
    """List the models."""
    return await models_json(at.service.host)


@operation("GET", "/plugins", "every plugin that was found: status, error, hooks, quarantine")
async def plugins(at: Call) -> Any:
    """List the plugins."""
    return await asyncio.to_thread(plugins_json, at.service.host)


@operation("GET", "/commands", "slash commands: {name, help, hint: for the text after it, plugin: empty for the host's own}")
async def commands(at: Call) -> Any:
    """List the slash commands that a prompt may be."""
    plugin_set = at.service.host.plugin_set
    owners = plugin_set.command_owners
    slashed = [one for one in plugin_set.commands.values() if one.slash is not None and one.name not in COMMON]
    return [
        *({"name": name, "help": about, "hint": hint, "plugin": ""} for name, (about, hint) in COMMON.items()),
        *({"name": one.name, "help": one.help, "hint": "", "plugin": owners[one.name]} for one in slashed),
    ]


@operation("GET", "/files", "{files: names from the folder on}")
async def files(at: Call, vault: str | None = None, q: Annotated[str, "letters in their order"] = "", limit: int = 50) -> Any:
    """Find files of a folder by name, without those that git ignores."""
    from moryflow.services.files import VaultFiles

    folder = readable_vault(vault or at.service.vault)

    def found() -> list[str]:
        walked = VaultFiles(folder, at.service.host.home, Path.home())
        names = (name for name, _ in walked.walk(walked.resolve(".")))
        return list(islice((name for name in names if _fits(q.lower(), name.lower())), max(1, min(limit, 1_000))))

    return {"vault": str(folder), "files": await asyncio.to_thread(found)}


def _fits(wanted: str, name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in wanted)


@operation("GET", "/stats", "{sessions: counts of each, the last used first, running, clients, onboarding_seconds}")
async def stats(at: Call, limit: Annotated[int, "sessions at most"] = 20) -> Any:
    """Count what happened in the last sessions."""
    store, service = at.service.host.store, at.service
    rows = await store.sessions(max(1, min(limit, 200)))
    now = {"running": service.turns, "clients": service.events.readers}
    return {"sessions": [await collect_stats(store, row) for row in rows], **now, "onboarding_seconds": await onboarding(store)}


@operation("GET", "/config", "the settings in force; secrets are left out")
async def config(at: Call, all: Annotated[bool, "defaults too"] = False) -> Any:
    """Show the settings."""
    return config_json(at.service.host, everything=all)


@operation("GET", "/permissions/explain", "the decision, and every rule in order")
async def explain(
    at: Call,
    domain: DomainName,
    input: Annotated[str, "what the tool would get"],
    session: str | None = None,
    mode: Literal["agent", "full_access"] | None = None,
) -> Any:
    """Say what would happen to an input, and why."""
    host = at.service.host
    builtins = [plugin for plugin in host.plugin_set.plugins.values() if plugin.tier == "builtin"]
    found = next((plugin for plugin in builtins if hasattr(plugin.object, "explained")), None)
    if found is None:
        raise ConfigError("the plugin that explains permissions is not loaded", next_step="moryflow plugin list")
    row = await host.store.session(session) if session else None
    async with host.read_only(at.service.vault, session=row.id if row else None) as scope:
        turn: Any = scope.view(found.name)
        return found.object.explained(turn, domain, input, mode or turn.mode)


# -------------------------------------------------------------------- settings


PROMPT = "agents.runtime.prompt"
PARAMETERS = ("temperature", "topP", "maxTokens")


@operation("GET", "/settings/prompt", "{mode, text, temperature, topP, maxTokens}; null is the model's default")
async def prompt_settings(at: Call) -> Any:
    """Show the base of the system prompt and the model's parameters."""
    section = at.service.host.config.section(PROMPT)
    params = section.get("params") or {}
    chosen = {name: params.get(name) for name in PARAMETERS}
    return {"mode": "custom" if section.get("mode") == "custom" else "default", "text": section.get("text") or "", **chosen}


@operation("PUT", "/settings/prompt", "as GET")
async def change_prompt_settings(
    at: Call,
    mode: Literal["default", "custom"],
    text: str | None = None,
    temperature: float | None = None,
    topP: float | None = None,
    maxTokens: int | None = None,
) -> Any:
    """Replace the base of the system prompt and the parameters, or go back to the default."""
    host = at.service.host
    known = (*host_models(), *settings_of_plugins(host.plugin_set))
    given: dict[str, Any] = dict(zip(PARAMETERS, (temperature, topP, maxTokens), strict=True))
    if mode == "custom" and not (text or "").strip():
        raise RequestError(422, "invalid", "a prompt of your own needs a text", 'send "text", or "mode": "default"')
    for name, value in given.items():
        if value is not None:
            check_value(known, f"{PROMPT}.params.{name}", str(value))
    kept = {name: value for name, value in host.config.section(PROMPT).items() if name in ("text", "params")}
    if mode == "custom":
        kept = {"text": text, "params": {name: value for name, value in given.items() if value is not None}}
    set_value(host.config.path, PROMPT, {"mode": mode, **kept})
    await host.refresh()
    return await prompt_settings(at)


COMPACTION = "agents.runtime.compaction"


@operation("GET", "/settings/compaction", "{enabled}")
async def compaction_settings(at: Call) -> Any:
    """Show whether conversations are compacted automatically."""
    settings = at.service.host.compaction.settings(at.service.host.config)
    return {"enabled": settings.enabled and settings.auto}


@operation("PUT", "/settings/compaction", "as GET")
async def change_compaction_settings(at: Call, enabled: bool) -> Any:
    """Switch automatic compaction on or off."""
    host = at.service.host
    set_value(host.config.path, f"{COMPACTION}.enabled", enabled)
    if enabled:
        unset(host.config.path, f"{COMPACTION}.auto")
    await host.refresh()
    return await compaction_settings(at)

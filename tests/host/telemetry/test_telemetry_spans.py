"""The spans of a stored session: which there are, under which, how long, with which names, and with whose words."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from itertools import pairwise

import pytest
from moryflow import RunOptions
from moryflow.store import Commit, RunRow, open_store
from moryflow.store.sqlite.schema import MIGRATIONS, migrate
from moryflow.telemetry.collector import document, trace_parent
from moryflow.telemetry.spans import NAMES, SCHEMA_URL, SpanOptions, TraceSpan, family_spans, spans
from moryflow_sdk import Event

from .conftest import attributes, flat, read

PLAIN = SpanOptions()
SECRET_FILE = "what stands in the file"
ASKS = """
    @hookimpl
    def tool_gate(call, turn):
        return Ask("sure?") if call.tool == "read" else None
"""


async def worked(rig, *turns, prompt="a prompt nobody shall read") -> str:
    """Run a turn in which a question is answered; return the session."""
    (rig.vault / "a.txt").write_text(SECRET_FILE)
    rig.allow_all()
    rig.plugin("asks", ASKS)

    def answer(event) -> None:
        if event.type == "permission.asked":
            asyncio.get_running_loop().call_later(0.2, lambda: tasks.append(asyncio.ensure_future(reply(event))))

    async def reply(event) -> None:
        await host.approvals.reply(event.data["approval_id"], "once")

    tasks: list[asyncio.Future] = []
    async with rig.host() as host:
        host.bus.subscribe(answer)
        session = await host.new_session(rig.vault, model=rig.script(*turns))
        await session.prompt(prompt, options=RunOptions(on_ask="prompt"))
        return session.id


def turns(rig):
    task = rig.call("task", agent="explore", prompt="look around", description="look")
    return (rig.call("read", path="a.txt"), task, "the sub-agent's answer", "the last answer")


async def exported(rig, session: str, options: SpanOptions = PLAIN) -> list[TraceSpan]:
    store = open_store(rig.home)
    try:
        return [span async for part in family_spans(store, session, options) for span in part]
    finally:
        store.close()


def tree(found: list[TraceSpan]) -> list[str]:
    """The names, each below its parent's, hooks left out."""

    def below(parent: str, depth: int):
        for span in sorted((one for one in found if one.parent == parent), key=lambda one: one.start):
            yield "  " * depth + span.name.partition(" script:")[0]
            yield from below(span.id, depth + 1)

    return [line for line in below("", 0) if not line.lstrip().startswith("hook ")]


async def test_every_span_stands_under_what_caused_it(rig) -> None:
    """Turn, model calls, tool calls with their question, and a sub-agent under the call that started it (D, telemetry)."""
    found = await exported(rig, await worked(rig, *turns(rig)))
    assert tree(found) == [
        "invoke_agent build",
        "  chat",
        "  execute_tool read",
        "    question",
        "  chat",
        "  execute_tool task",
        "    invoke_agent explore",
        "      chat",
        "  chat",
    ]
    assert len({span.trace for span in found}) == 1 and len({span.id for span in found}) == len(found)
    (question,) = [span for span in found if span.name == "question"]
    assert question.end - question.start >= 190_000_000 and question.attributes["reply"] == "once"
    chats = [span for span in found if span.name.startswith("chat")]
    assert all(before.end <= after.start for before, after in pairwise(sorted(chats, key=lambda one: one.start)))
    hooks = [span for span in found if span.attributes.get("hook")]
    gate = next(span for span in hooks if span.attributes["plugin"] == "asks")
    assert gate.attributes["verdict"] == "ask" and gate.end - gate.start == gate.attributes["us"] * 1000
    assert gate.parent == question.parent


async def test_opentelemetry_reads_every_field(rig) -> None:
    """Its own classes accept the JSON, strictly; names come from the table, which names its version (RESEARCH h)."""
    found = await exported(rig, await worked(rig, *turns(rig)), SpanOptions(hooks=True))
    request = read(json.dumps(document(found, {})))
    (resource,) = request.resource_spans
    (scope,) = resource.scope_spans
    assert (resource.schema_url, scope.schema_url, scope.scope.name) == (SCHEMA_URL, SCHEMA_URL, "moryflow")
    assert attributes(resource.resource)["service.name"] == "moryflow"
    assert len(scope.spans) == len(found)
    assert {name for span in scope.spans for name in attributes(span)} <= set(NAMES.values())
    chat = next(span for span in scope.spans if span.name.startswith("chat "))
    told = attributes(chat)
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.usage.input_tokens"] == 10
    assert told["gen_ai.response.finish_reasons"] == ["tool_calls"] and chat.kind == chat.SPAN_KIND_CLIENT
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in scope.spans)
    ids = {span.span_id for span in scope.spans}
    assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in scope.spans)
    assert sum(span.parent_span_id not in ids for span in scope.spans) == 1


async def test_an_export_made_twice_is_the_same(rig) -> None:
    """Ids are hashes of ids in the store, and times are those that stand there (D, telemetry)."""
    session = await worked(rig, *turns(rig))
    options = SpanOptions(content=True, hooks=True)
    first, second = await exported(rig, session, options), await exported(rig, session, options)
    assert first == second and any(span.attributes.get("count") for span in first)


async def test_words_are_exported_only_when_asked(rig) -> None:
    """Neither prompt, answer, arguments nor results leave without `content`; a secret leaves in no case (D, telemetry)."""
    session = await worked(rig, *turns(rig))
    words = ("a prompt nobody shall read", "the last answer", "look around", SECRET_FILE, "a.txt", "sure?")
    silent = json.dumps(document(await exported(rig, session, SpanOptions(hooks=True)), {}))
    assert [word for word in words if word in silent] == []
    found = await exported(rig, session, SpanOptions(content=True))
    asked = json.loads(found[0].attributes["input_messages"])
    assert asked == [{"role": "user", "parts": [{"type": "text", "content": words[0]}]}]
    told = json.dumps(document(found, {}))
    assert [word for word in words if word not in told] == ["sure?"]


async def test_a_known_secret_is_hidden_in_words(rig, monkeypatch) -> None:
    """What this process knows as a key is redacted, as in every other text (SECURITY)."""
    from moryflow_sdk.support.secrets import know

    know(["sk-verysecret-0123456789"])
    session = await worked(rig, "the key is sk-verysecret-0123456789")
    told = json.dumps(document(await exported(rig, session, SpanOptions(content=True)), {}))
    assert "verysecret" not in told and "[redacted]" in told


async def test_a_turn_belongs_to_the_span_that_the_environment_names(rig) -> None:
    """`TRACEPARENT` of a CI job is the parent of turns, and its trace theirs (D, telemetry)."""
    session = await worked(rig, *turns(rig))
    given = trace_parent({"TRACEPARENT": f"00-{'a' * 32}-{'b' * 16}-01"})
    found = await exported(rig, session, SpanOptions(parent=given))
    assert {span.trace for span in found} == {"a" * 32}
    assert [span.name for span in found if span.parent == "b" * 16] == ["invoke_agent build"]


@pytest.mark.parametrize("text", ["", "00-0-0-01", f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'0' * 32}-{'b' * 16}-01", "nonsense"])
def test_an_invalid_parent_is_none(text: str) -> None:
    """The standard says to begin a trace of one's own then."""
    assert trace_parent({"TRACEPARENT": text}) is None


async def test_a_failed_model_call_and_a_refused_tool_are_errors(rig) -> None:
    """`error.type` is the code, without the provider's words (D, telemetry)."""
    deny = [{"domain": "read", "pattern": "*", "decision": "deny"}]
    rig.config(permission={"rules": deny})
    (rig.vault / "a.txt").touch()
    failing = {"error": {"code": "auth", "message": "words of the service"}}
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(rig.call("read", path="a.txt"), failing))
        result = await session.prompt("go", options=RunOptions(on_ask="deny"))
        assert result.end_reason == "model_error"
    found = await exported(rig, session.id)
    of = {span.name.partition(" script:")[0]: span.attributes.get("error") for span in found}
    assert (of["invoke_agent build"], of["chat"], of["execute_tool read"]) == ("auth", "auth", "denied")
    codes = [span.status.code for span in flat(read(json.dumps(document(found, {})))) if span.name.startswith("chat")]
    assert codes == [0, 2]
    assert "words of the service" not in json.dumps(document(found, {}))


async def test_side_by_side_sub_agents_stand_each_under_its_own_call(rig) -> None:
    """Two that run at once are told apart by their prompts (S2.18)."""
    rig.allow_all()
    asked = [{"name": "task", "arguments": {"agent": "explore", "prompt": word, "description": word}} for word in "AB"]
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script({"calls": asked}, "done", "done", "end"))
        await session.prompt("go")
        prompts = {row.id: await host.store.first_prompt(row.id) for row in await host.store.sessions(purpose="child")}
    found = await exported(rig, session.id, SpanOptions(content=True))
    calls = {span.id: json.loads(span.attributes["arguments"])["prompt"] for span in found if span.name == "execute_tool task"}
    children = [span for span in found if span.name == "invoke_agent explore"]
    assert sorted(calls[child.parent] for child in children) == ["A", "B"]
    assert all(prompts[child.attributes["session"]] == calls[child.parent] for child in children)


async def test_a_tool_run_without_a_model_has_no_model_call(rig) -> None:
    """`moryflow tool run` is a turn with one call (CONTRACT 1)."""
    rig.allow_all()
    (rig.vault / "a.txt").touch()
    async with rig.host() as host:
        done = await host.call_tool("read", {"path": "a.txt"}, vault=rig.vault)
    assert tree(await exported(rig, done.session)) == ["invoke_agent build", "  execute_tool read"]


async def test_a_summary_is_a_span_of_the_turn_it_began_in(rig) -> None:
    """A compaction on demand has its tokens, before and after (S0.12)."""
    long = "word " * 4000
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(*[long] * 6, "## Goal\nWords.", *[long] * 6))
        for _ in range(6):
            await session.prompt("go")
        from moryflow.runtime.session_commands import compact_now

        await compact_now(host, session, "")
    found = await exported(rig, session.id)
    (span,) = [one for one in found if one.name == "compaction"]
    last = [one for one in found if one.name == "invoke_agent build"][-1]
    assert span.parent == last.id and span.attributes["state"] == "done"
    assert span.attributes["tokens_before"] > span.attributes["tokens_after"] > 0


async def test_one_turn_alone_is_what_it_is_in_the_whole(rig) -> None:
    """What is sent after each turn is what an export of the whole session has (D, telemetry)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script("one", "two", "three"))
        for _ in range(3):
            await session.prompt("go")
        whole = [part async for part in spans(host.store, session.id, SpanOptions())]
        second = (await host.store.runs(session.id))[1].id
        assert [part async for part in spans(host.store, session.id, SpanOptions(), turn=second)] == [whole[1]]


async def test_both_stores_give_the_same_spans(rig, postgres) -> None:
    """Only the store's protocol is read, so a session that moved to PostgreSQL is traced as before (D, telemetry)."""
    session = await worked(rig, *turns(rig))
    options = SpanOptions(content=True, hooks=True)
    before = await exported(rig, session, options)
    file, database = open_store(rig.home, url=""), open_store(rig.home, url=postgres.schema_url("telemetry"))
    try:
        await database.import_([line async for line in file.export(session)], str(rig.vault))
        assert [span async for part in family_spans(database, session, options) for span in part] == before
    finally:
        file.close()
        database.close()


async def test_a_turn_whose_process_was_killed_is_traced_once_nobody_holds_it(rig) -> None:
    """It ends with the last that was stored of it, as interrupted; while it runs it is left out (D, telemetry)."""
    store = open_store(rig.home)
    row = await store.create(vault="/v", agent="build", mode="agent", model="openai/gpt-5")
    hold = await store.hold(row.id)
    moments = ["2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:03.000Z"]
    kinds = [("turn.start", None), ("step.start", 1), ("session.status", 1)]
    events = [
        Event(type=kind, session=row.id, turn="t_1", step=step, ts=moment, data={})
        for (kind, step), moment in zip(kinds, moments, strict=True)
    ]
    run = RunRow("t_1", row.id, "main", "build", "openai/gpt-5", "", started=moments[0])
    await hold.commit(Commit(runs=[run], events=events))
    assert [part async for part in spans(store, row.id, PLAIN)] == []
    hold.release()
    ((turn, chat),) = [part async for part in spans(store, row.id, PLAIN)]
    store.close()
    assert (turn.end - turn.start, turn.attributes["error"]) == (3_000_000_000, "interrupted")
    assert (chat.name, chat.end - chat.start, chat.attributes["provider"]) == ("chat openai/gpt-5", 2_000_000_000, "openai")


async def test_a_session_of_an_old_store_is_traced(rig) -> None:
    """A database of version 1, from before telemetry and the ledger's inputs, gives the same spans (D, telemetry)."""
    session = await worked(rig, *turns(rig))
    before = await exported(rig, session, SpanOptions(content=True, hooks=True))
    (file,) = rig.home.glob("**/sessions.db")
    old = file.with_name("old.db")
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, MIGRATIONS[:1])
        connection.execute("ATTACH ? AS new", (str(file),))
        tables = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND sql NOT LIKE '%fts%'"
        for (table,) in connection.execute(tables).fetchall():
            if table.startswith("sqlite_"):
                continue
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
    for path in file.parent.glob("sessions.db*"):
        path.unlink()
    old.rename(file)
    assert await exported(rig, session, SpanOptions(content=True, hooks=True)) == before

"""``moryflow_sdk.client``: a running server from another program (CONTRACT 4)."""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from moryflow.server.app import OPERATIONS
from moryflow_sdk import ConfigError, Event
from moryflow_sdk.client import Client, ClientError, ServerUrl, connect

from .conftest import Server

ASKS = {"calls": [{"name": "danger", "arguments": {"what": "a thing"}}]}


def test_every_operation_has_a_method() -> None:
    """With the parameters of the table: one that misses fails here."""
    streams = {"events": "follow", "session_events": "follow"}
    for one in OPERATIONS:
        method = getattr(Client, streams.get(one.name, one.name))
        if not (one.stream or (one.raw and one.method == "POST")):
            taken = set(inspect.signature(method).parameters) - {"self", "key"}
            assert taken == set(one.arguments.schema["properties"]), one.name


def test_a_turn_is_streamed(server: Server) -> None:
    """The same event classes, to the end of the turn; the server of this home is found by itself."""
    session = server.session("Hello there.")

    async def work() -> list[Event]:
        client = await connect(home=server.home)
        return [event async for event in client.session_of(session).stream("hi")]

    events = asyncio.run(work())
    assert "".join(str(event.data["text"]) for event in events if event.type == "text.delta") == "Hello there."
    assert (events[-1].type, events[-1].data["status"]) == ("session.status", "idle")


def test_a_question_is_answered(server: Server) -> None:
    """The client answers what its own turn asks."""
    session = server.session(ASKS, "Done.")

    async def work() -> str:
        client = await connect(home=server.home)
        async for event in client.session_of(session).stream("go"):
            if event.type == "permission.asked":
                await client.reply(str(event.data["approval_id"]), reply="once", hash=str(event.data["hash"]))
        return (await client.session(session))["nodes"][-1]["payload"]["text"]

    assert asyncio.run(work()) == "Done."


def test_a_conversation_goes_on_from_its_beginning(server: Server) -> None:
    """``None`` is the beginning, and is sent: the operation has no default for it (CONTRACT 4)."""
    session = server.session("Hello there.")

    async def work() -> tuple[object, object]:
        client = await connect(home=server.home)
        async for _ in client.session_of(session).stream("hi"):
            pass
        before = (await client.session(session))["active"]
        return before, (await client.switch(session, None))["active"]

    before, after = asyncio.run(work())
    assert before is not None and after is None


def test_leaving_early_stops_the_turn(server: Server) -> None:
    """Whoever closes the generator does not want the rest."""
    session = server.session({"calls": [{"name": "hold", "arguments": {}}]}, "Done.")

    async def work() -> None:
        client = await connect(home=server.home)
        events = client.session_of(session).stream("go")
        async for event in events:
            if event.type == "tool.start" and event.data["state"] == "running":
                break
        await events.aclose()
        async for event in client.follow(0, types=["turn.finish"]):
            if event.type == "turn.finish":
                assert event.data["end_reason"] == "stopped"
                return

    asyncio.run(work())


def test_it_goes_on_after_the_server_was_killed(start: Callable[..., Server]) -> None:
    """kill -9 and a new server: nothing twice, nothing lost, no word of it."""
    server = start()
    session = server.session("One.", "Two.")
    server.whole_turn(session)

    async def work() -> list[int]:
        client = await connect(server.said["url"], server.token)
        seen: list[int] = []
        events = client.follow(0)
        async for event in events:
            if event.type == "open":
                continue
            seen.append(event.seq or 0)
            if len(seen) == 3:
                server.end(signal.SIGKILL)
                again = await asyncio.to_thread(start, port=server.port)
                await asyncio.to_thread(again.whole_turn, session)
            if event.type == "session.status" and event.data["status"] == "idle" and event.seq and event.seq > 7:
                await events.aclose()
                return seen
        raise AssertionError

    seen = asyncio.run(work())
    assert seen == list(range(1, len(seen) + 1))


def test_errors_are_the_servers(server: Server) -> None:
    """Code, sentence and next step; a wrong token too."""

    async def work() -> None:
        client = await connect(home=server.home)
        with pytest.raises(ClientError) as caught:
            await client.session("nobody")
        assert (caught.value.status, caught.value.code, caught.value.next_step) == (404, "not_found", "moryflow session list")
        with pytest.raises(ClientError) as caught:
            await connect(server.said["url"], "wrong")
        assert caught.value.status == 401

    asyncio.run(work())


def test_a_server_of_another_home_or_none_is_refused(server: Server, tmp_path: Path) -> None:
    """With a sentence and what to type."""
    other = tmp_path / "other" / "server"
    other.mkdir(parents=True)
    for name in ("token", "running.json"):
        (other / name).write_text((server.home / "server" / name).read_text())
    with (other / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for home, said in ((other.parent, "another home"), (tmp_path / "empty", "no Moryflow server")):
            with pytest.raises(ConfigError, match=said) as caught:
                asyncio.run(connect(home=home))
            assert caught.value.next_step == "moryflow serve"


def test_what_listens_after_a_server_was_killed_is_not_given_its_token(start: Callable[..., Server]) -> None:
    """It may be another user, also where another process has the number of the server's by now (R39)."""
    killed = start()
    killed.process.kill()
    killed.process.wait()
    with socket.create_server(("127.0.0.1", urlsplit(killed.said["url"]).port)) as listening:
        with pytest.raises(ConfigError, match="no Moryflow server answers"):
            asyncio.run(connect(home=killed.home))
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_the_address_of_a_server_that_has_ended_is_not_used_while_the_next_one_begins(start: Callable[..., Server]) -> None:
    """The new one holds the lock already, and has not said yet where it listens (R39)."""
    killed = start()
    killed.process.kill()
    killed.process.wait()
    with (killed.home / "server" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.create_server(("127.0.0.1", urlsplit(killed.said["url"]).port)) as listening:
            with pytest.raises(ConfigError, match="no Moryflow server answers"):
                asyncio.run(connect(home=killed.home))
            listening.settimeout(0)
            with pytest.raises(BlockingIOError):
                listening.accept()


async def test_a_session_goes_out_and_comes_in(server: Server) -> None:
    """Its lines are those of `session export`."""
    client = await connect(home=server.home)
    session = server.session("Hello.")
    lines = await client.export(session)
    assert (await client.import_session(lines))["id"] != session


def test_it_imports_nothing_heavy() -> None:
    """A program that uses it starts at once."""
    code = "import sys, json; import moryflow_sdk.client; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert not {"pydantic", "h11", "httpx", "starlette", "uvicorn", "click"} & set(loaded)


@pytest.mark.parametrize("url", ["", "ftp://x", "localhost:80", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="not an address"):
        ServerUrl.of(url)

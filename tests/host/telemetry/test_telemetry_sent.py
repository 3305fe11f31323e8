"""Traces that are sent after each turn: to whom, as the environment says, and what happens when nobody takes them."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import time

import pytest
from moryflow import telemetry as background
from moryflow.telemetry.collector import collector_of
from moryflow_sdk import ConfigError, MoryflowError

from .conftest import attributes, flat, read

OTEL = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME", "TRACEPARENT")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch) -> None:
    for name in OTEL:
        monkeypatch.delenv(name, raising=False)


def turned_on(rig, url: str, **more) -> None:
    file = rig.home / "config.jsonc"
    file.write_text(json.dumps({"telemetry": {"otlp": url, **more}}))
    file.chmod(0o600)


async def turn(rig, *answers: str) -> str:
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(*answers))
        for _ in answers:
            assert (await session.prompt("what I asked")).end_reason == "completed"
        return session.id


async def test_nothing_is_sent_unless_the_user_turns_it_on(rig, collector) -> None:
    """An endpoint in the environment alone turns nothing on (D, telemetry: no telemetry unless the user turns it on)."""
    rig.environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    await turn(rig, "an answer")
    assert collector.bodies == []


async def test_each_turn_is_sent_when_it_has_ended(rig, collector) -> None:
    """One request a turn, to /v1/traces, as JSON, without words (D, telemetry)."""
    turned_on(rig, collector.url)
    session = await turn(rig, "an answer", "another")
    assert collector.paths == ["/v1/traces"] * 2
    assert {head["content-type"] for head in collector.headers} == {"application/json"}
    turns = [span for span in collector.spans if span.name == "invoke_agent build"]
    assert len(turns) == 2 and attributes(turns[0])["gen_ai.conversation.id"] == session
    assert b"what I asked" not in b"".join(collector.bodies)


async def test_words_are_sent_when_the_setting_says_so(rig, collector) -> None:
    """`telemetry.content` asks for them (D, telemetry)."""
    turned_on(rig, collector.url, content=True)
    await turn(rig, "an answer")
    assert b"what I asked" in collector.bodies[0] and b"an answer" in collector.bodies[0]


async def test_the_environment_is_honoured(rig, collector) -> None:
    """Endpoint, headers, service and resource come from the variables of OpenTelemetry, above the user's file (CONTRACT 1)."""
    turned_on(rig, "http://127.0.0.1:9")
    rig.environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"{collector.url}/base/",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=se%20cret,x-other=1",
        "OTEL_SERVICE_NAME": "agents",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a%2Cb,service.name=ignored",
        "TRACEPARENT": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    await turn(rig, "an answer")
    assert collector.paths == ["/base/v1/traces"]
    assert (collector.headers[0]["api-key"], collector.headers[0]["x-other"]) == ("se cret", "1")
    (resource,) = read(collector.bodies[0]).resource_spans
    told = attributes(resource.resource)
    assert (told["service.name"], told["team"]) == ("agents", "a,b")
    assert {span.trace_id.hex() for span in collector.spans} == {"a" * 32}


async def test_a_collector_gets_less_where_the_environment_asks_for_it(rig, collector) -> None:
    """`OTEL_EXPORTER_OTLP_COMPRESSION`; another value than gzip and none is refused (D, telemetry)."""
    turned_on(rig, collector.url)
    rig.environ = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    await turn(rig, "an answer")
    assert collector.headers[0]["content-encoding"] == "gzip"
    assert flat(read(gzip.decompress(collector.bodies[0])))
    with pytest.raises(ConfigError, match="gzip or none"):
        collector_of({"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zstd"}, "http://s:3")


def test_which_address_wins() -> None:
    """The command line, then the variable for traces (taken as it is), then the general one, then the setting (CONTRACT 1)."""
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:2/as/it/is"}
    one = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}
    chosen = [(both, "http://s:3", "http://c:4/v1/traces"), (both, "http://s:3", None), (one, "http://s:3", None)]
    chosen += [({}, "https://s:3/v1/traces/", None)]
    found = [collector_of(environ, setting, given) for environ, setting, given in chosen]
    assert [one and one.url for one in found] == [
        "http://c:4/v1/traces",
        "http://b:2/as/it/is",
        "http://a:1/v1/traces",
        "https://s:3/v1/traces/",
    ]
    assert collector_of({}, None) is None
    timed = collector_of({"OTEL_EXPORTER_OTLP_TIMEOUT": "1500"}, "http://s:3")
    assert timed is not None and timed.timeout == 1.5


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://a/", "http://", "http://[::1"])
def test_an_invalid_address_is_refused(url: str) -> None:
    """It is named, with an example (CONTRACT 1)."""
    with pytest.raises(ConfigError, match="no address"):
        collector_of({}, url)
    with pytest.raises(ConfigError, match="milliseconds"):
        collector_of({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "http://a:1")


def dead() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


async def test_a_dead_collector_costs_nothing_and_is_told_once(rig, caplog) -> None:
    """Three turns end as without it; one line says what was not sent, and how to send it later (D, telemetry)."""
    turned_on(rig, dead())
    with caplog.at_level(logging.WARNING):
        session = await turn(rig, "one", "two", "three")
    (line,) = [one.message for one in caplog.records if "trace" in one.message]
    assert "was not reached" in line and f"moryflow trace export {session}" in line


async def test_a_silent_collector_delays_no_turn_and_the_end_by_a_second_at_most(rig, collector, caplog, monkeypatch) -> None:
    """Turns go on while the first trace still waits for an answer; the end leaves what is late (D, telemetry)."""
    collector.silent = True
    turned_on(rig, collector.url)
    monkeypatch.setattr(background, "CLOSING", 0.2)
    waited: list[float | None] = []
    wait = asyncio.wait

    async def noted(tasks, *, timeout=None, **more):
        waited.extend([timeout] if timeout == 0.2 else [])
        return await wait(tasks, timeout=timeout, **more)

    monkeypatch.setattr(background.asyncio, "wait", noted)
    await turn(rig, "one", "two")
    assert collector.came.is_set() and waited == [0.2]
    assert [one for one in caplog.records if "the collector is slow" in one.message]


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (500, b"", "answered 500"),
        (302, b"", "answered 302"),
        (200, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}', "refused 2 spans: too old"),
    ],
)
async def test_a_collector_that_does_not_take_it_is_named(collector, status: int, answer: bytes, said: str) -> None:
    """Nothing is sent to where an answer leads; a part that was refused is said (D, telemetry)."""
    collector.status, collector.answer = status, answer
    found = collector_of({}, collector.url)
    assert found is not None
    with pytest.raises(MoryflowError, match=said):
        await found.send([], {})


@pytest.mark.parametrize("answer", [b"", b"{}", b"ok", b"[]", b'{"partialSuccess": {}}'])
async def test_other_answers_count_by_their_status(collector, answer: bytes) -> None:
    """A proxy's page with 200 is no failure."""
    collector.answer = answer
    found = collector_of({}, collector.url)
    assert found is not None
    await found.send([], {})
    assert len(collector.bodies) == 1 and flat(read(collector.bodies[0])) == []


async def test_a_step_is_not_touched(rig, collector, monkeypatch) -> None:
    """Until the turn has ended, nothing of telemetry is called but one comparison for each event (D, telemetry)."""
    turned_on(rig, collector.url)
    seen: list[str] = []
    work = background.BackgroundExport._work

    async def noted(self):
        seen.append("work")
        await work(self)

    monkeypatch.setattr(background.BackgroundExport, "_work", noted)
    async with rig.host() as host:
        host.bus.subscribe(lambda event: seen.append(event.type))
        session = await host.new_session(rig.vault, model=rig.script("an answer"))
        await session.prompt("go")
    assert seen.index("work") > seen.index("turn.finish")
    assert time.time_ns() > collector.spans[0].end_time_unix_nano

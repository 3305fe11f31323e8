"""Fetching: a real server on this machine stands for every public address; the guard is untouched."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk import ToolError
from moryflow_sdk.support.fetcher import Fetched, Fetcher, connect_to
from moryflow_sdk.support.urls import Url

CORPUS = Path(__file__).parents[2] / "data" / "corpus" / "urls.jsonl"
EXTRA = CORPUS.parents[1] / "permission" / "urls_extra.jsonl"
PUBLIC = "93.184.215.14"
Talk = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class World:
    """Names, and one server behind every address. What is connected to and asked for is kept."""

    def __init__(self, names: dict[str, list[list[str]]] | None = None) -> None:
        self.names = {"*": [[PUBLIC]]} if names is None else names
        self.resolved: dict[str, int] = {}
        self.connected: list[str] = []
        self.heads: list[str] = []
        self.port = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        at = self.resolved[host] = self.resolved.get(host, -1) + 1
        answers = self.names.get(host) or self.names.get("*") or [[]]
        return answers[min(at, len(answers) - 1)]

    async def connect(self, address: str, port: int) -> Any:
        self.connected.append(address)
        return await connect_to("127.0.0.1", self.port)

    def fetcher(self, **limits: Any) -> Fetcher:
        return replace(Fetcher(resolve=self.resolve, connect=self.connect), **limits)


@asynccontextmanager
async def serving(talk: Talk, world: World | None = None) -> AsyncIterator[World]:
    world = world or World()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            world.heads.append(head)
            await talk(head, reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        server.close()


def answer(body: bytes = b"ok", status: str = "200 OK", **headers: str) -> Talk:
    async def talk(_: str, __: object, writer: asyncio.StreamWriter) -> None:
        lines = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)

    return talk


async def fails(world: World, url: str = "http://example.org/", **limits: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await world.fetcher(**limits).fetch(url)
    return caught.value


async def test_a_page_comes_from_the_address_that_was_judged_and_tells_nothing_of_us() -> None:
    """Resolved once, connected to that address, with the name as Host; no cookie, key, referrer (R30)."""
    async with serving(answer(b"hello", content_type="text/plain", set_cookie="a=b")) as world:
        got = await world.fetcher().fetch("http://example.org/a?b=c#d")
    assert (got.body, got.headers["content-type"], str(got.url)) == (b"hello", "text/plain", "http://example.org/a?b=c")
    assert (world.connected, world.resolved) == ([PUBLIC], {"example.org": 0})
    lines = world.heads[0].lower().split("\r\n")
    assert lines[:2] == ["get /a?b=c http/1.1", "host: example.org"]
    assert {line.partition(":")[0] for line in lines[2:] if line} == {"user-agent", "accept", "accept-encoding", "connection"}


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would connect to what nobody judged."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    async with serving(answer()) as world:
        assert (await world.fetcher().fetch("http://example.org/")).body == b"ok"


def corpus() -> list[dict[str, Any]]:
    cases = [json.loads(line) for file in (CORPUS, EXTRA) for line in file.read_text("utf-8").splitlines()]
    return [case for case in cases if not case.get("rules") and not case.get("server")]


@pytest.mark.parametrize("case", corpus(), ids=lambda case: case["id"])
async def test_every_example_is_fetched_or_refused(case: dict[str, Any]) -> None:
    """What is refused is not connected to; https is answered without encryption here, which the seam leaves out."""
    redirects = {item["from"]: item for item in case.get("redirects", [])}
    world = World(case.get("dns", {}))
    asked: list[str] = []

    class Plain(Fetcher):
        async def _fetch_hop(self, url: Url) -> Fetched:
            world.connected.append((await self._addresses(url))[0])
            asked.append(str(url))
            found = redirects.pop(str(url), None)
            return Fetched(url, found["status"], {"location": found["location"]}) if found else Fetched(url, 200)

    try:
        await Plain(resolve=world.resolve).fetch(case["url"])
        decision = "allow"
    except ToolError as error:
        decision = "deny"
        assert error.code in ("not_public", "failed")
    worst = {"allow": 0, "ask": 1, "deny": 2}
    assert worst[decision] >= worst[case["max"]], case["why"]
    assert case["expect"] != "allow" or decision == "allow", case["why"]
    assert set(world.connected) <= set(case.get("must_connect_only_to", world.connected))
    if "hop_denied" in case:
        assert len(asked) == case["hop_denied"] - 1


async def test_of_a_name_every_address_is_judged_and_the_next_one_tried() -> None:
    """One private address among public ones refuses all; a public one that does not answer does not."""
    async with serving(answer(), World({"mixed.test": [[PUBLIC, "10.0.0.1"]], "two.test": [["8.8.8.8", PUBLIC]]})) as world:
        assert "10.0.0.1 is not a public address" in str(await fails(world, "http://mixed.test/"))
        assert world.connected == []

        async def connect(address: str, port: int) -> Any:
            if address == "8.8.8.8":
                world.connected.append(address)
                raise ConnectionRefusedError("no")
            return await world.connect(address, port)

        assert (await world.fetcher(connect=connect).fetch("http://two.test/")).status == 200
        assert world.connected == ["8.8.8.8", PUBLIC]


async def test_a_name_that_changes_between_two_hops_is_judged_again() -> None:
    """Rebinding: the second answer is private, and is not connected to."""
    async with serving(answer(b"", "302 Found", location="/next"), World({"*": [[PUBLIC], ["127.0.0.1"]]})) as world:
        assert (await fails(world)).code == "not_public"
    assert world.connected == [PUBLIC]


async def test_redirects_end_after_five() -> None:
    async with serving(answer(b"", "302 Found", location="/again")) as world:
        assert "more than 5 times" in str(await fails(world))
    assert len(world.connected) == 6


@pytest.mark.parametrize("location", [
    "http://127.0.0.1/", "http://localhost:7700/", "//169.254.169.254/x", "file:///etc/passwd", "http://a@example.org/",
    "http://[::ffff:127.0.0.1]/", "http://example.org:25/", "http:\\\\example.org",
])  # fmt: skip
async def test_a_redirect_to_where_nobody_may_go_is_refused(location: str) -> None:
    """Also to a service of this machine that a rule has opened: only a person's or a model's own call goes there."""
    async with serving(answer(b"", "307 Temporary Redirect", location=location)) as world:
        assert (await fails(world, permitted=lambda url: url.port == 7700)).code == "not_public"
    assert len(world.connected) == 1


@pytest.mark.parametrize("name", ["/Übersicht/Größe".encode(), "/Übersicht/Größe".encode("latin-1")])
async def test_a_redirect_is_followed_in_the_encoding_of_its_server(name: bytes) -> None:
    """Servers write UTF-8 into ``Location``; ``Ü`` then holds a byte that is a control character in Latin-1 (D50)."""

    async def talk(head: str, _: object, writer: asyncio.StreamWriter) -> None:
        status = b"302 Found\r\nlocation: " + name if head.startswith("GET / ") else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")

    async with serving(talk) as world:
        got = await world.fetcher().fetch("http://example.org/")
    assert got.url.path == "/%C3%9Cbersicht/Gr%C3%B6%C3%9Fe"


async def test_a_redirect_that_is_not_wanted_is_told_and_not_followed() -> None:
    async with serving(answer(b"", "301 Moved", location="http://other.test/x")) as world:
        got = await world.fetcher(wanted=lambda url: url.host != "other.test").fetch("http://example.org/")
    assert (str(got.leads_to), len(world.connected)) == ("http://other.test/x", 1)


async def test_a_service_of_this_machine_is_fetched_only_when_it_is_permitted() -> None:
    async with serving(answer()) as world:
        url = f"http://localhost:{world.port}/"
        assert (await fails(world, url)).code == "not_public"
        got = await world.fetcher(permitted=lambda found: found.port == world.port).fetch(url)
    assert (got.body, world.resolved, world.connected[0]) == (b"ok", {}, "127.0.0.1")


@pytest.mark.parametrize(("encoding", "packed"), [
    ("gzip", gzip.compress(b"x" * 50, mtime=0)), ("deflate", zlib.compress(b"x" * 50)),
    ("", b"x" * 50),
])  # fmt: skip
async def test_bodies_are_unpacked(encoding: str, packed: bytes) -> None:
    async with serving(answer(packed, content_encoding=encoding)) as world:
        assert (await world.fetcher().fetch("http://example.org/")).body == b"x" * 50


async def test_of_a_bomb_only_so_much_is_unpacked() -> None:
    """Sixty-four megabytes of nothing are 64 KB on the wire."""
    async with serving(answer(gzip.compress(bytes(64 << 20)), content_encoding="gzip")) as world:
        before, dropped = sys.get_asyncgen_hooks(), []
        sys.set_asyncgen_hooks(finalizer=dropped.append)
        try:
            got = await world.fetcher(most=1000).fetch("http://example.org/")
        finally:
            sys.set_asyncgen_hooks(*before)
    assert (len(got.body), got.cut, dropped) == (1000, True, [])


async def test_what_never_ends_is_cut() -> None:
    async def endless(_: str, __: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with serving(endless) as world:
        assert (await world.fetcher(most=200_000).fetch("http://example.org/")).cut


async def test_the_time_is_for_everything_also_where_something_always_comes() -> None:
    """A byte now and then keeps no call alive."""

    async def drip(_: str, __: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(drip) as world:
        assert (await fails(world, seconds=0.3)).code == "timeout"


async def test_a_server_that_hangs_up_is_named_in_plain_words() -> None:
    """Not with the states of the HTTP library."""

    async def hang_up(*_: object) -> None:
        pass

    async with serving(hang_up) as world:
        assert str(await fails(world)).endswith("broke off: the server closed the connection without an answer")


async def _silent(_: str, reader: asyncio.StreamReader, __: object) -> None:
    await reader.read()


@pytest.mark.parametrize(("talk", "code"), [
    (_silent, "timeout"),
    (answer(b"short", content_length="1000"), "failed"),
    (answer(b"x", content_length="-1"), "failed"),
    (answer(b"x", content_length="1, 2"), "failed"),
    (answer(b"x", x_long="y" * 10_000_000), "failed"),
    (answer(b"x", "999999 No"), "failed"),
    (answer(b"zzz", transfer_encoding="chunked"), "failed"),
    (answer(b"not packed", content_encoding="gzip"), "failed"),
    (answer(b"x", content_encoding="br"), "failed"),
    (answer(b"x", content_encoding="gzip, gzip"), "failed"),
])  # fmt: skip
async def test_a_broken_answer_is_an_error_with_a_sentence(talk: Talk, code: str) -> None:
    async with serving(talk) as world:
        error = await fails(world, seconds=0.5 if code == "timeout" else 60)
    assert (error.code, len(str(error)) > 20) == (code, True)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "0x{:x}", "0{:o}"]))
def test_no_number_is_a_host(number: int, form: str) -> None:
    """Whole numbers in any base never reach a resolver."""
    world = World()
    with pytest.raises(ToolError):
        asyncio.run(world.fetcher().fetch(f"http://{form.format(number)}/"))
    assert (world.resolved, world.connected) == ({}, [])


@given(st.text(max_size=40), st.text(max_size=20))
def test_whatever_is_connected_to_is_public(host: str, rest: str) -> None:
    """Any text: an error of ours, or the one address that the resolver gave."""
    world = World()

    async def refuse(address: str, port: int) -> Any:
        world.connected.append(address)
        raise ConnectionRefusedError("nobody is there")

    with pytest.raises(ToolError):
        asyncio.run(world.fetcher(connect=refuse).fetch(f"http://{host}/{rest}"))
    from moryflow_sdk.support.urls import vetted

    assert not world.connected or vetted(world.connected)


@pytest.mark.parametrize(
    ("answers", "is_let"), [(["198.18.0.7"], True), (["198.18.0.7", "10.0.0.1"], False), (["10.0.0.1"], False)]
)
async def test_a_proxy_that_invents_addresses_is_let_where_a_person_says_so(answers: list[str], is_let: bool) -> None:
    """Clash and sing-box answer every name from 198.18.0.0/15; a URL that holds such an address stays refused."""
    async with serving(answer(), World({"*": [answers]})) as world:
        assert "not a public address" in str(await fails(world))
        if is_let:
            assert (await world.fetcher(behind_fake_ip=True).fetch("http://example.org/")).body == b"ok"
        else:
            assert "not a public address" in str(await fails(world, behind_fake_ip=True))
        assert (await fails(world, "http://198.18.0.7/", behind_fake_ip=True)).code == "not_public"


async def test_an_unusual_port_is_opened_by_who_names_it() -> None:
    """Other protocols are spoken there; private places stay closed (S0.37)."""
    async with serving(answer()) as world:
        assert (await fails(world, "http://example.org:9000/")).code == "not_public"
        assert (await world.fetcher(permitted=lambda url: url.port == 9000).fetch("http://example.org:9000/")).body == b"ok"
        assert (await fails(world, "http://10.0.0.1:9000/", permitted=lambda _: True)).code == "not_public"

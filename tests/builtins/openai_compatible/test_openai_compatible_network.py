"""The connections themselves, over real sockets: TLS, a proxy's tunnel, what leaves in one piece, what is large."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moryflow.testing.replies import LoopbackServer, text
from moryflow_sdk import Finished, Message, ModelError, ModelInfo, ModelRequest, TextDelta
from moryflow_sdk.chat_completions import ChatClient, Endpoint

MODEL = ModelInfo(id="openai/m", name="m", provider="openai_compatible")
REQUEST = ModelRequest(model=MODEL, messages=(Message(role="user", text="hi"),))
ANSWER = b"".join(piece for piece in text("hello").body if isinstance(piece, bytes))
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)


async def ask(url: str, *requests: ModelRequest) -> str:
    """The text of the answers."""
    client = ChatClient(Endpoint(url, "openai", key="k", url_source="OPENAI_BASE_URL", timeout=60.0))
    said: list[str] = []
    try:
        for request in requests or (REQUEST,):
            events = [event async for event in client.stream(request, "m")]
            assert isinstance(events[-1], Finished)
            said += [event.text for event in events if isinstance(event, TextDelta)]
    finally:
        await client.aclose()
    return "".join(said)


async def said(client: ChatClient) -> str:
    """The text of one answer."""
    return "".join([event.text async for event in client.stream(REQUEST, "m") if isinstance(event, TextDelta)])


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that gives each connection to `serve`; the port it listens on."""

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=quietly, args=(connection,), daemon=True).start()

    def quietly(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def answer(connection: socket.socket) -> Iterator[bytes]:
    """Answer every request and yield what came of it first, with the size of the whole."""
    while first := connection.recv(1 << 20):
        head, _, body = first.partition(b"\r\n\r\n")
        missing = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
        while missing > 0:
            missing -= len(connection.recv(1 << 20))
        yield first
        connection.sendall(REPLY)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for ``localhost``, signed by itself, beside its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:model.invalid")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    made = subprocess.run([*command, "-keyout", "-", "-out", str(file)], capture_output=True, check=True)
    file.write_bytes(file.read_bytes() + made.stdout)
    return file


def encrypted(certificate: Path, connections: list[int]) -> Callable[[socket.socket], None]:
    """A way to serve over TLS; `connections` counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(plain: socket.socket) -> None:
        connections.append(1)
        with context.wrap_socket(plain, server_side=True) as secure:
            for _ in answer(secure):
                pass

    return serve


async def test_an_encrypted_connection_is_kept(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosted models are reached over TLS, with the certificates that the environment names (S4.7)."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    connections: list[int] = []
    with listening(encrypted(certificate, connections)) as port:
        assert await ask(f"https://localhost:{port}/v1", REQUEST, REQUEST) == "hellohello"
    assert len(connections) == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    """A key is never sent to a server that cannot prove who it is (R29)."""
    connections: list[int] = []
    with listening(encrypted(certificate, connections)) as port, pytest.raises(ModelError) as caught:
        await ask(f"https://localhost:{port}/v1")
    assert caught.value.code == "unreachable" and "certificate verify failed" in str(caught.value)
    assert "export SSL_CERT_FILE=" in caught.value.next_step


async def test_an_encrypted_server_is_reached_through_a_tunnel(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A company's proxy sees where the connection goes, and nothing of what is said in it (S4.7)."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    asked: list[bytes] = []
    serve = encrypted(certificate, [])

    def tunnel(connection: socket.socket) -> None:
        asked.append(connection.recv(1 << 16))
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        serve(connection)

    with listening(tunnel) as port:
        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert await ask("https://model.invalid/v1") == "hello"
    assert asked[0].startswith(b"CONNECT model.invalid:443 HTTP/1.1\r\n")
    assert b"proxy-authorization: Basic bWU6cEBzcw==" in asked[0] and b"Bearer" not in asked[0]


async def test_a_request_leaves_in_one_piece() -> None:
    """The head does not go ahead of its body: that would wake the server twice, and cost a packet (figures: a step)."""
    pieces: list[bytes] = []
    with listening(lambda connection: pieces.extend(answer(connection))) as port:
        assert await ask(f"http://127.0.0.1:{port}/v1", REQUEST, REQUEST) == "hellohello"
    assert len(pieces) == 2 and all(b'\r\n\r\n{"model"' in piece and piece.endswith(b"}") for piece in pieces)


async def test_a_large_prompt_and_a_slow_reader_are_no_matter() -> None:
    """Eight million characters arrive whole, and what the server says is not lost meanwhile (S4.7)."""
    large = ModelRequest(model=MODEL, messages=(Message(role="user", text="é" * 4_000_000),))
    with LoopbackServer(text("read it all")) as server:
        assert await ask(server.url, large) == "read it all"
        assert server.requests[0].body["messages"][0]["content"] == "é" * 4_000_000


async def test_an_address_may_have_a_path_that_needs_quoting_and_a_query() -> None:
    """Gateways put names of people into paths, and versions into queries (S4.7)."""
    with LoopbackServer(text("a")) as server:
        address = server.url.removesuffix("/v1") + "/größe/a%20b/v1?api-version=2026-01-01&x=ä"
        assert await ask(address) == "a"
    assert server.requests[0].path == "/gr%C3%B6%C3%9Fe/a%20b/v1/chat/completions?api-version=2026-01-01&x=%C3%A4"


async def test_what_a_server_says_unasked_is_not_the_answer_to_the_next_request() -> None:
    """One answer too many would put every later one in the wrong place (S4.7)."""
    connections: list[int] = []

    def serve(connection: socket.socket) -> None:
        connections.append(1)
        connection.recv(1 << 20)
        connection.sendall(REPLY + REPLY.replace(b"hello", b"wrong"))
        connection.recv(1)

    with listening(serve) as port:
        assert await ask(f"http://127.0.0.1:{port}/v1", REQUEST, REQUEST) == "hellohello"
    assert len(connections) == 2


@pytest.mark.parametrize(
    "late", [REPLY.replace(b"hello", b"wrong"), b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"]
)
@pytest.mark.parametrize("busy", [False, True])
async def test_what_comes_later_unasked_is_not_the_answer_either(late: bytes, busy: bool) -> None:
    """Servers tell an idle connection that its time is over; that is not about the next prompt (S4.7)."""
    connections: list[int] = []

    def serve(connection: socket.socket) -> None:
        connections.append(1)
        connection.recv(1 << 20)
        connection.sendall(REPLY)
        time.sleep(0.1)
        connection.sendall(late)
        sent.set()
        connection.recv(1)

    sent = threading.Event()

    with listening(serve) as port:
        client = ChatClient(Endpoint(f"http://127.0.0.1:{port}/v1", "openai", key="k", timeout=60.0))
        assert await said(client) == "hello"
        if busy:  # the loop has not read it when the next prompt comes
            sent.wait(300)
        else:
            await asyncio.to_thread(sent.wait, 300)
            await asyncio.sleep(0.05)
        assert await said(client) == "hello"
        await client.aclose()
    assert len(connections) == 2


@pytest.mark.parametrize("padding", [0, 1 << 16])
async def test_a_proxy_cannot_answer_for_the_server(padding: int, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends behind its own answer would pass for what TLS protects: the model's words and calls (R29)."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    head = b"HTTP/1.1 200 ok\r\n\r\n"

    def forge(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(head + b"x" * max(padding - len(head), 0) + REPLY.replace(b"hello", b"forged"))
        encrypted(certificate, [])(connection)

    with listening(forge) as port, pytest.raises(ModelError, match="the proxy sent more than its answer"):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        await ask("https://model.invalid/v1")


async def test_a_silent_or_garbled_proxy_is_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a proxy says may be what it was sent, with the password (R10)."""

    def echo(connection: socket.socket) -> None:
        connection.sendall(connection.recv(1 << 16).rpartition(b"Basic ")[2])

    with listening(echo) as port, pytest.raises(ModelError, match="does not speak HTTP") as caught:
        monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        await ask("https://model.invalid/v1")
    assert "bWU6" not in str(caught.value) and "secret" not in str(caught.value)


async def test_a_refusal_that_comes_before_the_request_was_read_is_heard() -> None:
    """A gateway that finds a prompt too large says so; the rest of the prompt is not read (S4.7)."""

    over = threading.Event()

    def refuse(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 413 too large\r\ncontent-length: 5\r\n\r\nlarge")
        over.wait(300)

    large = ModelRequest(model=MODEL, messages=(Message(role="user", text="x" * 8_000_000),))
    with listening(refuse) as port, pytest.raises(ModelError, match="413"):
        await asyncio.wait_for(ask(f"http://127.0.0.1:{port}/v1", large), 300)
    over.set()


async def test_a_server_that_keeps_promising_an_answer_is_given_up() -> None:
    """Time limits hold for whole answers to come, not only for the next byte (D55)."""

    def promise(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        while True:
            connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
            time.sleep(0.05)

    with listening(promise) as port:
        client = ChatClient(Endpoint(f"http://127.0.0.1:{port}/v1", "openai", key="k", timeout=0.5))
        with pytest.raises(ModelError) as caught:
            await asyncio.wait_for(said(client), 300)
        await client.aclose()
    assert caught.value.code == "timeout"


async def test_a_kept_connection_that_died_costs_nothing() -> None:
    """A server that was started anew has closed it, perhaps while the loop was busy (S4.7)."""
    seen: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        seen.append(connection)
        for _ in answer(connection):
            pass

    with listening(serve) as port:
        client = ChatClient(Endpoint(f"http://127.0.0.1:{port}/v1", "openai", key="k", timeout=60.0))
        assert await said(client) == "hello"
        seen[0].shutdown(socket.SHUT_RDWR)
        time.sleep(0.1)  # noqa: ASYNC251
        assert await said(client) == "hello"
        await client.aclose()


async def test_nothing_stays_open(recwarn: pytest.WarningsRecorder) -> None:
    """Not after an answer that cannot be unpacked, nor after a client was closed before its answer had ended (S1.5)."""
    gc.collect()
    recwarn.clear()  # what tests before this one left
    packed = REPLY.replace(b"content-type", b"content-encoding: br\r\ncontent-type")

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 20)
        connection.sendall(packed)
        ended.append(connection.recv(1))

    ended: list[bytes] = []
    with listening(serve) as port:
        client = ChatClient(Endpoint(f"http://127.0.0.1:{port}/v1", "openai", key="k", timeout=60.0))
        with pytest.raises(ModelError, match="compressed") as caught:
            await said(client)
        for _ in range(500):
            await asyncio.sleep(0 if ended else 0.01)
        assert ended == [b""] and caught.value.code == "protocol"  # while the error is still there
    with LoopbackServer(text("hello")) as server:
        client = ChatClient(Endpoint(server.url, "openai", key="k", timeout=60.0))
        stream = client.stream(REQUEST, "m")
        await anext(stream)
        await client.aclose()
        assert [event async for event in stream]
    gc.collect()
    assert [str(warning.message) for warning in recwarn if issubclass(warning.category, ResourceWarning)] == []

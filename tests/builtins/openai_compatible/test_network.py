"""The connections themselves, over real sockets: TLS, a proxy's tunnel, what leaves in one piece, what is large."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moryflow_sdk import Finished, Message, ModelError, ModelInfo, ModelRequest, TextDelta
from moryflow_sdk.chat_completions import ChatClient, Endpoint
from moryflow_sdk.testing.replies import text
from moryflow_sdk.testing.server import LoopbackServer

MODEL = ModelInfo(id="openai/m", name="m", provider="openai_compatible")
REQUEST = ModelRequest(model=MODEL, messages=(Message(role="user", text="hi"),))
ANSWER = b"".join(piece for piece in text("hello").body if isinstance(piece, bytes))
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)


async def ask(url: str, *requests: ModelRequest) -> str:
    """The text of the answers."""
    client = ChatClient(Endpoint(url, "openai", key="k", url_source="OPENAI_BASE_URL", timeout=10.0))
    said: list[str] = []
    try:
        for request in requests or (REQUEST,):
            events = [event async for event in client.stream(request, "m")]
            assert isinstance(events[-1], Finished)
            said += [event.text for event in events if isinstance(event, TextDelta)]
    finally:
        await client.aclose()
    return "".join(said)


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

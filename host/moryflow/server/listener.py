"""Runs the server: binds its address, holds the lock of the home folder, serves, and ends it in order.

What is no HTTP is refused with the form and the headers of all other refusals.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import h11
import uvicorn
from moryflow_sdk import ConfigError
from uvicorn.protocols.http.h11_impl import H11Protocol

from moryflow import __version__
from moryflow.base.events import now
from moryflow.base.paths import keep
from moryflow.plugins.reload import Reloader
from moryflow.runtime.selection import NewSession
from moryflow.store import inbox_of

from .app import MAX_STREAMS, Access, application
from .replies import SAFE_HEADERS, encoded, error_document
from .service import FOLDER, RUNNING, Service, only_one, token_of

if TYPE_CHECKING:
    from moryflow.runtime.host import Host


# How long interrupted turns may take to record how they ended.
DRAIN_SECONDS = 2.0
# How long uvicorn waits for open connections to close.
CLOSE_SECONDS = 1
# How long a connection may take from an answer to its next request.
KEEP_SECONDS = 75
MAX_CONNECTIONS = 2_048


class ServeOptions(NamedTuple):
    """Where to listen.

    :ivar socket: the path of a Unix socket, in place of host and port.
    :ivar model, agent, mode: the defaults of new sessions.
    """

    host: str = "127.0.0.1"
    port: int = 8427
    socket: Path | None = None
    insecure: bool = False
    model: str | None = None
    agent: str | None = None
    mode: str | None = None


def listen(options: ServeOptions) -> socket.socket:
    """Return the socket to listen on.

    :raises ConfigError: the address could be reached from other machines unprotected, or it is in use.
    """
    if options.socket is not None:
        return _unix_socket(options.socket)
    if not _is_loopback(options.host) and not options.insecure:
        said = f"{options.host} can be reached from other machines, and what is sent there can be read on the way"
        raise ConfigError(
            said, next_step="reach it through a tunnel (ssh -L 8427:127.0.0.1:8427 HOST), or --insecure if you mean it"
        )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((options.host, options.port))
    except OSError as error:
        found.close()
        where = f"{options.host}:{options.port}"
        raise ConfigError(f"cannot listen: {error.strerror}", where=where, next_step="--port 0 takes a free one") from error
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unix_socket(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()
        before = os.umask(0o177)
        try:
            found.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen: {error.strerror}", where=str(path), next_step="name another path") from error
    return found


class Address(NamedTuple):
    """The URL of a server, and the values of ``Host`` and ``Origin`` that it accepts."""

    url: str
    hosts: frozenset[str]
    origins: frozenset[str]


def address_of(options: ServeOptions, bound: socket.socket) -> Address:
    if options.socket is not None:
        return Address(f"unix:{options.socket}", frozenset({"localhost"}), frozenset())
    port = bound.getsockname()[1]
    names = {"127.0.0.1", "localhost", "[::1]"}
    if not _is_loopback(options.host):
        names |= {f"[{options.host}]" if ":" in options.host else options.host, socket.gethostname().lower()}
        names |= {socket.getfqdn().lower()}
    hosts = frozenset(f"{name}:{port}" for name in names)
    shown = "127.0.0.1" if options.host in ("127.0.0.1", "localhost", "0.0.0.0") else options.host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    return Address(url, hosts, frozenset(f"http://{host}" for host in hosts))


class _Server(uvicorn.Server):
    """A uvicorn server that installs no signal handlers, and calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


async def serve(
    host: Host, vault: Path, options: ServeOptions, ready: Callable[[Service], None], stopping: asyncio.Event
) -> None:
    """Serve until `stopping` is set.

    :param ready: called once the server accepts requests.
    :raises ConfigError: it cannot listen, this home folder already has a server, or the agent or the model is unknown.
    """
    agent = host.agent(options.agent)
    if options.model or options.agent:
        host.models(host.plugin_set).choose(options.model, agent.model, host.config.get("model"))
    with only_one(host.home), listen(options) as bound:
        address = address_of(options, bound)
        running_file = host.home / FOLDER / RUNNING  # at once: clients send the token to the address that is there
        about = {"url": address.url, "pid": os.getpid(), "version": __version__, "home": str(host.home), "started": now()}
        keep(running_file, json.dumps(about))
        token = token_of(host.home)
        new = NewSession(options.agent, options.model, options.mode)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # RLIM_INFINITY may be -1
        HttpConnection.most = min(MAX_CONNECTIONS, files // 2) if files > 0 else MAX_CONNECTIONS
        service = _service(host, vault, address.url, new, min(MAX_STREAMS, HttpConnection.most // 2))
        host.approvals.attach(asyncio.get_running_loop())
        access = Access(address.hosts, address.origins, token, service.tokens.id_of)
        config = uvicorn.Config(
            application(service, access), http=HttpConnection, backlog=max(4, HttpConnection.most // 8), loop="asyncio",
            lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
            timeout_graceful_shutdown=CLOSE_SECONDS, h11_max_incomplete_event_size=65_536, timeout_keep_alive=KEEP_SECONDS,
        )  # fmt: skip
        server = _Server(config, lambda: ready(service))
        await service.events.start()
        service.counters.after = service.events.head
        reloader = Reloader(host)
        reloader.start()
        work = asyncio.create_task(server.serve(sockets=[bound]))
        stop_requested = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((work, stop_requested), return_when=asyncio.FIRST_COMPLETED)
            await _end(service)
            server.should_exit = True
            await work
        finally:
            stop_requested.cancel()
            await reloader.aclose()
            running_file.unlink(missing_ok=True)
            if options.socket is not None:
                options.socket.unlink(missing_ok=True)


def _service(host: Host, *given: Any) -> Service:
    if (inbox := inbox_of(host.store)) is None:
        return Service(host, *given)
    from .clustered import ClusterService

    return ClusterService(inbox, host, *given)


async def _end(service: Service) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(service.drain(), DRAIN_SECONDS)
    await asyncio.sleep(0)  # lets the last events of the turns be sent first
    service.events.stop()


class HttpConnection(H11Protocol):
    """A connection of uvicorn's, whose answer to what is no HTTP is JSON.

    If there are too many, the one that has waited longest for its client gives way: half-open ones shut nobody out. The event
    loop accepts `backlog` at once, before they are counted.
    """

    most = MAX_CONNECTIONS
    waiting: ClassVar[dict[HttpConnection, None]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting[self] = None
        if len(self.connections) > self.most:
            longest = next(iter(self.waiting))
            self.waiting.pop(longest)
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.waiting.pop(self, None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:  # else the next request is there already
            self.waiting[self] = None

    def send_400_response(self, msg: str) -> None:
        body = encoded(error_document("bad_request", "this is not a request of HTTP/1.1", "GET /openapi.json lists all"))
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *SAFE_HEADERS]
        head = h11.Response(status_code=400, headers=[*headers, (b"content-length", b"%d" % len(body))], reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

"""The host's side of the helper process. It starts with the first request, handles many at once, and ends with the plugin."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from moryflow_sdk import ToolError
from moryflow_sdk.support.processes import CALL_MARK, end_marked, end_process
from moryflow_sdk.support.settings import ServerSettings

# The longest line from the helper, in bytes.
LIMIT = 96 * 1024 * 1024
# Environment variables that every server gets, beside those that are configured for it.
_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_CANCEL_TIMEOUT = 2.0
# The command of `moryflow mcp` that helps after a failed request, by its code.
_STEPS = {"mcp_login": "login", "mcp_gone": "test", "mcp_failed": "test"}
_NAMED = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")


def servers_mark(helper: str) -> str:
    """Return the mark of servers and their descendants; it differs from the mark of the helper process, which ends them."""
    return f"{helper}-servers"


@dataclass
class _Pending:
    server: str
    done: asyncio.Future[Any]
    progress: Callable[[str], None]
    show: Callable[[str], None]


class Helper:
    """One process for all servers of a home."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self._process: asyncio.subprocess.Process | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mark = f"mcp-{secrets.token_hex(8)}"
        self._numbers = count(1)
        self._pending: dict[int, _Pending] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._words: deque[str] = deque(maxlen=10)
        self._starting = asyncio.Lock()

    async def request(
        self,
        message: Mapping[str, Any],
        *,
        progress: Callable[[str], None] = lambda _: None,
        show: Callable[[str], None] = lambda _: None,
    ) -> Any:
        """Send a request to the helper and return the result. If this is cancelled, the helper cancels the request.

        :param show: called with the address that the user opens to log in.
        :raises ToolError: the request failed.
        """
        process = await self._running()
        number = next(self._numbers)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(str(message["server"]["name"]), done, progress, show)
        try:
            await self._send(process, {**message, "id": number})
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await self._cancel(process, number, done)
            raise
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        """End the helper and every server."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.3)
        await self._kill(process)
        for task in self._tasks:
            task.cancel()

    # ---------------------------------------------------------------- the process

    async def _running(self) -> asyncio.subprocess.Process:
        loop = asyncio.get_running_loop()
        async with self._starting:
            known = self._process
            if known is None or known.returncode is not None or self._loop is not loop:
                known = self._process = await self._start()
                self._loop = loop
        return known

    async def _start(self) -> asyncio.subprocess.Process:
        if find_spec("mcp") is None:
            raise ToolError(
                "MCP servers need the package mcp, which is not installed",
                code="mcp_missing",
                next_step="pip install 'moryflow[mcp]'",
            )
        given = {name: self._environ[name] for name in (*_PASSED_ON, "PYTHONPATH") if name in self._environ}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "moryflow_builtins.mcp.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder,
            env={**given, CALL_MARK: self._mark},
            limit=LIMIT,
            start_new_session=True,
        )
        self._words.clear()
        for work in (self._read(process), self._listen(process)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        reason = ""
        try:
            async for line in process.stdout:
                self._take(json.loads(line))
        except ValueError:
            reason = f"it said something of more than {LIMIT // 2**20} MiB"
        finally:  # also when the loop ends before the plugin: it kills the helper, which then ends no server
            await self._kill(process)
        if self._process is process:
            self._process = None
        for pending in self._pending.values():
            if not pending.done.done():
                words = reason or (self._words[-1] if self._words else "")
                text = f"the process that holds the MCP servers ended{f': {words}' if words else ''}"
                step = f"the user runs: moryflow mcp test {pending.server}"
                pending.done.set_exception(ToolError(text, code="mcp_gone", next_step=step))
                pending.done.exception()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(65536):
            self._words.extend(line[:300] for line in chunk.decode("utf-8", "replace").splitlines() if line.strip())

    def _take(self, message: Mapping[str, Any]) -> None:
        pending = self._pending.get(message["id"])
        if pending is None or pending.done.done():
            return
        if "progress" in message:
            pending.progress(message["progress"])
        elif "login" in message:
            pending.show(message["login"])
        elif "error" in message:
            error = message["error"]
            verb = _STEPS.get(error["code"])
            step = f"the user runs: moryflow mcp {verb} {pending.server}" if verb else ""
            pending.done.set_exception(ToolError(error["message"], code=error["code"], next_step=step))
            pending.done.exception()
        else:
            pending.done.set_result(message["result"])

    async def _send(self, process: asyncio.subprocess.Process, message: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()
        except OSError:
            await process.wait()

    async def _cancel(self, process: asyncio.subprocess.Process, number: int, done: asyncio.Future[Any]) -> None:
        """Cancel a request; if the helper does not answer that in time, kill it."""
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT):
                await self._send(process, {"cancel": number})
                with suppress(ToolError):
                    await asyncio.shield(done)
        except TimeoutError:
            await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        await end_process(process)
        await asyncio.to_thread(end_marked, [self._mark, servers_mark(self._mark)])


# ---------------------------------------------------------------- the description of a server for the helper


def spec_of(name: str, server: ServerSettings, environ: Mapping[str, str], vault: Path, folder: Path) -> dict[str, Any]:
    """Return what the helper needs to reach a server.

    :param folder: the plugin's own folder; a program without a configured folder runs in a folder below it.
    :raises ToolError: an environment variable that the server needs is not set, or its folder leads out of the vault.
    """

    def filled(text: str) -> str:
        return _NAMED.sub(lambda found: _variable(name, environ, found), text)

    common = {"name": name, "timeout": server.timeout, "client_version": _own_version()}
    if server.url is not None:
        headers = {key: filled(value) for key, value in server.headers.items()}
        identity: dict[str, Any] = {"url": server.url, "headers": sorted(server.headers)}
        client = [server.client_id, filled(server.client_secret or "")] if server.client_id else None
        tokens = token_file(folder, name)
        login = tokens.stat().st_mtime_ns if tokens.exists() else 0  # after a login or a logout, a new connection is made
        more = {"identity": identity, "tokens": str(tokens), "login": login, "client": client}
        return {**common, "key": name, "url": filled(server.url), "headers": headers, **more}
    cwd = _folder(name, server, vault, folder)
    passed_on = {key: environ[key] for key in _PASSED_ON if key in environ}
    env = {**passed_on, **{key: filled(value) for key, value in server.env.items()}}
    args = [filled(arg) for arg in server.args]
    identity = {"command": server.command, "args": list(server.args), "env": sorted(server.env), "cwd": server.cwd}
    return {
        **common,
        "key": f"{name}\0{cwd}",
        "command": server.command,
        "args": args,
        "env": env,
        "cwd": cwd,
        "identity": identity,
    }


def token_file(folder: Path, server: str) -> Path:
    """Return the file for the tokens of a server. Its name marks it as a secret, and so no tool may read it in any mode."""
    return folder / "tokens" / f"{server}.token.json"


def _variable(server: str, environ: Mapping[str, str], found: re.Match[str]) -> str:
    value = environ.get(found[1], found[2])
    if value is None:
        raise ToolError(
            f"the MCP server {server} needs the variable {found[1]}, which is not set",
            code="mcp_config",
            next_step=f"export {found[1]}=…",
        )
    return value


def _folder(name: str, server: ServerSettings, vault: Path, folder: Path) -> str:
    if server.cwd is None:
        place = folder / "servers" / name
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(place)
    place = (vault / server.cwd).resolve()
    if not place.is_relative_to(vault.resolve()) or not place.is_dir():
        raise ToolError(f"the MCP server {name} runs in {server.cwd!r}, which is not a folder of {vault}", code="mcp_config")
    return str(place)


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("moryflow")
    except PackageNotFoundError:
        return "0"

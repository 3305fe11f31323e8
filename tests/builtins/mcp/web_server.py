"""An MCP server at an address on loopback, with an authorization server of its own, that behaves as it is told."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
WELL_KNOWN = "/.well-known/oauth-authorization-server"
RESOURCE = "/.well-known/oauth-protected-resource/mcp"


class WebServer(ThreadingHTTPServer):
    """Serves on a port of its own until it is closed.

    :ivar mode: ``good``, ``changing``, ``silent``, ``dying``, ``redirect``, ``limited``, ``unreadable``
        or ``mixed``, where the text of a call says how it ends.
    :ivar session: the session that it knows, if it wants one.
    :ivar protected: whether a token is wanted.
    :ivar metadata: of the authorization server; a test changes it.
    :ivar seen: the requests: method, path, token.
    """

    daemon_threads = True

    def __init__(self, mode: str = "good", *, protected: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode, self.protected, self.session = mode, protected, ""
        self.origin = f"http://127.0.0.1:{self.server_address[1]}"
        self.url = f"{self.origin}/mcp"
        self.location = "http://169.254.169.254/latest/meta-data"
        self.challenge = f'Bearer resource_metadata="{self.origin}{RESOURCE}"'
        self.resource: dict[str, Any] = {"resource": self.url, "authorization_servers": [self.origin]}
        self.metadata: dict[str, Any] = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }
        self.expires_in = 3600
        self.seen: list[tuple[str, str, str]] = []
        self.logins: dict[str, dict[str, str]] = {}
        self.tokens: set[str] = set()
        self.released = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.seen]

    # ---------------------------------------------------------------- the authorization server

    def authorize(self, asked: dict[str, str]) -> str:
        """Return where the browser goes: the person says yes at once."""
        code = f"code-{len(self.logins)}"
        self.logins[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, given: dict[str, str]) -> dict[str, Any] | None:
        """Return new tokens for a code whose verifier fits, or for a token of before."""
        if given["grant_type"] == "authorization_code":
            login = self.logins.pop(given["code"], None)
            digest = base64.urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest()).decode().rstrip("=")
            same = login and all(login[name] == given[name] for name in ("redirect_uri", "client_id", "resource"))
            if not login or not same or login["code_challenge"] != digest or login["code_challenge_method"] != "S256":
                return None
        elif given.get("refresh_token") != "renew":
            return None
        token = f"token-{time.monotonic_ns()}"
        self.tokens.add(token)
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in, "refresh_token": "renew"}

    # ---------------------------------------------------------------- the MCP server

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        method, number = message["method"], message["id"]
        if method == "initialize":
            info = {"name": "web", "version": "1"}
            result: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            changed = f" {time.monotonic_ns()}" if self.mode == "changing" else ""
            result = {"tools": [{"name": "echo", "description": f"Say it{changed}", "inputSchema": TEXT}]}
        elif method == "tools/call":
            result = {"content": [{"type": "text", "text": message["params"]["arguments"].get("text", "")}]}
        else:
            return {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}}
        return {"jsonrpc": "2.0", "id": number, "result": result}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def web(self) -> WebServer:
        assert isinstance(self.server, WebServer)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._seen()
        parts = urlsplit(self.path)
        if parts.path == RESOURCE:
            self._say(200, self.web.resource)
        elif parts.path == WELL_KNOWN:
            self._say(200, self.web.metadata)
        elif parts.path == "/authorize":
            self._say(302, {}, Location=self.web.authorize({name: one[0] for name, one in parse_qs(parts.query).items()}))
        else:
            self._say(405 if parts.path == "/mcp" else 404, {})

    def do_DELETE(self) -> None:
        self._say(200, {})

    def do_POST(self) -> None:
        self._seen()
        body = self.rfile.read(int(self.headers["content-length"]))
        match self.path:
            case "/register":
                self._say(201, {**json.loads(body), "client_id": f"client-{len(self.web.seen)}"})
            case "/token":
                tokens = self.web.token({name: one[0] for name, one in parse_qs(body.decode()).items()})
                self._say(200 if tokens else 400, tokens or {"error": "invalid_grant"})
            case "/gone":
                self._say(404, {})
            case _:
                self._mcp(json.loads(body))

    def _mcp(self, message: dict[str, Any]) -> None:
        server, token = self.web, (self.headers["authorization"] or "").removeprefix("Bearer ")
        if server.mode == "redirect":
            return self._say(307, {}, Location=server.location)
        if server.protected and token not in server.tokens:
            return self._say(401, {}, **{"WWW-Authenticate": server.challenge})
        if server.session and message["method"] != "initialize" and self.headers["mcp-session-id"] != server.session:
            return self._say(404, {})
        if message["method"] == "tools/call" and server.mode == "limited":
            return self._say(429, {})
        if message["method"] == "tools/call" and server.mode == "mixed":
            return self._mixed(message["id"], message["params"]["arguments"]["text"])
        if message["method"] == "tools/call" and server.mode == "unreadable":
            return self._say(200, {"jsonrpc": "2.0", "id": message["id"], "result": "text"})
        if message["method"] == "tools/call" and server.mode == "silent":
            server.released.wait(600)
        if message["method"] == "tools/call" and server.mode == "dying":
            self.close_connection = True
            return self.connection.close()
        fields = {"Mcp-Session-Id": server.session} if server.session else {}
        return self._say(202, None) if "id" not in message else self._say(200, server.answer(message), **fields)

    def _mixed(self, number: int, text: str) -> None:
        """Answer with a status of HTTP, or with an error of the protocol, whose status may be one of an error too."""
        error = {"code": -32602, "message": "no such text"}
        self._say(400 if text == "bad request" else 200, {"jsonrpc": "2.0", "id": number, "error": error})

    def _seen(self) -> None:
        self.web.seen.append((self.command, urlsplit(self.path).path, self.headers["authorization"] or ""))

    def _say(self, status: int, document: Any, **fields: str) -> None:
        data = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **fields}.items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # whoever asked may be gone: a call ran out of time
            self.end_headers()
            self.wfile.write(data)

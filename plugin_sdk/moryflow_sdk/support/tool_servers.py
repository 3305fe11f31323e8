"""How a person names the MCP servers that they use: ``mcp.servers`` in the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from .settings import Meta, Settings
from .texts import nearest

Text = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]*$")]


class ServerSettings(Settings):
    """One MCP server: a program that is started, or an address.

    :ivar args: arguments of the program.
    :ivar url: the address of a server that is not started here.
    :ivar timeout: seconds that a call may take.
    :ivar enabled: false keeps the entry without using it.
    :ivar always_load: tell the model of its tools at once, however many tokens they cost.
    """

    type: Annotated[Literal["stdio", "http", "sse"] | None, Meta("stdio with command, else http")] = None
    command: Annotated[Text | None, Meta("the program, without its arguments")] = None
    args: tuple[Annotated[str, Meta(pattern=r"^[^\x00]*$")], ...] = ()
    env: Annotated[dict[str, str], Meta("variables of the program besides PATH and HOME; ${NAME} is taken from yours")] = {}
    cwd: Annotated[Text | None, Meta("a folder of the vault, relative to it; without one, a folder of Moryflow's")] = None
    url: Text | None = None
    headers: Annotated[dict[str, str], Meta("sent with every request; ${NAME} is taken from your environment")] = {}
    client_id: Annotated[Text | None, Meta("for mcp login, where the service registers no client by itself")] = None
    client_secret: Annotated[Text | None, Meta("its secret, if it has one; ${NAME} is taken from your environment")] = None
    timeout: Annotated[float, Meta("seconds", gt=0, allow_inf_nan=False)] | None = None
    enabled: bool = True
    always_load: bool = False


class ServersSettings(Settings):
    """MCP servers.

    :ivar servers: MCP servers by name.
    :ivar search_above: tokens that the tools of all servers may cost; above them they are found with tool_search.
    """

    servers: dict[str, ServerSettings] = {}
    search_above: Annotated[int, Meta("tokens", ge=0, le=100_000_000, strict=True)] = 2000


_NAME = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def wrong_name(name: str) -> str:
    """Say why `name` cannot be that of a server; empty where it can."""
    if _NAME.fullmatch(name):
        return ""
    return "a name has 1 to 64 letters, digits, dots, dashes, underscores and @, and begins with one of the first"


def wrong_values(server: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what no type tells, each with its place: a server needs one way to be reached, and stays in the vault."""
    command, url = server.get("command"), server.get("url")
    if (command is None) == (url is None):
        yield (), "it has both command and url" if command else f"it has neither command nor url{_near(server)}"
    wanted = "url" if server.get("type") in ("http", "sse") else "command" if server.get("type") else ""
    if wanted and server.get(wanted) is None:
        yield ("type",), f"the type {server['type']!r} needs {wanted}"
    if command is not None and not command.strip():
        yield ("command",), "the command is empty"
    if url is not None and not _is_address(url):
        yield ("url",), f"url: {url[:60]!r} is no http or https address without a password"
    cwd = PurePosixPath(server.get("cwd") or ".")
    if cwd.is_absolute() or ".." in cwd.parts or cwd.parts[:1] == ("~",):
        yield ("cwd",), f"cwd: {str(cwd)[:60]!r} lies outside the vault; write a folder of it, without .."
    variables: Mapping[str, str] = server.get("env") or {}
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            yield ("env", variable), f"env: {variable[:60]!r} is not the name of a variable"


def _near(server: Mapping[str, Any]) -> str:
    near = next((key for key in server if nearest(key.casefold(), ("command", "url"), 0.7)), None)
    return f"; {near[:60]!r} is neither" if near else ""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False

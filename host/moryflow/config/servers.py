"""MCP servers as they stand in a configuration: checked here, started by no part of this version."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from .checks import deepest, kind, sentence
from .layers import MISSING, Layer, Place, dotted
from .problems import MOST, Problem
from .schema import Settings

SECTION = ("mcp", "servers")
CODE = "mcp_config"
_NAME = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
Fault = tuple[Place, str]


class ServerSettings(Settings):
    """One MCP server: a program that is started, or an address."""

    type: Literal["stdio", "http", "sse"] | None = Field(default=None, description="stdio with command, else http")
    command: Text | None = Field(default=None, description="the program, without its arguments")
    args: tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...] = ()
    env: dict[str, str] = Field(default={}, description="variables of the program besides PATH and HOME")
    cwd: Text | None = Field(default=None, description="a folder of the vault, relative to it")
    url: Text | None = None
    headers: dict[str, str] = {}
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False, description="seconds")] | None = None
    enabled: bool = True


class ServersSettings(Settings):
    """MCP servers by name. This version starts none."""

    servers: dict[str, ServerSettings] = {}


def checked_servers(layer: Layer) -> tuple[Layer, list[Problem]]:
    """Return `layer` without servers that are written wrongly, and what is wrong; whole entries go, never parts of one."""
    section = layer.find(("mcp",))
    if section is MISSING:
        return layer, []
    for end, value in ((1, section), (2, layer.find(SECTION))):
        if value is not MISSING and not isinstance(value, Mapping):
            text = f"{'.'.join(SECTION[:end])} must be an object, not {kind(value)}; it is ignored"
            return layer.without(SECTION[:end]), [layer.problem(SECTION[:end], text, code=CODE)]
    servers = layer.find(SECTION)
    if servers is MISSING:
        return layer, []
    problems: list[Problem] = []
    bad: set[str] = set()
    for name, server in servers.items():
        for place, fault in _faults(str(name), server):
            bad.add(name)
            problems.append(layer.problem((*SECTION, name, *place), f"{fault}; the entry is left out", code=CODE))
    if len(problems) > MOST:
        more = layer.problem(SECTION, f"{len(problems) - MOST} more faults in MCP servers", code=CODE)
        problems = [*problems[:MOST], more]
    notice = layer.problem(SECTION, "this version starts no MCP servers; what stands here is only checked", code=CODE)
    kept = {name: server for name, server in servers.items() if name not in bad}
    return _with_servers(layer, kept), [*problems, notice]


def _with_servers(layer: Layer, servers: Mapping[str, Any]) -> Layer:
    return replace(layer, value={**layer.value, "mcp": {**layer.value["mcp"], "servers": dict(servers)}})


def _faults(name: str, server: Any) -> Iterator[Fault]:
    shown = f"MCP server {name[:60]!r}"
    if not _NAME.fullmatch(name):
        yield (
            (),
            f"{shown}: a name has 1 to 64 letters, digits, dots, dashes, underscores and @, and begins with one of the first",
        )
    if not isinstance(server, Mapping):
        yield (), f"{shown} must be an object with command or url, not {kind(server)}"
        return
    wrong = list(_wrong_types(server))
    yield from ((place, f"{shown}: {text}") for place, text in wrong or _wrong_values(server))


def _wrong_types(server: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        ServerSettings.model_validate_json(json.dumps(dict(server)), strict=True)
    except ValidationError as error:
        for place, message in {
            tuple(deepest(server, detail["loc"])): sentence(str(detail["msg"]))
            for detail in error.errors(include_url=False, include_context=False, include_input=False)
        }.items():
            yield place, f"{dotted(place)}: {message}"


def _wrong_values(server: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what no type tells: a server needs one way to be reached, and must not reach out of the vault."""
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
    for variable in server.get("env") or {}:
        if not _VARIABLE.fullmatch(variable):
            yield ("env", variable), f"env: {variable[:60]!r} is not the name of a variable"


def _near(server: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    near = next((key for key in server if get_close_matches(key.casefold(), ("command", "url"), cutoff=0.7)), None)
    return f"; {near[:60]!r} is neither" if near else ""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False

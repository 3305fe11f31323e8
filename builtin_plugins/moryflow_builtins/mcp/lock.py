"""The configured servers, and ``mcp.lock``: what the user has accepted of each server. It is read at every start, so that no
server has to run.

Only tools in this file are offered. A tool that has changed is marked there as withheld until the user reviews it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import ConfigError, PluginContext, config_of
from moryflow_sdk.support.own_files import doubt_about_one, replace_file
from moryflow_sdk.support.settings import ServerSettings, ServersSettings

FILE = "mcp.lock"
_FORMAT = 1


class Pin(NamedTuple):
    """What the user accepted of one server. It is not a dataclass, because creating one slows every start.

    :ivar configured: hash of the server's configuration when it was accepted.
    :ivar shown: hash of the text that the user saw.
    :ivar identity: what identifies the server (command or URL, name, version …); it is part of every tool's hash.
    :ivar server: the server's own description: name, version, protocol.
    :ivar tools: the definition of each tool, with its `hash`, and with `parameters` if the model gets another schema than the
        `inputSchema`; a tool that is never offered has `problem` instead.
    :ivar beyond: how many more tools the server has than can be pinned.
    :ivar withheld: tools that have changed since they were accepted → how.
    """

    configured: str
    shown: str
    identity: Mapping[str, Any]
    server: Mapping[str, Any]
    tools: tuple[Mapping[str, Any], ...]
    prompts: tuple[Mapping[str, Any], ...] = ()
    beyond: int = 0
    withheld: Mapping[str, str] = {}

    @property
    def by_name(self) -> dict[str, Mapping[str, Any]]:
        return {tool["name"]: tool for tool in self.tools}

    def why_withheld(self, tool: Mapping[str, Any]) -> str:
        """Return why a tool is not offered; empty if it is."""
        return self.withheld.get(tool["name"], "") or tool.get("problem", "")


def canonical(value: Any) -> bytes:
    """Return canonical JSON: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict).encode()  # for mappings other than dict


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value."""
    return sha256(canonical(value)).hexdigest()


def configured_as(name: str, server: ServerSettings) -> str:
    """Return the hash of a server's configuration: its program or address, and what is passed to it."""
    fields = ("command", "args", "env", "cwd", "url", "headers")
    client = {"client": [server.client_id, server.client_secret]} if server.client_id else {}
    return digest({"name": name, **{field: getattr(server, field) for field in fields}, **client})


def read_lock(home: Path) -> dict[str, Pin]:
    """Return the pins by server.

    :raises ConfigError: the file cannot be read, or somebody else could have written it; then no server is used.
    """
    file = home / FILE
    try:
        with file.open("rb") as stream:
            doubt = doubt_about_one(file, os.fstat(stream.fileno()))
            if doubt:
                raise ConfigError(f"{doubt.reason}; no tool of a server is offered", where=str(file), next_step=doubt.step)
            return dict(_parsed(stream.read()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"it cannot be read, so no tool of a server is offered: {error}"
        raise ConfigError(text, where=str(file), next_step=f"mv {file} {file}.old, then moryflow mcp review") from error


@lru_cache(maxsize=1)
def _parsed(text: bytes) -> Mapping[str, Pin]:
    """Return the pins in the text of a lock; cached, because every start needs them for the tools and for the commands."""
    found = json.loads(text.decode())
    if found["format"] != _FORMAT:
        raise ValueError(f"format {found['format']}")
    return {name: _pin(value) for name, value in found["servers"].items()}


_KINDS = {"configured": str, "shown": str, "identity": dict, "server": dict, "prompts": list, "beyond": int, "withheld": dict}


def _pin(value: Mapping[str, Any]) -> Pin:
    value = dict(value)
    tools = tuple(value.pop("tools"))
    if wrong := [name for name, kind in _KINDS.items() if name in value and not isinstance(value[name], kind)]:
        raise ValueError(f"{wrong[0]} has the wrong type")
    if not all(isinstance(why, str) and why for why in value.get("withheld", {}).values()):
        raise ValueError("a tool that is withheld for no reason")
    for tool in tools:
        if not isinstance(tool["name"], str) or not isinstance(tool["hash"], str):
            raise ValueError("a tool without name and hash")
        if "problem" not in tool and not isinstance(tool.get("parameters", tool.get("inputSchema")), dict):
            raise ValueError("a tool without parameters")
        texts = all(isinstance(tool.get(name, ""), str) for name in ("description", "title", "problem"))
        if not texts or not isinstance(tool.get("tokens", 0), int):
            raise ValueError("a tool that is not described by texts")
    prompts = tuple(value.pop("prompts", ()))
    for prompt in prompts:
        named = isinstance(prompt["name"], str)
        if not named or not all(isinstance(each, dict) for each in prompt.get("arguments", ())):
            raise ValueError("a prompt without names")
    return Pin(tools=tools, prompts=prompts, **value)


def store_pin(home: Path, server: str, pin: Pin | None) -> None:
    """Write the pin of one server, or remove it.

    :raises ConfigError: the file cannot be read or written.
    """
    with _locked(home):
        pins = read_lock(home)
        if pin is not None:
            pins[server] = pin
        elif pins.pop(server, None) is None:
            return
        _write(home, pins)


def note_withheld(home: Path, server: str, changes: Mapping[str, str]) -> None:
    """Mark tools of a server as changed since they were accepted.

    :raises ConfigError: as :func:`store_pin`.
    """
    with _locked(home):
        pins = read_lock(home)
        pin = pins.get(server)
        if pin is not None and not changes.items() <= pin.withheld.items():
            pins[server] = pin._replace(withheld={**pin.withheld, **changes})
            _write(home, pins)


def _write(home: Path, pins: Mapping[str, Pin]) -> None:
    text = json.dumps({"format": _FORMAT, "servers": {name: pin._asdict() for name, pin in sorted(pins.items())}}, indent=1)
    try:
        replace_file(home / FILE, text.encode(), sync=True)
    except OSError as error:
        raise ConfigError(f"it cannot be written: {error.strerror}", where=str(home / FILE)) from error


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    try:
        descriptor = os.open(home / f".{FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"it cannot be written: {error.strerror}", where=str(home / FILE)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# The keyword argument with the context of a call.
CONTEXT = "moryflow_context"
CALL_SECONDS = 300.0


class Server:
    """A configured server, with its pin: what was accepted of it."""

    def __init__(self, name: str, settings: ServerSettings, pin: Pin | None) -> None:
        self.name, self.settings, self.pin = name, settings, pin

    @cached_property
    def state(self) -> str:
        """``off``, ``new``, ``changed`` (configured differently than when it was reviewed) or ``reviewed``."""
        if not self.settings.enabled:
            return "off"
        if self.pin is None:
            return "new"
        return "reviewed" if self.pin.configured == configured_as(self.name, self.settings) else "changed"

    @cached_property
    def offered(self) -> list[Mapping[str, Any]]:
        """The tools that may be offered."""
        if self.pin is None or self.state != "reviewed":
            return []
        return [each for each in self.pin.tools if not self.pin.why_withheld(each)]

    @property
    def tokens(self) -> int:
        """About how many tokens the definitions of all its tools cost in a request."""
        return sum(each.get("tokens", 0) for each in self.offered)


def servers_of(settings: ServersSettings, home: Path) -> list[Server]:
    """Return the configured servers.

    :raises ConfigError: the pins cannot be read.
    """
    pins = read_lock(home) if settings.servers else {}
    return [Server(name, server, pins.get(name)) for name, server in settings.servers.items()]


def usable_servers(ctx: PluginContext) -> list[Server]:
    """Return the servers that may be used: none in safe mode; in the profile ``remote``, only those with an address.

    :raises ConfigError: the pins cannot be read.
    """
    if ctx.safe_mode:
        return []
    servers = servers_of(config_of(ctx, ServersSettings), ctx.home)
    return [server for server in servers if ctx.profile != "remote" or server.settings.url is not None]

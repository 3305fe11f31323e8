"""What a prompt brings besides its text: files and images, and what a person calls with an @ without asking the model.

Attachments are checked before they are stored, because a node is never changed and every turn reads it. A sub-agent, or what
a tool knows by such a name, becomes a call in the turn's first step and is judged like any other; only what the person typed
counts.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Image, ToolRequest
from moryflow_sdk.support.texts import nearest

from moryflow.store.messages import with_files

from .subagents import TOOL

if TYPE_CHECKING:
    from .ports import SessionHost


MOST_CALLS = 8
"""Calls that one prompt may make."""
_AGENT = re.compile(r"@([A-Za-z0-9][A-Za-z0-9_-]{0,63})(?:\s+(\S.*))?\s*", re.DOTALL)
NEARLY = 0.75
"""How alike a name must be to be taken for a mistyped agent and not for a word of the prompt."""


def mentioned(prompt: Mapping[str, Any], host: SessionHost) -> Sequence[ToolRequest]:
    """Return the calls that `prompt` asks for.

    :raises ConfigError: it begins with something that is nearly an agent's name, or with one that cannot be started so.
    """
    if prompt.get("typed") == 0:
        return ()
    agent = _agent_call(prompt, host)
    return (agent,) if agent is not None else tuple(_tool_calls(prompt["text"][: prompt.get("typed")], host))[:MOST_CALLS]


def _request(tool: str, arguments: Mapping[str, Any]) -> ToolRequest:
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolRequest(id=f"call_{secrets.token_hex(6)}", name=tool, arguments=text)


def _agent_call(prompt: Mapping[str, Any], host: SessionHost) -> ToolRequest | None:
    """Return the call of a sub-agent, if the prompt begins with its name."""
    found = _AGENT.fullmatch(prompt["text"].lstrip())
    if found is None or TOOL not in host.tools:
        return None
    name, rest = found.groups()
    startable = [agent.id for agent in host.agents.values() if agent.mode != "primary" and not agent.hidden]
    if name in startable:
        if not (rest or prompt.get("files")):
            raise ConfigError(f"@{name} was given nothing to do", next_step=f'"@{name} what it shall do"')
        return _request(TOOL, {"agent": name, "prompt": with_files({**prompt, "text": rest or ""})})
    if name in host.agents and not host.agents[name].hidden:
        raise ConfigError(f"{name} is no sub-agent: you talk with it yourself", next_step=f"--agent {name}, or /{name} in chat")
    if near := nearest(name, startable, NEARLY):
        raise ConfigError(f"there is no sub-agent {name!r}; did you mean @{near}?", next_step="moryflow agent list")
    return None


def _tool_calls(typed: str, host: SessionHost) -> Iterator[ToolRequest]:
    """Yield the calls that tools find in a prompt; a tool that cannot say is passed over."""
    if "@" not in typed:
        return
    for name, owned in sorted(host.tools.items()):
        if owned.tool.mentions is None:
            continue
        try:
            calls = [_request(name, arguments) for arguments in owned.tool.mentions(typed)]
        except Exception:  # other people's code
            continue
        yield from calls


def attachments_payload(files: Sequence[Mapping[str, Any]], images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attachments of a prompt as its node holds them.

    :raises ConfigError: one is not what it should be.
    """
    for number, file in enumerate(files):
        if file.keys() != {"path", "text"} or not all(isinstance(value, str) for value in file.values()):
            raise ConfigError("a file is a path and a text", where=f"files[{number}]", next_step='{"path": "…", "text": "…"}')
    for number, image in enumerate(images):
        if not _is_image(image):
            said = "an image is a media type and its data in base64"
            step = '{"media_type": "image/png", "data": "…"}'
            raise ConfigError(said, where=f"images[{number}]", next_step=step)
    return {name: list(found) for name, found in (("files", files), ("images", images)) if found}


def _is_image(found: Mapping[str, Any]) -> bool:
    import base64

    try:
        image = Image(**found)
        return image.media_type.startswith("image/") and bool(base64.b64decode(image.data, validate=True))
    except (TypeError, ValueError):
        return False

"""``@general look into …``: a person starts a sub-agent without asking the model to.

It becomes a call of the tool ``task``, judged like any other; then the agent of the session goes on with the result.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, ToolRequest

from moryflow.kernel.messages import with_files

if TYPE_CHECKING:
    from .ports import SessionHost

TOOL = "task"
_MENTION = re.compile(r"@([A-Za-z0-9][A-Za-z0-9_-]{0,63})(?:\s+(\S.*))?\s*", re.DOTALL)
NEARLY = 0.75
"""How alike a name must be to be taken for a mistyped agent and not for a word of the prompt."""


def mentioned(prompt: Mapping[str, Any], host: SessionHost) -> ToolRequest | None:
    """Return the call that `prompt` asks for, if it begins with an agent's name; any other text is for the model.

    :raises ConfigError: it begins with something that is nearly an agent's name, or with one that cannot be started so.
    """
    found = _MENTION.fullmatch(prompt["text"].lstrip())
    if found is None or TOOL not in host.tools:
        return None
    name, rest = found.groups()
    startable = [agent.id for agent in host.agents.values() if agent.mode != "primary" and not agent.hidden]
    if name in startable:
        if not (rest or prompt.get("files")):
            raise ConfigError(f"@{name} was given nothing to do", next_step=f'"@{name} what it shall do"')
        arguments = {"agent": name, "prompt": with_files({**prompt, "text": rest or ""})}
        return ToolRequest(id=f"call_{secrets.token_hex(6)}", name=TOOL, arguments=json.dumps(arguments, ensure_ascii=False))
    if name in host.agents and not host.agents[name].hidden:
        raise ConfigError(f"{name} is no sub-agent: you talk with it yourself", next_step=f"--agent {name}, or /{name} in chat")
    from difflib import get_close_matches

    near = get_close_matches(name, startable, n=1, cutoff=NEARLY)
    if near:
        raise ConfigError(f"there is no sub-agent {name!r}; did you mean @{near[0]}?", next_step="moryflow agent list")
    return None

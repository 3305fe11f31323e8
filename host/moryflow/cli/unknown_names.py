"""Names in the configuration that do not exist, for ``config check`` and ``doctor``: only a host knows all names.

Each is only a warning: the plugin that brings the name may be installed later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from moryflow_sdk.support.texts import did_you_mean

from moryflow.config import Problem

if TYPE_CHECKING:
    from moryflow.runtime.host import Host

_AGENT = "agents.runtime.agent.id"


def unknown_names(host: Host) -> Iterator[Problem]:
    """Yield a problem, with its line, for each name in the configuration that does not exist."""
    yield from unknown_agent(host)
    plugins = {record.name for record in host.plugin_set.records}
    for name in host.config.get("disabledPlugins") or ():
        if name not in plugins:
            text = f"there is no plugin {name!r}, so nothing is switched off"
            yield _problem(host, "disabledPlugins", text, str(name), plugins, "moryflow plugin list")


def unknown_agent(host: Host) -> Iterator[Problem]:
    """Yield a problem if the configured agent does not exist or is hidden: every start says so, for another one answers."""
    agent, offered = host.config.get(_AGENT), [name for name, agent in host.agents.items() if not agent.hidden]
    if agent and agent not in offered:
        text = f"there is no agent {agent!r} to choose; the default one answers, and asks before every call"
        yield _problem(host, _AGENT, text, agent, offered, "moryflow agent list", "agent_unknown")


def _problem(
    host: Host, key: str, text: str, name: str, known: Collection[str], hint: str, code: str = "config_value"
) -> Problem:
    origin = host.config.origin(key)
    hint = did_you_mean(name, known).removeprefix("; ") or hint
    return Problem(origin.file or origin.source, origin.line, None, f"{key}: {text}", hint, code=code)

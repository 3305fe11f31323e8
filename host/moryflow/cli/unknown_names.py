"""Names in the configuration that nothing has: the agent that should answer, plugins that are off, tools that hooks are about.

Only a host knows which there are. A name that is not known is a warning and nothing else: what it stands for may come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from moryflow_sdk.support.texts import did_you_mean

from moryflow.config.layers import Problem

if TYPE_CHECKING:
    from moryflow.runtime.host import Host

_HOOKS = ("agents", "runtime", "hooks", "tool")
_GLOB = frozenset("*?[")


def unknown_names(host: Host) -> Iterator[Problem]:
    """Say which names are not known, each with its line."""
    yield from _agent(host)
    yield from _estimator(host)
    yield from _disabled(host)
    for hook in ("before", "after"):
        yield from _tools(host, hook)


def _agent(host: Host) -> Iterator[Problem]:
    """Say that the configured agent is not there, so that the default one answers."""
    key = "agents.runtime.agent.id"
    name = host.config.get(key)
    hidden = name in host.agents and host.agents[name].hidden
    if not name or (name in host.agents and not hidden):
        return
    origin = host.config.origin(key)
    hint = ("" if hidden else _meant(name, host.agents)) or "moryflow agent list"
    what = f"the agent {name!r} is hidden and cannot be chosen" if hidden else f"there is no agent {name!r}"
    text = f"{what}; the default one answers"
    yield Problem(origin.file or origin.source, origin.line, None, text, hint, code="agent_unknown")


def _estimator(host: Host) -> Iterator[Problem]:
    """Say that nothing counts tokens under the configured name, so that characters are counted."""
    key = "agents.runtime.compaction.estimator"
    name = host.config.get(key)
    if not name or not isinstance(name, str):
        return
    from moryflow.compaction.measure import known_estimators

    known = known_estimators(host.plugin_set)
    if name not in known:
        origin = host.config.origin(key)
        text = f"{key}: there is no estimator {name[:60]!r}; four characters count as a token"
        hint = _meant(name, known) or f"one of {', '.join(known)}, or a plugin with count_tokens"
        yield Problem(origin.file or origin.source, origin.line, None, text, hint, code="config_value")


def _disabled(host: Host) -> Iterator[Problem]:
    """Say which plugins are to be off and are not there: one that was mistyped is on."""
    path = ("disabledPlugins",)
    layer = next((layer for layer in reversed(host.config.layers) if isinstance(layer.find(path), list)), None)
    known = {record.name for record in host.plugin_set.records}
    for index, name in enumerate(layer.find(path) if layer is not None else ()):
        if layer is not None and isinstance(name, str) and name not in known:
            text = f"disabledPlugins[{index}]: there is no plugin {name!r}, so nothing is switched off"
            hint = _meant(name, known) or "moryflow plugin list"
            yield layer.problem((*path, index), text, hint=hint, code="config_value")


def _tools(host: Host, hook: str) -> Iterator[Problem]:
    """Report the entries of a hook that can never apply, and their arguments that no tool has."""
    path = (*_HOOKS, hook)
    layer = next((layer for layer in reversed(host.config.layers) if isinstance(layer.find(path), list)), None)
    for index, entry in enumerate(layer.find(path) if layer is not None else ()):
        name = entry.get("tool") if isinstance(entry, Mapping) else None
        if layer is None or not isinstance(name, str) or not name:
            continue
        found = [tool for tool in host.tools if fnmatchcase(tool, name)]
        if not found:
            hint = ("" if _GLOB & set(name) else _meant(name, host.tools)) or "moryflow tool list"
            text = f"{'.'.join(path)}[{index}]: there is no tool {name!r}, so it does nothing"
            yield layer.problem((*path, index, "tool"), text, hint=hint, code="config_value")
        for argument, near in _arguments(host, found, entry.get("mergeInput")):
            text = f"{'.'.join(path)}[{index}].mergeInput: {found[0]} takes no {argument!r}, so every call of it fails"
            hint = near or f"moryflow tool show {found[0]}"
            yield layer.problem((*path, index, "mergeInput", argument), text, hint=hint, code="config_value")


def _arguments(host: Host, tools: list[str], given: object) -> Iterator[tuple[str, str]]:
    """Yield what one tool is given and does not have, with what was meant; several tools need not have the same."""
    if len(tools) != 1 or not isinstance(given, Mapping):
        return
    schema: Mapping[str, Any] = host.tools[tools[0]].tool.parameters
    if schema.get("additionalProperties") is not False:
        return
    names = schema.get("properties", {})
    yield from ((str(name), _meant(str(name), names)) for name in given if name not in names)


def _meant(name: str, names: Iterable[str]) -> str:
    return did_you_mean(name, names).removeprefix("; ")

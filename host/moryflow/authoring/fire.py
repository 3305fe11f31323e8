"""Call one hook chain with a given input (``moryflow hook fire``)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moryflow_sdk import (
    HOOKS,
    ChatParams,
    CompactionPlan,
    ConfigError,
    Event,
    Frozen,
    Message,
    Ruling,
    SystemPrompt,
    ToolCall,
    ToolError,
    ToolResult,
    Verdict,
)
from moryflow_sdk.events import OTHER_NAMES
from moryflow_sdk.field_types import WrongType, check_of
from moryflow_sdk.hookspecs import spelled
from moryflow_sdk.support.texts import did_you_mean

from moryflow.hooks.dispatcher import Dispatcher, HookScope, Withheld
from moryflow.kernel.tool_call import call_as_judged
from moryflow.kernel.tool_executor import combine
from moryflow.kernel.turn_context import TurnContext
from moryflow.runtime.host import Host

TYPES: dict[str, Any] = {
    "call": ToolCall,
    "result": ToolResult,
    "ruling": Ruling,
    "params": ChatParams,
    "system": SystemPrompt,
    "plan": CompactionPlan,
    "event": Event,
    "messages": tuple[Message, ...],
}
_CONTEXT = {"tool_gate": ("call",), "tool_decided": ("call", "ruling"), "tool_after": ("call",)}
_DEFAULTS: dict[str, Any] = {
    "call": {"id": "call_fire", "tool": "read", "args": {"path": "README.md"}},
    "ruling": {"decision": "allow"},
    "result": {"output": ""},
    "event": {"type": "fire", "session": ""},
    "messages": [],
    "plan": {"covered": [], "first_kept": "", "tokens_before": 0},
}


@dataclass(frozen=True)
class FireResult:
    """The value after the chain, as JSON, and every implementation that was called."""

    hook: str
    value: Any
    chain: Sequence[dict[str, Any]]


async def fire(host: Host, hook: str, given: Mapping[str, Any], *, vault: Path | str | None = None) -> FireResult:
    """Call the implementations of `hook`, in order, in a hidden session.

    :param given: JSON of the hook's arguments by name, for example ``{"call": {"tool": "read", "args": {…}}}``; for a
        hook with one value, the value itself will do.
    :param hook: the hook's name, or another host's name for an event (``session.idle``), which is then given to the observers.
    :raises ConfigError: there is no such hook, it cannot be fired, or the input does not fit.
    """
    if hook in OTHER_NAMES and not given.keys() & {"event"}:
        type, fields = OTHER_NAMES[hook]
        hook, given = "event", {"event": {"type": type, "data": {**fields, **given}}}
    name = spelled(hook)
    if name is None:
        hint = did_you_mean(hook.replace("_", "."), [info.dotted for info in HOOKS.values()])
        raise ConfigError(f"there is no hook {hook!r}{hint}", next_step="moryflow hook list")
    info = HOOKS[name]
    if info.kind not in ("transform", "gate", "observe") and name != "system_blocks":
        raise ConfigError(f"{info.dotted} is called while plugins load, not in a turn", next_step="moryflow plugin info NAME")
    _check_names(name, given)
    await host.refresh_if_changed()
    session = await host.new_session(vault, purpose="direct")

    async def work(scope: TurnContext) -> Any:
        dispatcher = host.surroundings.dispatcher
        needed = _CONTEXT.get(name, ())
        values = {key: _value(key, given) for key in needed}
        if info.kind == "gate":
            values["call"] = _judged(scope, values["call"])
            verdicts = await dispatcher.gates(scope, name, **values)
            ruling = combine(verdicts, mode=scope.live.mode) if verdicts else None
            return ruling.model_dump(mode="json", exclude_defaults=True) if ruling else None
        if info.kind == "observe":
            return await dispatcher.observe(scope, _value("event", given))
        if info.kind == "contribute":
            return [{**_plain(block), "plugin": plugin} for plugin, block in await dispatcher.contribute(scope, name)]
        start = _value(info.value, given if info.value in given or needed or not given else {info.value: given})
        verdicts: list[tuple[str, Verdict]] = []
        made = await dispatcher.transform(scope, name, start, verdicts=verdicts, **values)
        return _plain(combine(verdicts, mode=scope.live.mode) if verdicts else made)

    value, chain = await session.scoped(work)
    return FireResult(name, value, [call for call in chain if call["hook"] == name])


async def call_chain(dispatcher: Dispatcher, scope: HookScope, hook: str, given: Mapping[str, Any]) -> None:
    """Call the implementations of `hook` for what the ledger and ``scope.report`` say of them; `given` has its arguments."""
    match HOOKS[hook].kind:
        case "gate":
            await dispatcher.gates(scope, hook, **given)
        case "contribute":
            await dispatcher.contribute(scope, hook)
        case "observe":
            await dispatcher.observe(scope, given["event"])
        case _:
            name = HOOKS[hook].value
            with suppress(Withheld):
                rest = {key: value for key, value in given.items() if key != name}
                await dispatcher.transform(scope, hook, given[name], **rest)


def _check_names(hook: str, given: Mapping[str, Any]) -> None:
    """Refuse a name that is not an argument of `hook`, unless `given` can be the hook's one value itself."""
    info = HOOKS[hook]
    names = (*_CONTEXT.get(hook, ()), info.value or ("event" if info.kind == "observe" else ""))
    unknown = sorted(set(given) - set(names))
    if not unknown or (info.value and hook not in _CONTEXT and info.value not in given):
        return
    takes = ", ".join(filter(None, names)) or "nothing"
    example = shlex.quote(json.dumps({name: _DEFAULTS.get(name, {}) for name in names if name}))
    message = f"{info.dotted} has no argument {unknown[0]!r}; it takes {takes}"
    raise ConfigError(message, next_step=f"moryflow hook fire {info.dotted} {example}")


def _judged(scope: TurnContext, call: ToolCall) -> ToolCall:
    """Return `call` as gates see it: validated, with its targets and hash. A call that has targets stays as it is."""
    if call.targets:
        return call
    owned = scope.plugin_set.tools.get(call.tool)
    if owned is None:
        hint = did_you_mean(call.tool, scope.plugin_set.tools)
        raise ConfigError(
            f"there is no tool {call.tool!r}, and gates judge calls of tools{hint}", next_step="moryflow tool list"
        )
    try:
        return call_as_judged(scope, call.tool, call.args, call.id, call.step)[0]
    except ToolError as error:
        raise ConfigError(error.message, next_step=f"moryflow tool show {call.tool}") from error


def _value(name: str, given: Mapping[str, Any]) -> Any:
    raw, default = given.get(name), _DEFAULTS.get(name, {})
    raw = {**default, **raw} if isinstance(raw, dict) and isinstance(default, dict) else default if raw is None else raw
    try:
        return check_of(TYPES[name]).convert(raw)
    except WrongType as error:
        place = ".".join(map(str, (name, *error.path)))
        raise ConfigError(f"the input does not fit: {place}: {error.message}", next_step="moryflow hook list") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Frozen):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value]

"""Which tools are offered, and a call of one as its gates see it: read, validated, resolved, hashed, recorded. Nothing runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from moryflow_sdk import MAX_LEVELS, Ruling, Target, Tool, ToolCall, ToolError, freeze, thaw
from moryflow_sdk.support.texts import keys_once
from moryflow_sdk.support.tool_schemas import misfits

from moryflow.base.events import now
from moryflow.base.foreign_errors import text_of
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.store import CallRow

from .turn_context import TurnContext


def offered_tools(scope: TurnContext) -> Mapping[str, RegisteredTool]:
    """Return the tools of this turn's agent and model, in the order in which a model is told of them.

    They are the same ones all through the turn; those that it finds on the way come behind them.
    """
    if scope.offered is None:
        used = {name: owned for name, owned in sorted(scope.plugin_set.tools.items()) if _is_offered(owned, scope)}
        scope.offered = {name: owned for name, owned in used.items() if owned.tool.found_in is None}
        scope.to_be_found = {name: owned for name, owned in used.items() if owned.tool.found_in is not None}
    return {**scope.offered, **_found(scope)} if scope.to_be_found else scope.offered


def _found(scope: TurnContext) -> dict[str, RegisteredTool]:
    """Return the tools that this session has found, in that order; each plugin is asked once."""
    hidden = scope.to_be_found
    asked = {owned.plugin: owned for owned in hidden.values()}
    names = [(name, plugin) for plugin, owned in asked.items() for name in _names_found(owned, scope)]
    return {name: hidden[name] for name, plugin in names if name in hidden and hidden[name].plugin == plugin}


def _names_found(owned: RegisteredTool, scope: TurnContext) -> list[str]:
    """Return the names that a plugin says were found; none where it cannot say."""
    assert owned.tool.found_in is not None
    try:
        return [str(name) for name in owned.tool.found_in(scope.view(owned.plugin))]
    except Exception:  # other people's code
        return []


def _is_offered(owned: RegisteredTool, scope: TurnContext) -> bool:
    """Whether agent and model may have a tool and it is of use in this turn; one whose plugin cannot say is not offered."""
    tool, model = owned.tool, scope.model
    if not scope.agent.may_use(tool.name) or (model is not None and tool.offered is not None and not tool.offered(model)):
        return False
    try:
        return tool.offered_in is None or bool(tool.offered_in(scope.view(owned.plugin)))
    except Exception:  # other people's code
        return False


MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
MAX_COMMAND_BYTES = 128 * 1024


def parse(text: str) -> dict[str, Any]:
    """Return the arguments in `text`; a missing text means none.

    :raises ToolError: it is not one JSON object without duplicate keys, too large, or nested too deep.
    """
    if len(text) > MAX_ARGUMENT_BYTES:
        raise ToolError(f"the arguments are larger than {MAX_ARGUMENT_BYTES // 2**20} MiB", code="args_too_large")
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=keys_once, parse_constant=_no_constant)
        if text.count("{") + text.count("[") > MAX_LEVELS:
            freeze(value)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not valid JSON: {error}", code="invalid_args") from error
    if not isinstance(value, dict):
        raise ToolError("the arguments must be a JSON object", code="invalid_args")
    return value


def validate_arguments(tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return `args` as the tool's schema reads them.

    :raises ToolError: an argument is missing, unknown or of the wrong type; the message lists all of them.
    """
    try:
        values = tool.validate(thaw(args))
    except ValueError as error:
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            raise
        raise _misfit(tool, ((item["loc"], item["msg"]) for item in error.errors())) from error
    if tool.schema is not None and (faults := misfits(tool.schema, values)):
        raise _misfit(tool, faults)
    return values


def _misfit(tool: Tool, faults: Iterable[tuple[Iterable[str | int], str]]) -> ToolError:
    problems = "; ".join(f"{'.'.join(map(str, place)) or 'arguments'}: {message}" for place, message in faults)
    return ToolError(f"invalid arguments for {tool.name}: {problems}", code="invalid_args")


def canonical(args: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of `args`: sorted keys, no spaces, UTF-8.

    :raises ToolError: a string holds half of a surrogate pair, which no text file or command can carry.
    """
    try:
        return json.dumps(thaw(args), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError("the arguments hold text that is not valid Unicode", code="invalid_args") from error


def digest(encoded: bytes) -> str:
    """Return the hash that stands for judged arguments in questions, audit and records."""
    return hashlib.sha256(encoded).hexdigest()


def unacceptable(call: ToolCall) -> str | None:
    """Return why no tool would accept `call`, or ``None`` (cause ``invalid_input``)."""
    for target in call.targets:
        if "\0" in target.given + (target.folder.given if target.folder else ""):
            return "a NUL character in the input"
        if target.kind == "shell" and len(target.given.encode("utf-8", "surrogatepass")) > MAX_COMMAND_BYTES:
            return f"a command over {MAX_COMMAND_BYTES // 1024} KiB"
    return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


T = TypeVar("T")


def call_as_judged(scope: TurnContext, tool: str, args: Mapping[str, Any], call_id: str, step: int) -> tuple[ToolCall, bytes]:
    """Return the frozen call and the canonical JSON it was built from: validated, resolved, hashed.

    :raises ToolError: the arguments do not fit the tool.
    """
    owned = scope.plugin_set.tools[tool]
    encoded = _of_the_tool(owned, "could not check its arguments", lambda: canonical(validate_arguments(owned.tool, args)))
    resolve = scope.around.services["resolve"](scope, owned.plugin)
    touched = _of_the_tool(owned, "could not say what it touches", lambda: owned.tool.target_requests(json.loads(encoded)))
    targets = tuple([resolve(item) for item in touched])
    judged, hash = freeze(json.loads(encoded)), digest(encoded)
    call = ToolCall.model_construct(
        id=call_id,
        tool=tool,
        args=judged,
        step=step,
        domain=owned.tool.domain,
        targets=targets,
        hash=hash,
        effect=_effect(scope, owned, judged, targets) or hash,
        source=owned.tool.source,
        revision=owned.tool.revision,
    )
    return call, encoded


def _effect(scope: TurnContext, owned: RegisteredTool, args: Mapping[str, Any], targets: Sequence[Target]) -> str:
    """Return the hash of what the call does; none where its schema is not understood: it only compares calls."""
    try:
        return scope.around.effect_of(owned.tool, args, targets)
    except Exception:
        return ""


def _of_the_tool(owned: RegisteredTool, failed: str, work: Callable[[], T]) -> T:
    """Do `work` that runs code of the tool's own: validators, types, targets. What breaks there costs this call alone.

    :raises ToolError: it broke, or it says itself what is wrong with the arguments.
    """
    try:
        return work()
    except ToolError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{owned.tool.name} (plugin {owned.plugin}) {failed}: {type(error).__name__}: {text_of(error)}"
        raise ToolError(what, code="tool_failed", next_step=f"moryflow plugin info {owned.plugin}") from error


def call_row(scope: TurnContext, call: ToolCall, state: str, ruling: Ruling | None, args: str | None = None) -> CallRow:
    """Return the record of `call` in `state`; `args` are its arguments as the model wrote them, or as they were judged."""
    stamp = now()
    return CallRow(
        id=call.id,
        session=scope.session,
        turn=scope.turn,
        node=scope.node,
        step=call.step,
        tool=call.tool,
        args=canonical(call.args).decode() if args is None else args,
        hash=call.hash,
        state=state,
        decision=ruling.decision if ruling else None,
        cause=ruling.cause if ruling else None,
        ruling=ruling.model_dump(mode="json", exclude_defaults=True) if ruling else None,
        created=stamp,
        updated=stamp,
    )

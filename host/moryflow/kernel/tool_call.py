"""One call of a tool: the tools on offer, the call as its gates see it, its body under a deadline, its result.

The model's arguments are parsed, validated, resolved, hashed and recorded before anything runs. A body that overruns its
deadline is abandoned, and the turn goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from moryflow_sdk import MAX_LEVELS, Denied, Ruling, Target, Tool, ToolCall, ToolError, ToolResult, freeze, thaw
from moryflow_sdk.support.texts import keys_once
from moryflow_sdk.support.tool_schemas import misfits

from moryflow.base.events import now
from moryflow.base.foreign_errors import describe, place_of, plugin_error, text_of
from moryflow.hooks.dispatcher import abandon, contained
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import CallTimeout, PluginUnresponsive, limit
from moryflow.store import CallRow

from .turn_context import TurnContext

T = TypeVar("T")
MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
MAX_COMMAND_BYTES = 128 * 1024
# Seconds that a plugin's tool may run if it sets no timeout of its own.
TIMEOUT = 60.0
# The same for a built-in tool: a search through a large folder may take a while.
BUILTIN_TIMEOUT = 600.0
# Seconds that a plugin's asynchronous code has to clean up after it was cancelled.
GRACE = 1.0
CAP_FACTOR = 4
DEFAULT_LIMIT_BYTES = 51200
# The lowest cap: however small the truncation limit, the hint where to find the whole output stays readable.
LEAST_CAP_BYTES = 8192


def offered_tools(scope: TurnContext) -> Mapping[str, RegisteredTool]:
    """Return the tools that this turn's agent and model may use, in the order in which the model reads them.

    They stay the same for the whole turn; tools that the model finds during the turn are appended.
    """
    if scope.offered is None:
        used = {name: owned for name, owned in sorted(scope.plugin_set.tools.items()) if _is_offered(owned, scope)}
        direct = scope.purpose == "direct"  # no model has to find what a user names
        scope.offered = {name: owned for name, owned in used.items() if direct or owned.tool.found_in is None}
        scope.findable = {name: owned for name, owned in used.items() if name not in scope.offered}
    return {**scope.offered, **_found_tools(scope)} if scope.findable else scope.offered


def _found_tools(scope: TurnContext) -> dict[str, RegisteredTool]:
    hidden = scope.findable
    asked = {owned.plugin: owned for owned in hidden.values()}
    names = [(name, plugin) for plugin, owned in asked.items() for name in _names_found(owned, scope)]
    return {name: hidden[name] for name, plugin in names if name in hidden and hidden[name].plugin == plugin}


def _names_found(owned: RegisteredTool, scope: TurnContext) -> list[str]:
    assert owned.tool.found_in is not None
    try:
        return [str(name) for name in owned.tool.found_in(scope.view(owned.plugin))]
    except Exception:  # the plugin's code may raise anything
        return []


def _is_offered(owned: RegisteredTool, scope: TurnContext) -> bool:
    """Whether the agent and the model may use a tool and its plugin offers it in this turn; not if the plugin fails."""
    tool, model = owned.tool, scope.model
    if not scope.agent.may_use(tool.name, tool.domain) or (
        model is not None and tool.offered is not None and not tool.offered(model)
    ):
        return False
    if model is not None and model.only_tools and tool.name not in model.only_tools:
        return False
    try:
        return tool.offered_in is None or bool(tool.offered_in(scope.view(owned.plugin)))
    except Exception:  # the plugin's code may raise anything
        return False


def parse(text: str) -> dict[str, Any]:
    """Return the arguments in `text`; an empty text means no arguments.

    :raises ToolError: `text` is not one JSON object without duplicate keys, or it is too large or nested too deep.
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
        raise _argument_error(tool, ((item["loc"], item["msg"]) for item in error.errors())) from error
    if tool.schema is not None and (faults := misfits(tool.schema, values)):
        raise _argument_error(tool, faults)
    return values


def _argument_error(tool: Tool, faults: Iterable[tuple[Iterable[str | int], str]]) -> ToolError:
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
    """Return the hash that identifies judged arguments in questions, the audit log and records."""
    return hashlib.sha256(encoded).hexdigest()


def input_problem(call: ToolCall) -> str | None:
    """Return why no tool may get `call` (cause ``invalid_input``), or ``None`` if there is no such reason."""
    for target in call.targets:
        if "\0" in target.given + (target.folder.given if target.folder else ""):
            return "a NUL character in the input"
        if target.kind == "shell" and len(target.given.encode("utf-8", "surrogatepass")) > MAX_COMMAND_BYTES:
            return f"a command over {MAX_COMMAND_BYTES // 1024} KiB"
    return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def call_as_judged(scope: TurnContext, tool: str, args: Mapping[str, Any], call_id: str, step: int) -> tuple[ToolCall, bytes]:
    """Validate `args`, resolve what they touch and hash them; return the frozen call and its canonical JSON.

    :raises ToolError: the arguments do not fit the tool.
    """
    owned = scope.plugin_set.tools[tool]
    encoded = _run_tool_code(owned, "could not check its arguments", lambda: canonical(validate_arguments(owned.tool, args)))
    resolve = scope.around.services["resolve"](scope, owned.plugin)
    touched = _run_tool_code(owned, "could not determine its targets", lambda: owned.tool.target_requests(json.loads(encoded)))
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
        effect=_effect_hash(scope, owned, judged, targets) or hash,
        source=owned.tool.source,
        revision=owned.tool.revision,
    )
    return call, encoded


def _effect_hash(scope: TurnContext, owned: RegisteredTool, args: Mapping[str, Any], targets: Sequence[Target]) -> str:
    try:
        return scope.around.effect_of(owned.tool, args, targets)
    except Exception:
        return ""


def _run_tool_code(owned: RegisteredTool, failed: str, work: Callable[[], T]) -> T:
    """Do `work`, which runs the tool's own code: validators, types, targets. A failure there ends this call alone."""
    try:
        return work()
    except ToolError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{owned.tool.name} (plugin {owned.plugin}) {failed}: {type(error).__name__}: {text_of(error)}"
        raise ToolError(what, code="tool_failed", next_step=f"moryflow plugin info {owned.plugin}") from error


def call_row(scope: TurnContext, call: ToolCall, state: str, ruling: Ruling | None, args: str | None = None) -> CallRow:
    """Return the row of `call` in `state`. `args` is its arguments as JSON text, as the model wrote them or as judged."""
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


class Deadline:
    """The time that a body may still run. The clock stops while the user is being asked."""

    def __init__(self, owned: RegisteredTool) -> None:
        self.owned = owned
        self.seconds = owned.tool.timeout or (TIMEOUT if owned.foreign else BUILTIN_TIMEOUT)
        self._timer: asyncio.Timeout | None = None
        self._asking = 0
        self._left = self.seconds

    @contextmanager
    def paused_clock(self) -> Iterator[None]:
        """Stop the clock for the duration of the block."""
        timer, loop = self._timer, asyncio.get_running_loop()
        if timer is None or timer.expired():
            yield
            return
        if not self._asking:
            self._left = max((timer.when() or loop.time()) - loop.time(), 0)
            timer.reschedule(None)
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking and not timer.expired():
                timer.reschedule(loop.time() + self._left)

    async def hold(self, work: Awaitable[Any]) -> Any:
        """Await `work` within the deadline and return its result.

        :raises ToolError: `work` did not end in time.
        """
        self._timer = asyncio.timeout(limit(self.seconds))
        try:
            async with self._timer:
                return await (_run_in_task(work) if self.owned.foreign else contained(work))
        except TimeoutError:
            if self._timer.expired():
                raise self.timeout_error() from None
            raise

    def timeout_error(self) -> ToolError:
        """Return the error of a body that overran, with the place where its timeout can be changed."""
        tool = self.owned.tool
        text = f"{tool.name} took longer than {self.seconds:g} s and was abandoned"
        step = tool.more_time or (_more_time(tool) if self.owned.foreign else "")
        return ToolError(text, code="timeout", next_step=step)


def _more_time(tool: Tool) -> str:
    """Return a hint where to set a longer timeout for the tool."""
    file, line = place_of(tool.function)
    if tool.source and file != tool.source:  # the tool runs in another process
        file, line = tool.source, 0
    place = f" in {Path(file).name}{f':{line}' if line else ''}" if file else ""
    return f"to allow more time, set @tool(timeout=SECONDS){place}"


async def _run_in_task(work: Awaitable[Any]) -> Any:
    """Await `work` in a task of its own, so that code that ignores its cancellation cannot hold up the turn."""
    task = asyncio.ensure_future(contained(work))
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE)
        abandon(task)
        raise
    try:
        return task.result()
    except GeneratorExit as error:  # raised by the body; further up it would look as if this turn were being closed
        raise plugin_error(error) from error


async def run_body(deadline: Deadline, keywords: Mapping[str, Any]) -> Any:
    """Run an asynchronous body on the event loop, a plain body on a thread of its plugin.

    :raises ToolError: the body did not end in time, or its plugin is not called any more.
    """
    owned = deadline.owned
    function: Callable[..., Any] = owned.tool.function
    if inspect.iscoroutinefunction(function):
        return await deadline.hold(function(**keywords))
    try:
        outcome = await owned.life.run(lambda: function(**keywords), (), deadline.seconds, body=True)
    except CallTimeout:
        raise deadline.timeout_error() from None
    except PluginUnresponsive:
        text, step = f"plugin {owned.plugin} was disabled for this process: {owned.life.broken}", "start moryflow again"
        raise ToolError(text, code="plugin_broken", next_step=step) from None
    return await deadline.hold(outcome) if inspect.isawaitable(outcome) else outcome


def as_result(owned: RegisteredTool, outcome: Any, collected: Mapping[str, Any]) -> ToolResult:
    """Turn a body's return value into a result: text as it is, anything else as JSON.

    A result made by a plugin is built anew and checked, like a hook's return value: otherwise a result that cannot be
    read again would be stored.

    :param collected: what the body added through ``ctx.metadata``.
    :raises Exception: whatever a plugin's object raises when it is read.
    """
    if not owned.foreign and isinstance(outcome, ToolResult) and not collected:
        return outcome
    try:
        result = _as_result(outcome)
        if collected:
            result = result.replace(metadata={**result.metadata, **collected})
        if result.metadata:
            json.dumps(result.model_dump(mode="json", include={"metadata"}))
        return result
    except GeneratorExit as error:
        raise plugin_error(error) from error


def _as_result(outcome: Any) -> ToolResult:
    kind = type(outcome)  # an object can lie to isinstance about its class
    if issubclass(kind, ToolResult):
        return ToolResult(**{name: getattr(outcome, name) for name in ToolResult.model_fields})
    if issubclass(kind, str):
        return ToolResult(output=outcome)
    if outcome is None:
        return ToolResult(output="done")
    return ToolResult(output=json.dumps(outcome, ensure_ascii=False, default=str), format="json")


def tool_payload(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    fields = result.model_dump(mode="json", exclude_defaults=True, exclude={"spool"})
    return {"call_id": call.id, "tool": call.tool, "status": result.status, "output": result.output, **fields}


def cap_output(result: ToolResult, scope: TurnContext) -> ToolResult:
    """Return `result`, its output cut at four times the truncation limit, whatever plugins did."""
    limit = scope.around.config.get("agents.runtime.truncation.maxBytes", DEFAULT_LIMIT_BYTES)
    cap = max(CAP_FACTOR * (limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT_BYTES), LEAST_CAP_BYTES)
    data = result.output.encode("utf-8", "replace")
    if len(data) <= cap:
        text = data.decode()
        return result if text == result.output else result.replace(output=text)
    kept = data[:cap].decode("utf-8", "ignore")
    return result.replace(output=f"{kept}\n[cut by the host: {len(data)} bytes]", truncated=True)


def failure(error: ToolError) -> ToolResult:
    return ToolResult(status="error", code=error.code, output=str(error))


def result_of_error(owned: RegisteredTool, error: Exception) -> ToolResult:
    """Return the result of a body that raised: the error, and the last line of the tool's own file in the traceback.

    Reading the error's text and code runs the plugin's code, which may raise too.
    """
    try:
        if isinstance(error, ToolError):
            return failure(error)
        if isinstance(error, Denied):
            return ToolResult(status="denied", code="denied", output=str(error))
    except BaseException as another:
        error = plugin_error(another)
    tool = owned.tool
    text, file, line = describe(error, tool.source or place_of(tool.function)[0])
    place = f" ({Path(file).name}:{line})" if line else ""
    output = f"{tool.name} (plugin {owned.plugin}) failed: {text}{place}"
    return ToolResult(status="error", code="tool_failed", output=output)


def refusal(ruling: Ruling) -> ToolResult:
    step = f" Next: {ruling.next_step}" if ruling.next_step else ""
    return ToolResult(status="denied", code=ruling.cause, output=f"denied: {ruling.reason}.{step}")

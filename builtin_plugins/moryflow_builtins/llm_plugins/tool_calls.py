"""Tools, toolboxes and fragment loaders of packages as tools of ours: each call passes every gate.

They declare no domain, so a rule for ``tool:NAME`` or the user's answer decides. Their names begin with ``llm__``, so that none
takes the place of another tool.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from moryflow_sdk import Diagnostic, Image, Tool, ToolContext, ToolResult
from moryflow_sdk.support.threads import on_daemon_thread

from .packages import LlmPackage

PREFIX = "llm__"
SETTING = "agents.runtime.llmPlugins.toolboxes"
# Seconds that a call may take, as for every other tool of a third party.
TIMEOUT = 60.0
# The most toolboxes that are kept, one for each session that used it.
MAX_BOXES = 32
_CONTEXT = "moryflow_context"
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
Run = Callable[[ToolContext, Callable[[], Any]], "asyncio.Future[Any]"]


def tools_of(package: LlmPackage, arguments: Mapping[str, Mapping[str, Any]]) -> Iterator[Tool | Diagnostic]:
    """Yield the tools of a package; a toolbox has one for each of its methods.

    :param arguments: of toolboxes, by name.
    """
    import llm

    for item, name in package.tools:
        if not isinstance(item, type):
            tool = item if isinstance(item, llm.Tool) else llm.Tool.function(item, name=name)
            yield _tool(package, name, tool, tool.implementation)
            continue
        given = dict(arguments.get(name, {}))
        needed = [each.name for each in inspect.signature(item).parameters.values() if _is_required(each)]
        if missing := [each for each in needed if each not in given]:
            example = json.dumps(dict.fromkeys(needed, "…"), ensure_ascii=False)
            text = f"its toolbox {name} waits for its arguments: {', '.join(missing)}"
            step = f"moryflow config set {SETTING}.{name} '{example}'"
            yield Diagnostic(file=package.label, code="llm_toolbox", message=text, next_step=step)
            continue
        toolbox: Any = item
        boxes = _Boxes(toolbox, given)
        for tool in toolbox.method_tools():
            method = tool.name.removeprefix(f"{item.__name__}_")
            yield _tool(package, f"{name}_{method}", tool, tool.implementation, boxes, method)


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _tool(package: LlmPackage, name: str, tool: Any, function: Any, boxes: _Boxes | None = None, method: str = "") -> Tool:
    takes_call = "llm_tool_call" in inspect.signature(function).parameters

    async def run(**args: Any) -> ToolResult:
        import llm

        context: ToolContext = args.pop(_CONTEXT)
        if takes_call:
            args["llm_tool_call"] = llm.ToolCall(name=tool.name, arguments=dict(args), tool_call_id=context.call.id)
        if inspect.iscoroutinefunction(function) and boxes is None:
            return _result(await function(**args))
        if boxes is None:
            return _result(await asyncio.wrap_future(on_daemon_thread(lambda: function(**args), f"moryflow-{name}")))
        return _result(await boxes.call(context.session, method, args))

    return Tool(
        name=PREFIX + _NO_NAME.sub("_", name)[:58],
        description=inspect.cleandoc(tool.description or "") or f"The tool {name} of {package.label}.",
        function=run,
        timeout=TIMEOUT,
        more_time="ask for less in one call",
        context_parameter=_CONTEXT,
        schema=tool.input_schema,
        source=package.label,
        revision=package.label,
    )


class _Boxes:
    """The instances of one toolbox: one for each session, with a thread, because many hold what only their own may use."""

    def __init__(self, kind: Any, arguments: Mapping[str, Any]) -> None:
        self._make = partial(kind, **arguments)
        self._open: OrderedDict[str, _Box] = OrderedDict()
        weakref.finalize(self, _close_all, self._open)  # the generation that offered them has ended

    async def call(self, session: str, method: str, args: Mapping[str, Any]) -> Any:
        box = self._open.pop(session, None) or _Box(self._make)
        self._open[session] = box
        if len(self._open) > MAX_BOXES:
            self._open.popitem(last=False)[1].close()
        try:
            found = await asyncio.wrap_future(box.call(method, args))
            return await found if inspect.isawaitable(found) else found
        except asyncio.CancelledError:  # it may hang, so the next call gets a new one
            if self._open.get(session) is box:
                del self._open[session]
            box.close()
            raise


def _close_all(boxes: Mapping[str, _Box]) -> None:
    for box in boxes.values():
        box.close()


class _Box:
    """One toolbox on its own thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], str, Mapping[str, Any]] | None] = SimpleQueue()
        threading.Thread(target=self._serve, args=(make,), name="moryflow-llm-toolbox", daemon=True).start()

    def call(self, method: str, args: Mapping[str, Any]) -> Future[Any]:
        done: Future[Any] = Future()
        self._jobs.put((done, method, args))
        return done

    def close(self) -> None:
        self._jobs.put(None)

    def _serve(self, make: Callable[[], Any]) -> None:
        toolbox: Any = None
        while (job := self._jobs.get()) is not None:
            done, method, args = job
            if not done.set_running_or_notify_cancel():
                continue
            try:
                if toolbox is None:
                    toolbox = make()
                    toolbox.prepare()
                done.set_result(getattr(toolbox, method)(**args))
            except Exception as error:  # the call gets it
                done.set_exception(error)


# ---------------------------------------------------------------- fragments


def fragment_tools(package: LlmPackage) -> Iterator[Tool]:
    """Yield a tool for each fragment loader; ``@prefix:argument`` in a prompt calls it before the model is asked."""
    for prefix, loader in package.fragments.items():
        yield _fragment_tool(package, prefix, loader)


def _fragment_tool(package: LlmPackage, prefix: str, loader: Callable[[str], Any]) -> Tool:
    found = re.compile(rf"(?<!\S)@{re.escape(prefix)}:(?:\"([^\"]+)\"|(\S+))")

    def mentions(typed: str) -> list[dict[str, str]]:
        return [{"argument": match[1] or match[2]} for match in found.finditer(typed)]

    async def run(**args: Any) -> ToolResult:
        context: ToolContext = args[_CONTEXT]
        argument = _in_vault(args["argument"], context.vault)
        loaded = await asyncio.wrap_future(on_daemon_thread(lambda: loader(argument), f"moryflow-fragment-{prefix}"))
        return _fragments(loaded if isinstance(loaded, list | tuple) else [loaded])

    about = inspect.cleandoc(loader.__doc__ or "")
    return Tool(
        name=f"{PREFIX}fragment_{_NO_NAME.sub('_', prefix)}"[:63],
        description=f"Load what the user names as @{prefix}:ARGUMENT. {about}".strip(),
        function=run,
        timeout=TIMEOUT,
        mentions=mentions,
        context_parameter=_CONTEXT,
        schema={
            "type": "object",
            "properties": {"argument": {"type": "string", "description": f"what stands after @{prefix}:"}},
            "required": ["argument"],
            "additionalProperties": False,
        },
        source=package.label,
        revision=package.label,
    )


def _in_vault(argument: str, vault: Path) -> str:
    """Return an argument that names something in the vault as an absolute path: loaders take others from where they run."""
    try:
        return str(vault / argument) if (vault / argument).exists() else argument
    except (OSError, ValueError):
        return argument


def _fragments(loaded: Sequence[Any]) -> ToolResult:
    import llm

    texts = [f"{each.source}\n{each}" if isinstance(each, llm.Fragment) and each.source else str(each)
             for each in loaded if not isinstance(each, llm.Attachment)]  # fmt: skip
    return _with_attachments("\n\n".join(texts), [each for each in loaded if isinstance(each, llm.Attachment)])


# ---------------------------------------------------------------- results


def _result(outcome: Any) -> ToolResult:
    import llm

    if isinstance(outcome, llm.ToolOutput):
        return _with_attachments(_text(outcome.output), outcome.attachments)
    return ToolResult(output=_text(outcome))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "done" if value is None else json.dumps(value, ensure_ascii=False, default=repr)


def _with_attachments(text: str, attachments: Sequence[Any]) -> ToolResult:
    """Return a result with the images among `attachments`; the model learns of others only that they were there."""
    images: list[Image] = []
    for each in attachments:
        kind = str(each.resolve_type())
        if kind.startswith("image/"):
            images.append(Image(media_type=kind, data=base64.b64encode(each.content_bytes()).decode("ascii")))
        else:
            text += f"\n[an attachment of type {kind} is left out]"
    return ToolResult(output=text.strip(), images=tuple(images))

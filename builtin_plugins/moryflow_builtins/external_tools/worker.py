"""A script that runs in the environment of a file with dependencies: one request on standard input, one answer on output.

Each is a line of JSON. The answer to ``{"do": "list"}`` are the file's tools; the answer to ``{"do": "call", "tool", "args",
"context"}`` is ``{"result"}`` or ``{"error": {"code", "message"}}``, with ``{"progress"}`` lines before. The environment has
only the file's dependencies; the SDK and its own dependencies are found on paths that are appended to ``sys.path``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Answer the request. Output that the file prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path += json.loads(sys.argv[1])
    request = json.loads(sys.stdin.buffer.readline())
    sys.breakpointhook = lambda *_, **__: None  # no person is at standard input

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, default=str) + "\n")
        answers.flush()

    try:
        answer = _answer(request, say)
    except BaseException as error:  # the boundary around the user's file: anything it raises is the answer
        answer = {"error": _error(error, request["file"])}
    say(answer)


def _answer(request: dict[str, Any], say: Any) -> dict[str, Any]:
    from moryflow_builtins.external_tools.exports import Wrong, exported_tools

    context = Context(request.get("context", {}), say)
    file = request["file"]
    module = ModuleType(Path(file).stem)
    module.__file__ = file
    sys.modules[module.__name__] = module
    exec(compile(request["source"], file, "exec", dont_inherit=True), module.__dict__)
    found = exported_tools(module, context)
    if request["do"] == "list":
        wrong = [{"message": item.message, "line": item.line} for item in found if isinstance(item, Wrong)]
        return {"tools": [_describe(item) for item in found if not isinstance(item, Wrong)], "wrong": wrong}
    tool = next(item for item in found if not isinstance(item, Wrong) and item.name == request["tool"])
    outcome = _run(tool, request["args"], context)
    return {"result": _result(outcome, context.collected)}


def _describe(tool: Any) -> dict[str, Any]:
    """Describe a tool. A tool with `targets` gets the domain ``tool``: calling `targets` before each call needs a process."""
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "domain": "tool" if tool.targets else tool.domain,
        "parallel_safe": tool.parallel_safe,
        "timeout": tool.timeout,
        "remarks": tool.remarks,
    }


def _run(tool: Any, args: dict[str, Any], context: Context) -> Any:
    canonical = json.dumps(tool.validate(args)).encode()
    outcome = tool.function(**tool.bind(canonical, context))
    return asyncio.run(_wait_for(outcome)) if inspect.isawaitable(outcome) else outcome


async def _wait_for(outcome: Any) -> Any:
    return await outcome


def _result(outcome: Any, collected: dict[str, Any]) -> dict[str, Any]:
    from moryflow_sdk import ToolResult

    if outcome is None or isinstance(outcome, str):
        outcome = ToolResult(output="done" if outcome is None else outcome)
    elif not isinstance(outcome, ToolResult):
        outcome = ToolResult(output=json.dumps(outcome, ensure_ascii=False, default=str), format="json")
    return {**outcome.model_dump(mode="json"), "metadata": {**outcome.model_dump()["metadata"], **collected}}


def _error(error: BaseException, file: str) -> dict[str, str]:
    """Return the error that was raised, with the innermost line of the file in its traceback."""
    from moryflow_sdk import ToolError
    from pydantic import ValidationError

    if isinstance(error, ToolError):
        return {"code": error.code, "message": str(error)}
    if isinstance(error, ValidationError):
        faults = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        return {"code": "invalid_args", "message": faults}
    line, trace = error.lineno if isinstance(error, SyntaxError) else 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    said = f"it called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    return {"code": "tool_failed", "message": f"{said} (line {line})" if line else said}


class Context:
    """The context of a tool in this process: folders, session, progress and metadata, but no services of the host."""

    def __init__(self, given: dict[str, Any], say: Any) -> None:
        self.vault = Path(given.get("vault", "."))
        self.home = Path(given.get("home", "."))
        self.data_dir = Path(given.get("data_dir", "."))
        self.session = given.get("session", "")
        self.mode = given.get("mode", "agent")
        self.cancelled = False
        self.collected: dict[str, Any] = {}
        self._say = say

    def progress(self, text: str) -> None:
        self._say({"progress": str(text)})

    def metadata(self, **values: Any) -> None:
        self.collected.update(values)


if __name__ == "__main__":
    main()

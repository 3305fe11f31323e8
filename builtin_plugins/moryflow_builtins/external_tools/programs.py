"""Tools in any language: programs in ``~/.moryflow/tools``, described by a block of comments or a file beside them.

A call writes one JSON object to the program's standard input, sets a variable for each argument, and reads the answer from
its standard output. Program and description are read once; each call runs a copy of exactly those bytes, in a process group
that ends with the call.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import re
import signal
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from moryflow_sdk import DOMAINS, PluginContext, PluginError, Tool, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.own_files import MANIFESTS, PROGRAM_HEAD
from moryflow_sdk.support.processes import end_marked, marked_environment, started
from moryflow_sdk.support.secrets import names_secret
from moryflow_sdk.support.texts import keys_once

# How many bytes a program may print.
OUTPUT_LIMIT = 64 * 1024 * 1024
# The largest metadata of a result, in characters of JSON; it is stored with the session and sent to its clients.
MAX_METADATA = 256 * 1024
_LONGEST_TITLE = 200
# Bytes of an argument that is passed as a variable; Linux allows 128 KiB.
MAX_VARIABLE = 64 * 1024
# The keyword argument with the context of a call; no argument of a tool has this name.
CONTEXT = "moryflow_context"
# How long to wait for the end of standard output after the program has ended: a child process may keep it open.
_GRACE_SECONDS = 0.5
# How often a start is tried: a process that another thread just forked may still have the copy open for writing.
_STARTS = 20
_LAST_WORDS = 2000
_OPENING = re.compile(r"(?m)^(?P<prefix>\S{0,4}[ \t]?)/// moryflow[ \t]*$")
_LINE = re.compile(r"at line (\d+)")


@dataclass(frozen=True)
class Description:
    """The description of a program: its text, the file that contains it, and the number of lines before it."""

    file: Path
    text: str
    before: int = 0

    def wrong(self, what: str, line: int = 1) -> PluginError:
        """Return the error for something in line `line` of the text."""
        return PluginError(what, where=f"{self.file}:{self.before + line}")

    def values(self) -> dict[str, Any]:
        """Return the fields, each checked.

        :raises PluginError: with file and line.
        """
        kind = "JSON" if self.text.lstrip().startswith("{") else "TOML"
        try:
            found = json.loads(self.text, object_pairs_hook=keys_once) if kind == "JSON" else tomllib.loads(self.text)
            found = json.loads(json.dumps(found, allow_nan=False))
        except (ValueError, TypeError, RecursionError) as error:
            at = _LINE.search(str(error))
            last = self.text.count("\n") + 1 if "end of document" in str(error) else 1
            line = getattr(error, "lineno", None) or (int(at[1]) if at else last)
            raise self.wrong(f"its description is not valid {kind}: {error}", line) from error
        for key, value in found.items():
            if key not in _FIELDS:
                raise self.wrong(f"{key!a:.40} is not one of {', '.join(_FIELDS)}", self._line_of(key))
            fits, what = _FIELDS[key]
            if not fits(value):
                raise self.wrong(f"{key} must be {what}, not {value!a:.60}", self._line_of(key))
        if "description" not in found:
            raise self.wrong("it has no description: the model reads it to know what the tool is for")
        for key in ("targets", "remarks"):
            for name in found.get(key, ()):
                parameter = found.get("parameters", {}).get("properties", {}).get(name)
                if not isinstance(parameter, dict) or parameter.get("type") != "string":
                    raise self.wrong(
                        f"{key} names {name!a:.40}, which is not a parameter of the type string", self._line_of(key)
                    )
        return found

    def _line_of(self, key: str) -> int:
        found = re.search(rf"(?m)^.*?\b{re.escape(key)}\b", self.text)
        return self.text.count("\n", 0, found.end()) + 1 if found else 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type", "object") == "object" and isinstance(value.get("properties", {}), dict)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_text, "a text"),
    "description": (_is_text, "a text that is not empty"),
    "parameters": (_is_schema, "the JSON Schema of an object"),
    "domain": (lambda value: value in DOMAINS, f"one of {', '.join(DOMAINS)}"),
    "targets": (_are_names, "a list of parameters"),
    "remarks": (_are_names, "a list of parameters"),
    "environment": (_are_names, "a list of names of variables"),
    "timeout": (_is_time, "a number of seconds above 0"),
    "parallel_safe": (lambda value: isinstance(value, bool), "true or false"),
}


def description_in(path: Path, content: bytes) -> Description | None:
    """Return the block ``/// moryflow`` in the first comments of a program, or ``None`` if there is none.

    :raises PluginError: the block has no end.
    """
    text = content[:PROGRAM_HEAD].decode("utf-8", "replace").replace("\r\n", "\n")
    opening = _OPENING.search(text)
    if opening is None:
        return None
    prefix = opening["prefix"]
    before = text.count("\n", 0, opening.end()) + 1
    lines = list[str]()
    for line in text[opening.end() + 1 :].split("\n"):
        if line.rstrip() == f"{prefix}///":
            return Description(path, "\n".join(lines), before)
        if not line.startswith(prefix.rstrip()):
            break
        lines.append(line.removeprefix(prefix) if line.startswith(prefix) else line[len(prefix.rstrip()) :])
    said = f"the block {prefix}/// moryflow has no end: a line {prefix}/// within {PROGRAM_HEAD // 1024} KiB"
    raise PluginError(said, where=f"{path}:{before}")


@dataclass(frozen=True)
class Program:
    """A program as it was read: this content is what the user agrees to, and what runs."""

    path: Path
    content: bytes = field(repr=False)
    name: str
    environment: frozenset[str] = frozenset()


def program_tool(ctx: PluginContext, path: Path) -> Tool:
    """Return the tool for a program.

    :raises PluginError: the program may not be run, or its description is not valid; with file and line.
    """
    content = ctx.code_loader.read(path)
    beside = [other for suffix in MANIFESTS if (other := path.with_suffix(suffix)).exists()]
    manifests = [Description(other, ctx.code_loader.read(other).decode("utf-8", "replace")) for other in beside]
    header = description_in(path, content)
    found = [*([header] if header else ()), *manifests]
    if not found:
        step = f'add a block "/// moryflow" to it, or write {path.with_suffix(".toml").name} beside it'
        raise PluginError("it does not say which tool it is", where=str(path), next_step=step)
    if len(found) > 1:
        names = " and ".join(str(item.file) for item in found)
        raise PluginError(f"it is described twice: in {names}", where=str(path), next_step="keep one of them")
    if len(found[0].text) > PROGRAM_HEAD:
        raise found[0].wrong(f"the description is larger than {PROGRAM_HEAD // 1024} KiB")
    values = found[0].values()
    if not path.stat().st_mode & 0o100:
        raise PluginError("it cannot be run: it is not executable", where=str(path), next_step=f"chmod u+x {path}")
    program = Program(path, content, values.get("name", path.stem), frozenset(values.get("environment", ())))
    return _tool(program, values, sha256(content + b"\0" + found[0].text.encode()).hexdigest())


def _tool(program: Program, values: Mapping[str, Any], revision: str) -> Tool:
    async def call(**arguments: Any) -> ToolResult:
        return await _run(program, arguments, arguments.pop(CONTEXT))

    named: Sequence[str] = values.get("targets", ())

    def targets(args: Mapping[str, Any]) -> list[str]:
        return [args[name] for name in named if name in args]

    return Tool(
        name=program.name,
        description=values["description"].strip(),
        function=call,
        domain=values.get("domain", "tool"),
        targets=targets if named else None,
        parallel_safe=values.get("parallel_safe", False),
        timeout=values.get("timeout"),
        more_time=f"to allow more time, set timeout = SECONDS in the description of {program.path.name}",
        remarks=tuple(values.get("remarks", ())),
        context_parameter=CONTEXT,
        schema={"type": "object", "properties": {}, **values.get("parameters", {})},
        source=str(program.path),
        revision=revision,
    )


class _Conversation(asyncio.SubprocessProtocol):
    """Collects the output of a program: its answer, lines of progress, and the end of standard error."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._line = 0
        self._open = {1, 2}
        self.size = 0
        self.answer, self.words = bytearray(), b""
        self.ended, self.exited, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.words = (self.words + data)[-_LAST_WORDS:]
        elif self.size <= OUTPUT_LIMIT:
            self._take(data)

    def _take(self, data: bytes) -> None:
        self.size += len(data)
        self.answer += data
        self.take_progress(max(self._line, self.answer.rfind(b"\n", len(self.answer) - len(data)) + 1))
        if self.size > OUTPUT_LIMIT:
            self.answer.clear()
            self.ended.set()

    def take_progress(self, end: int) -> None:
        """Show the lines of progress before `end`, and remove them from the answer."""
        lines = bytes(self.answer[self._line : end])
        if b'"progress"' in lines:
            lines = b"".join(line for line in lines.splitlines(keepends=True) if not self._is_progress(line))
            self.answer[self._line : end] = lines
        self._line += len(lines)

    def _is_progress(self, line: bytes) -> bool:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(message, dict) or message.keys() != {"progress"}:
            return False
        self._progress(str(message["progress"]))
        return True

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.ended.set()


async def _run(program: Program, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    targets = [{"text": target.text, "path": target.path} for target in context.call.targets]
    request = {"v": 1, "tool": program.name, "args": arguments, "call": context.call.id, "targets": targets}
    request |= {"vault": str(context.vault), "home": str(context.home), "data_dir": str(context.data_dir)}
    request |= {"session": context.session, "mode": context.mode, "file": str(program.path)}
    conversation = _Conversation(context.progress)
    with tempfile.TemporaryDirectory(prefix="program-", dir=context.data_dir, ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / program.path.name
        copy.write_bytes(program.content)
        copy.chmod(0o700)
        transport = await _start(program, copy, conversation, context, argument_variables(arguments, targets))
        try:
            stdin: Any = transport.get_pipe_transport(0)
            stdin.write(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")
            stdin.write_eof()
            await conversation.ended.wait()
            code = transport.get_returncode()
            end_group(transport.get_pid())
            with suppress(TimeoutError):
                await asyncio.wait_for(conversation.closed.wait(), _GRACE_SECONDS)
        finally:
            end_group(transport.get_pid())
            await conversation.exited.wait()
            transport.close()
            await end_marked_with(context.mark)
    if conversation.size > OUTPUT_LIMIT:
        raise ToolError(f"it printed more than {OUTPUT_LIMIT // 2**20} MiB", code="too_large")
    conversation.take_progress(len(conversation.answer))
    return _result(bytes(conversation.answer), conversation.words, code or 0)


def argument_variables(arguments: Mapping[str, Any], targets: Sequence[Mapping[str, str | None]]) -> dict[str, str]:
    """Return the arguments as variables, because a shell reads no JSON: texts as they are, other values as JSON.

    What no variable can hold, because of its name, a NUL or its length, is only on standard input.
    """
    values = {f"MORYFLOW_ARG_{name}": value for name, value in arguments.items() if re.fullmatch(r"[A-Za-z0-9_]+", name)}
    values |= {"MORYFLOW_TARGET": targets[0]["path"]} if targets and targets[0]["path"] else {}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {
        name: text for name, text in texts.items() if "\0" not in text and len(text.encode("utf-8", "replace")) < MAX_VARIABLE
    }


async def _start(
    program: Program, copy: Path, conversation: _Conversation, context: ToolContext, variables: Mapping[str, str]
) -> asyncio.SubprocessTransport:
    kept = {
        key: value
        for key, value in marked_environment(context.mark).items()
        if key in program.environment or not names_secret(key)
    } | {"PWD": str(context.vault), **variables}
    start = asyncio.get_running_loop().subprocess_exec
    for attempt in range(_STARTS):
        try:
            starting = start(lambda: conversation, str(copy), cwd=context.vault, env=kept, start_new_session=True)
            return (await started(starting))[0]
        except OSError as error:
            if error.errno == errno.ETXTBSY and attempt < _STARTS - 1:
                await asyncio.sleep(0.05)
                continue
            raise _start_error(program, error) from error
    raise AssertionError("the last attempt returns or raises")


def _start_error(program: Program, error: OSError) -> ToolError:
    first = program.content[:200].split(b"\n", 1)[0].decode("utf-8", "replace")
    step = f"install what {first} names" if first.startswith("#!") else "begin it with a line such as #!/bin/sh"
    return ToolError(f"it cannot be started: {error.strerror}", code="tool_failed", where=f"{program.path}:1", next_step=step)


def _result(printed: bytes, words: bytes, code: int) -> ToolResult:
    """Return the result of a program: from a JSON object with ``output`` or ``error``, else all that it printed."""
    text = printed.decode("utf-8", "replace")
    answer = _answer(text)
    if answer.get("error"):
        error = answer["error"] if isinstance(answer["error"], dict) else {"message": answer["error"]}
        raise ToolError(str(error.get("message", "it failed"))[:_LAST_WORDS], code=str(error.get("code", "tool_failed"))[:80])
    if code:
        said = words.decode("utf-8", "replace").strip() or text[-_LAST_WORDS:].strip()
        raise ToolError(f"it ended with {ending(code)}" + (f": {said}" if said else ""), code="tool_failed")
    if not answer:
        return ToolResult(output=text.removesuffix("\n"))
    output, details = answer.get("output"), answer.get("metadata")
    said = {"title": str(answer.get("title", "")), "metadata": details if isinstance(details, dict) else {}}
    if isinstance(output, str):
        return bounded(ToolResult(output=output, **said))
    return bounded(ToolResult(output=json.dumps(output, ensure_ascii=False), format="json", **said))


def bounded(result: ToolResult) -> ToolResult:
    """Return `result` with a title of one line; metadata that is too large to be stored is replaced by its size."""
    title = " ".join(result.title.split())[:_LONGEST_TITLE]
    size = len(json.dumps(result.model_dump(mode="json", include={"metadata"})))
    if size <= MAX_METADATA:
        return result if title == result.title else result.replace(title=title)
    left_out = f"{size} characters, more than {MAX_METADATA // 1024} KiB"
    return result.replace(title=title, metadata={"left_out": left_out})


def _answer(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not found.keys() & {"output", "error"} or not found.keys() <= _ANSWER:
        return {}
    return found


_ANSWER = {"v", "output", "error", "title", "metadata"}


def ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name if -code in set(signal.Signals) else -code}"


def end_group(process: int) -> None:
    """Kill a process and everything in its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


async def end_marked_with(mark: str) -> None:
    """End the processes of a call that are outside its process group."""
    await asyncio.to_thread(end_marked, (mark,))

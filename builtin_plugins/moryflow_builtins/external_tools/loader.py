"""Load the tools from the files in the folder: each file separately, with a time limit, and with a message for each mistake."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from moryflow_sdk import Diagnostic, PluginContext, PluginError, Tool, ToolError
from moryflow_sdk.support.own_files import own_files, own_programs
from moryflow_sdk.support.threads import on_daemon_thread

from .exports import Wrong, exported_tools, has_factory
from .programs import program_tool

# Seconds for the import of a file and for its factories.
LIMIT = 2.0
# Path and hash of files that took too long. They are not tried again: their threads still run.
_stuck: set[tuple[str, str]] = set()

# The exports of modules, kept because making schemas takes most of the time. An entry is dropped with its module.
_exports_by_module: WeakKeyDictionary[ModuleType, list[Tool | Wrong]] = WeakKeyDictionary()


async def load_all(ctx: PluginContext, folder: Path, *, only_allowed: bool) -> list[Tool | Diagnostic]:
    """Return the tools of the files in `folder`, and the problems.

    :param only_allowed: leave out files that the user has not allowed, and name those that changed since.
    """
    files, problems = own_files(folder, ".py", hidden=(".", "_"))
    paths = [*files, *own_programs(folder)]
    if only_allowed:
        consents = {path: ctx.code_loader.consent(path) for path in paths}
        problems = [item for item in problems if Path(item.file) == folder or ctx.code_loader.consent(Path(item.file))]
        problems += [_changed(path) for path, consent in consents.items() if consent == "changed"]
        paths = [path for path, consent in consents.items() if consent == "allowed"]
    found = await asyncio.gather(*(_load_file(ctx, path) for path in paths))
    taken: dict[str, Tool] = {}
    for item in (item for items in found for item in items):
        if isinstance(item, Diagnostic):
            problems.append(item)
        elif item.name in taken:
            text = f"the name {item.name!r} is taken by {taken[item.name].source}"
            problems.append(
                Diagnostic(file=item.source, code="tool_duplicate", message=text, next_step=_next_step(Path(item.source)))
            )
        else:
            taken[item.name] = item
    return [*taken.values(), *problems]


def _changed(path: Path) -> Diagnostic:
    step = f"read it, then moryflow tool allow {path.name}"
    return Diagnostic(file=str(path), code="consent", message="it has changed since you allowed it", next_step=step)


async def _load_file(ctx: PluginContext, path: Path) -> list[Tool | Diagnostic]:
    try:
        if not path.name.isprintable():
            file = os.fsencode(path).decode("utf-8", "backslashreplace")
            message, step = "its name holds characters that cannot be shown", f"rename it: ls -b {path.parent}"
            return [Diagnostic(file=file, code="tool_read", message=message, next_step=step)]
        if path.suffix != ".py":
            return [program_tool(ctx, path)]
        revision = sha256(ctx.code_loader.read(path)).hexdigest()[:16]
        items = await _load_in_host(ctx, path, revision)
    except PluginError as error:
        return [_diagnostic(path, error)]
    except ToolError as error:
        step = error.next_step or _next_step(path)
        return [Diagnostic(file=str(path), code=error.code, message=error.message, next_step=step)]
    except Exception as error:  # the exports of a file may raise anything when they are inspected; only that file fails
        text = f"what it exports cannot be read: {type(error).__name__}: {error}"
        return [Diagnostic(file=str(path), code="tool_export", message=text, next_step=_next_step(path))]
    return [item if isinstance(item, Tool) else _wrong(path, item) for item in items]


async def _load_in_host(ctx: PluginContext, path: Path, revision: str) -> list[Tool | Wrong]:
    """Import the file into the host, on a thread that is abandoned if it takes too long."""
    key = (str(path), revision)
    if key not in _stuck:
        try:
            running = on_daemon_thread(lambda: _run(ctx, path, revision), "moryflow-external-tool")
            return await asyncio.wait_for(asyncio.wrap_future(running), LIMIT)
        except TimeoutError:
            _stuck.add(key)
    raise ToolError(f"it took longer than {LIMIT:g} s to load", code="tool_timeout", next_step="change it, or move it away")


def _run(ctx: PluginContext, path: Path, revision: str) -> list[Tool | Wrong]:
    """Return the exports of the file; for an unchanged module without factories they are cached."""
    module = ctx.code_loader.load(path)
    if module not in _exports_by_module:
        found = exported_tools(module, ctx, source=str(path), revision=revision)
        if has_factory(module):
            return found
        _exports_by_module[module] = found
    return _exports_by_module[module]


def _wrong(path: Path, item: Wrong) -> Diagnostic:
    return Diagnostic(file=str(path), line=item.line, code="tool_export", message=item.message, next_step=_next_step(path))


def _diagnostic(path: Path, error: PluginError) -> Diagnostic:
    file, _, line = error.where.rpartition(":")
    at = int(line) if file and line.isdigit() else None
    place = file if at is not None else error.where or str(path)
    return Diagnostic(
        file=place, line=at, code="tool_import", message=error.message, next_step=error.next_step or _next_step(path)
    )


def _next_step(path: Path) -> str:
    return f"change {path.name}, then moryflow tool check"

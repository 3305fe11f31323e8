"""From the files in the folder to tools: each file alone, with a time limit, and each mistake named."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TypeVar
from weakref import WeakKeyDictionary

from moryflow_sdk import Diagnostic, PluginContext, PluginError, Tool, ToolError
from moryflow_sdk.support.own_files import own_files

from .environment import requirements
from .exports import Wrong, exported_tools, has_factory

T = TypeVar("T")
LIMIT = 2.0
"""Seconds in which a file must be imported and its factories must return."""
_stuck: set[tuple[str, str]] = set()
"""Path and content of files that took too long: their threads still run, and another would fare no better."""

_seen: WeakKeyDictionary[ModuleType, list[Tool | Wrong]] = WeakKeyDictionary()
"""What modules gave; making schemas of type hints takes most of the time. An entry goes with its module."""


async def load_all(ctx: PluginContext, folder: Path) -> list[Tool | Diagnostic]:
    """Return the tools of every file in `folder`, and what is wrong."""
    files, problems = own_files(folder, ".py", hidden=(".", "_"))
    found = await asyncio.gather(*(_one(ctx, path) for path in files))
    taken: dict[str, Tool] = {}
    for item in (item for items in found for item in items):
        if isinstance(item, Diagnostic):
            problems.append(item)
        elif item.name in taken:
            text = f"the name {item.name!r} is taken by {taken[item.name].source}"
            problems.append(
                Diagnostic(file=item.source, code="tool_duplicate", message=text, next_step=_mend(Path(item.source)))
            )
        else:
            taken[item.name] = item
    return [*taken.values(), *problems]


async def _one(ctx: PluginContext, path: Path) -> list[Tool | Diagnostic]:
    """Return what one file gives: tools, or why not."""
    try:
        source = ctx.code_loader.read(path)
        revision = sha256(source).hexdigest()[:16]
        needs = requirements(source)
        if needs.dependencies:
            from .isolated import tools_outside

            items = await tools_outside(path, source, needs, ctx.data_dir, revision)
        else:
            needs.check_python()
            items = await _inside(ctx, path, revision)
    except PluginError as error:
        return [_diagnostic(path, error)]
    except ToolError as error:
        step = error.next_step or _mend(path)
        return [Diagnostic(file=str(path), code=error.code, message=error.message, next_step=step)]
    except Exception as error:  # what a file exports may break in any way when it is looked at, and costs that file
        text = f"what it exports cannot be looked at: {type(error).__name__}: {error}"
        return [Diagnostic(file=str(path), code="tool_export", message=text, next_step=_mend(path))]
    return [item if isinstance(item, Tool) else _wrong(path, item) for item in items]


async def _inside(ctx: PluginContext, path: Path, revision: str) -> list[Tool | Wrong]:
    """Import the file into the host, on a thread that is given up when it takes too long."""
    key = (str(path), revision)
    if key not in _stuck:
        try:
            return await _within(LIMIT, lambda: _run(ctx, path, revision))
        except TimeoutError:
            _stuck.add(key)
    raise ToolError(f"it took longer than {LIMIT:g} s to load", code="tool_timeout", next_step="change it, or move it away")


def _run(ctx: PluginContext, path: Path, revision: str) -> list[Tool | Wrong]:
    """Return what the file exports; a module that is still the same, and has no factory, is not looked through again."""
    module = ctx.code_loader.load(path)
    if module not in _seen:
        found = exported_tools(module, ctx, source=str(path), revision=revision)
        if has_factory(module):
            return found
        _seen[module] = found
    return _seen[module]


async def _within(seconds: float, work: Callable[[], T]) -> T:
    """Return what `work` returns, on a daemon thread.

    :raises TimeoutError: it has not ended in time; the thread goes on, and nobody waits for it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())

    def run() -> None:
        try:
            value = work()
        except Exception as error:  # whatever a person's file raises is passed to its loader
            failure = error
            tell(lambda: done.set_exception(failure))
        except BaseException as error:  # a future takes none that would end its loop
            failure = RuntimeError(f"it raised {type(error).__name__}")
            tell(lambda: done.set_exception(failure))
        else:
            tell(lambda: done.set_result(value))

    threading.Thread(target=run, name="moryflow-external-tool", daemon=True).start()
    return await asyncio.wait_for(done, seconds)


def _wrong(path: Path, item: Wrong) -> Diagnostic:
    return Diagnostic(file=str(path), line=item.line, code="tool_export", message=item.message, next_step=_mend(path))


def _diagnostic(path: Path, error: PluginError) -> Diagnostic:
    file, _, line = error.where.rpartition(":")
    at = int(line) if file and line.isdigit() else None
    place = file if at is not None else error.where or str(path)
    return Diagnostic(file=place, line=at, code="tool_import", message=error.message, next_step=error.next_step or _mend(path))


def _mend(path: Path) -> str:
    return f"change {path.name}, then moryflow tool check"

"""Load records of failures, and the id of a set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from moryflow.hooks.call import describe, root_of
from moryflow.hooks.plugin_set import Implementation, LoadFailure, LoadRecord, Plugin

from .discovery import NotWanted
from .importer import Imported, pressed
from .tool_check import at, next_step, place_of

T = TypeVar("T")


def failure_line(record: LoadRecord) -> str:
    """Return what is wrong with a plugin, with the place and what helps."""
    place = f"{record.file}:{record.line}" if record.line else record.file
    error = record.error.removeprefix(f"{place}: ")  # what a plugin contributes names its own
    return f"{place}: {error}{f'; {record.hint}' if record.hint else ''}"


def failed_record(record: LoadRecord, failure: LoadFailure) -> LoadRecord:
    return problem_record(record, failure)._replace(status="failed")


def problem_record(record: LoadRecord, failure: LoadFailure) -> LoadRecord:
    place = {"file": failure.file or record.file, "line": failure.line}
    return record._replace(stage=failure.stage, error=failure.message, hint=failure.hint, **place)


def with_place(imported: Imported, work: Callable[[], T]) -> T:
    """Do `work`, which looks at a plugin's objects; a failure that does not know its file is given the plugin's.

    :raises LoadFailure: something is wrong, or one of the objects raised what they may: anything.
    """
    try:
        return work()
    except LoadFailure as failure:
        raise replace_place(failure, imported.file) from failure.__cause__
    except NotWanted:
        raise
    except BaseException as error:
        text, file, line = describe_raised(error, imported.file)
        raise LoadFailure("register", text, file=file, line=line) from error


def describe_raised(error: BaseException, file: str) -> tuple[str, str, int]:
    """Return what a plugin raised when it was looked at, and where in its code; Ctrl-C of a person goes on."""
    if isinstance(error, KeyboardInterrupt) and pressed():
        raise error
    text, found, line = describe(error, root_of(file))
    return (text, found, line) if found else (text, file, 0)


def replace_place(failure: LoadFailure, file: str) -> LoadFailure:
    """Return `failure` with `file`, if it has no file of its own."""
    place = (failure.file, failure.line) if failure.file else (file, 0)
    return LoadFailure(failure.stage, failure.message, file=place[0], line=place[1], hint=failure.hint)


def identity(plugins: dict[str, Plugin], hooks: dict[str, tuple[Implementation, ...]]) -> str:
    """Return a hash of what runs and in which order."""
    total = hashlib.sha256()
    for plugin in sorted(plugins.values(), key=lambda item: item.name):
        total.update(f"{plugin.name}\0{plugin.version}\0{plugin.tier}\0{plugin.hash}\n".encode())
    for hook, implementations in sorted(hooks.items()):
        total.update(f"{hook}\0{' '.join(item.plugin for item in implementations)}\n".encode())
    return total.hexdigest()[:16]


def note_on(implementation: Implementation, item: Any, problem: str) -> tuple[str, str, int]:
    """Say of a contributed item what is wrong, where, and what to type next; with file and line."""
    file, line = place_of(item) or implementation.place
    step = next_step(item, implementation)
    return f"{at(file, line)}{problem}{f'; next: {step}' if step else ''}", file, line


def describe_cleanup(error: Exception, plugin: object, seconds: float) -> str:
    """Return what the clean-up of a plugin raised, and where; one that took too long has nothing to say."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"it took longer than {seconds:g} s"
    text, file, line = describe(error, root_of(str(getattr(plugin, "__file__", "") or "")))
    return f"{text} ({file}:{line})" if file else text

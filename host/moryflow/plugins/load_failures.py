"""Failures of loading: the record of a plugin that cannot be used, and the line of its own code where the import failed."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from pathlib import Path

from moryflow_sdk import PluginError

from moryflow.base.foreign_errors import describe, root_of
from moryflow.hooks.plugin_set import LoadFailure, LoadRecord

from .discovery import Candidate
from .sources import PREFIX

_HERE = f"{Path(__file__).parent}{os.sep}"


def failed_record(record: LoadRecord, failure: LoadFailure) -> LoadRecord:
    return problem_record(record, failure)._replace(status="failed")


def problem_record(record: LoadRecord, failure: LoadFailure) -> LoadRecord:
    place = {"file": failure.file or record.file, "line": failure.line}
    return record._replace(stage=failure.stage, error=failure.message, hint=failure.hint, **place)


def absent_gate(tier: str, name: str) -> LoadRecord:
    """Return the record of a plugin that had a gate when it was last loaded and is not found any more."""
    error = "it had a gate when it was last loaded, and is missing now"
    failure = LoadFailure("discover", error, hint=f"put it back, or: moryflow plugin disable {name}")
    record = LoadRecord(name, "", "user" if tier == "user" else "installed", "failed", "last load", gate=True)
    return failed_record(record, failure)


def failure_line(found: LoadRecord | LoadFailure) -> str:
    """Return one line on what is wrong with a plugin: place, error and hint."""
    if isinstance(found, LoadFailure):
        place, error = found.where, found.message
    else:  # an error about a contributed item begins with its place already
        place, error = found.place, found.error.removeprefix(f"{found.place}: ")
    return f"{place}: {error}{f'; {found.hint}' if found.hint else ''}"


def describe_raised(error: BaseException, file: str) -> tuple[str, str, int]:
    """Return the text of an error that reading a plugin's object raised, with file and line. Raise the user's Ctrl-C again."""
    if isinstance(error, KeyboardInterrupt) and pressed_by_person():
        raise error
    text, found, line = describe(error, root_of(file))
    return (text, found, line) if found else (text, file, 0)


def import_failure(error: BaseException, file: str, candidate: Candidate, module: str = "") -> LoadFailure:
    """Return the failure of an import, at the last line of the plugin's own code. Raise the user's Ctrl-C again."""
    if isinstance(error, KeyboardInterrupt) and pressed_by_person():
        raise error
    root = root_of(file or _first_file(error))
    text, found, line = _import_error(error, root)
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        ours = module == error.name or module.startswith(f"{error.name}.")
        of_project = Path(candidate.file).name == "pyproject.toml"
        write = "write the module, or correct the entry point" if of_project else "reinstall the package, or uninstall it"
        hint = write if ours else _missing_module_hint(error.name, candidate)
        text = re.sub(rf"\b{PREFIX}\.(\w+?)__g\d+", r"\1", text)  # the name that a version of a plugin is imported under
    if not found:
        found, line = (file, 0) if file else (candidate.file, candidate.line)
    return LoadFailure("import", text, file=found, line=line, hint=hint)


def file_failure(error: BaseException, path: Path) -> PluginError:
    """Return the error for a failed import of a file that a plugin loads."""
    text, file, line = _import_error(error, str(path))
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install {error.name} where Moryflow is installed, or let uv run the file as a program: docs/external-tools.md"
    return PluginError(text, where=f"{file or path}:{line}" if line else str(path), next_step=hint)


def _import_error(error: BaseException, root: str) -> tuple[str, str, int]:
    text, file, line = describe(error, root)
    return f"it called sys.exit({error.code!r}) while it was imported" if isinstance(error, SystemExit) else text, file, line


def _missing_module_hint(missing: str, candidate: Candidate) -> str:
    """Return a hint how to get a missing module: it may be a file beside the plugin, which cannot be installed."""
    beside = candidate.tier == "user" and Path(candidate.file).with_name(f"{missing.partition('.')[0]}.py").is_file()
    if Path(candidate.file).name == "__init__.py" and missing.startswith(f"{PREFIX}."):
        file = "/".join(missing.split(".")[2:])
        return f"its folder has no {file}.py; write it, or take the import away"
    if beside or missing.startswith(f"{PREFIX}."):
        return "a file cannot import one beside it: make a folder in plugins/ of both, with __init__.py, and import relatively"
    return f"install what it needs: {missing}"


def _first_file(error: BaseException) -> str:
    """Return the first file after the import machinery: where the plugin's own code begins."""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name != importlib.__file__ and not name.startswith((_HERE, "<")):
            return name
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename
    return ""


def pressed_by_person() -> bool:
    """Whether a KeyboardInterrupt is the user's: asyncio cancels the task at the first Ctrl-C and raises at the second.

    While the task is not being cancelled, a plugin raised it.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0

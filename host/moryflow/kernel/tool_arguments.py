"""From the text a model wrote to the one value that is judged, shown, recorded and run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NoReturn

from moryflow_sdk import MAX_LEVELS, Tool, ToolCall, ToolError, freeze, thaw

MAX_ARGUMENT_BYTES = 4 * 1024 * 1024
MAX_COMMAND_BYTES = 128 * 1024
MOST_FAULTS = 10


def parse(text: str) -> dict[str, Any]:
    """Return the arguments in `text`; a missing text means none.

    :raises ToolError: it is not one JSON object without duplicate keys, too large, or nested too deep.
    """
    if len(text) > MAX_ARGUMENT_BYTES:
        raise ToolError(f"the arguments are larger than {MAX_ARGUMENT_BYTES // 2**20} MiB", code="args_too_large")
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
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
    if tool.schema is not None and (faults := _faults(tool.schema, values)):
        raise _misfit(tool, faults)
    return values


def _faults(schema: Mapping[str, Any], values: dict[str, Any]) -> list[tuple[Iterable[str | int], str]]:
    """Return what does not fit a schema that stands for itself: one without type hints behind it."""
    from jsonschema.validators import Draft202012Validator, validator_for

    validator = validator_for(schema, default=Draft202012Validator)(schema)
    try:
        return [(error.absolute_path, error.message[:300]) for error in islice(validator.iter_errors(values), MOST_FAULTS)]
    except Exception as error:  # somebody else's schema: a pattern that is none, arguments nested without end
        return [((), f"the schema cannot be held against them: {type(error).__name__}: {error}"[:300])]


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
        if "\0" in target.given:
            return "a NUL character in the input"
        if target.kind == "shell" and len(target.given.encode("utf-8", "surrogatepass")) > MAX_COMMAND_BYTES:
            return f"a command over {MAX_COMMAND_BYTES // 1024} KiB"
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

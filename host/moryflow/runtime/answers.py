"""What a caller wants of a turn beside its first answer: the work that goes on in the background, and a schema that fits.

Each correction is a turn of its own: it stands in the session, counts against the limits, and can be undone.
"""

from __future__ import annotations

import json
from typing import Any

from moryflow_sdk import ConfigError

from moryflow.kernel.outcome import RunOptions
from moryflow.kernel.tool_prepare import misfits

from .session import Session
from .subagents import limits_left, together, with_background
from .turn_result import TurnResult

CORRECTIONS = 2
"""How often a model is told what its answer lacks before the turn fails."""


class AnswerSchema:
    """A JSON Schema that the last answer of a turn has to fit."""

    def __init__(self, schema: Any) -> None:
        """Take a schema as a JSON object.

        :raises ConfigError: it is no JSON Schema.
        """
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for

        if not isinstance(schema, dict):
            raise ConfigError("a schema is a JSON object", next_step='for example {"type": "object", "required": ["name"]}')
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            place = "/".join(map(str, error.absolute_path))
            raise ConfigError(f"no JSON Schema: {error.message[:300]}", where=place, next_step="json-schema.org") from error
        self.document = schema

    @property
    def instructions(self) -> str:
        """What is said behind the prompt; every model understands it, and the session shows it."""
        written = json.dumps(self.document, ensure_ascii=False)
        return f"\n\nEnd with an answer that is one JSON value and nothing else, and that fits this JSON Schema:\n{written}"

    def read(self, text: str) -> tuple[Any, str]:
        """Return the value in an answer, and what is wrong with it; a fence of code around it is taken off."""
        try:
            value = json.loads(_unfenced(text))
        except (ValueError, RecursionError) as error:
            return None, f"it is not JSON: {error}"
        faults = misfits(self.document, value)
        return value, "; ".join(f"{'.'.join(map(str, place)) or 'the value'}: {fault}" for place, fault in faults)


def _unfenced(text: str) -> str:
    lines = text.strip().splitlines()
    fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else text


async def whole_answer(session: Session, result: TurnResult, options: RunOptions, schema: AnswerSchema | None) -> TurnResult:
    """Let what works in the background end, and ask again while the answer does not fit `schema`.

    :returns: `result`, or one that counts everything together and holds the last answer, with its value.
    """
    result = await with_background(session, result, options)
    for corrections in range(CORRECTIONS, -1, -1):
        if schema is None or result.end_reason != "completed":
            break
        value, fault = schema.read(result.text)
        result = result._replace(value=(value,) if not fault else (), unfit=fault)
        left = limits_left(result, options)
        if not fault or not corrections or not isinstance(left, RunOptions):
            break
        again = f"Your answer does not fit the JSON Schema: {fault}. Answer again with the JSON value and nothing else."
        following = await session.prompt(again, options=left, typed=0)
        result = together(result, await with_background(session, following, left))
    return result

"""The result of a turn: the fields of the ``result`` object, the exit code of each end reason, the schema of an answer.

:func:`stored_result` rebuilds a result from the store after the process that ran the turn is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import ConfigError, ModelError, MoryflowError, Usage
from moryflow_sdk.support.tool_schemas import misfits, unusable_pattern

from moryflow.base.events import now
from moryflow.kernel.outcome import NOT_WHOLE, EndReason, error_json

if TYPE_CHECKING:
    from moryflow.store import RunRow, Store


# The exit code of the process for each end reason.
EXIT_CODES: dict[str, int] = {
    "completed": 0,
    "host_error": 1,
    "denied": 4,
    "approval_required": 4,
    "max_steps": 5,
    "doom_loop": 5,
    "budget": 5,
    "prompt_too_long": 5,
    "plugin_failed": 6,
    "model_error": 7,
    "stopped": 130,
    "interrupted": 130,
}
NOBODY_ASKED = 4


class Shortfall(NamedTuple):
    """Why the answer of a completed turn is incomplete, as exit code, sentence and next step."""

    exit_code: int
    sentence: str
    next_step: str


_OTHERWISE = "rephrase the prompt, or choose another model with -m"
# The shortfall for each `finish` of an answer that is incomplete.
SHORTFALLS: dict[str, Shortfall] = {
    "length": Shortfall(
        5,
        NOT_WHOLE["length"],
        'moryflow run -c "go on", or raise maxTokens (moryflow config prompt edit)',
    ),
    "content_filter": Shortfall(7, NOT_WHOLE["content_filter"], _OTHERWISE),
    "refusal": Shortfall(7, NOT_WHOLE["refusal"], _OTHERWISE),
    "empty": Shortfall(7, NOT_WHOLE["empty"], "ask again, or choose another model with -m"),
}


class TurnResult(NamedTuple):
    """The result of a turn; its fields are those of the ``result`` object of ``--output json``.

    :param finish: why the last answer ended: the reason that the model gave, or ``empty``; ``""`` when no model answered.
    :param value: a tuple of one value, the answer as JSON, if it fits the requested schema; otherwise empty.
    :param unfit: why the answer does not fit the requested schema.
    :param unmet: why the command of ``--until`` did not succeed.
    """

    session: str
    end_reason: EndReason
    text: str
    usage: Usage
    cost: float | None
    steps: int
    denied: tuple[dict[str, Any], ...] = ()
    unasked: bool = False
    error: MoryflowError | None = None
    finish: str = ""
    value: tuple[Any, ...] = ()
    unfit: str = ""
    unmet: str = ""

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> TurnResult:
        """Return the result from the output of :meth:`as_json`, usually of another process."""
        error = found.get("error")
        if error is not None:
            said = {"where": error.get("where", ""), "next_step": error.get("next", "")}
            of_model = found["end_reason"] == "model_error"
            code, kind = error["code"], ModelError if of_model else MoryflowError
            error = kind(error["message"], **said, **({"code": code} if of_model else {}))
            error.code = code
        return cls(
            session=found["session"],
            end_reason=found["end_reason"],
            text=found["text"],
            usage=Usage(**found["usage"]),
            cost=found["cost"],
            steps=found["steps"],
            denied=tuple(found["denied"]),
            unasked=found["end_reason"] == "completed" and found["exit_code"] == NOBODY_ASKED,
            error=error,
            finish=found["finish"],
            value=(found["value"],) if "value" in found else (),
            unfit=found.get("unfit", ""),
            unmet=found.get("unmet", ""),
        )

    @property
    def exit_code(self) -> int:
        """The exit code of the process; not 0 if the answer is incomplete or nobody could be asked about a call."""
        code = self.shortfall.exit_code if self.shortfall else EXIT_CODES[self.end_reason]
        return NOBODY_ASKED if code == 0 and self.unasked else code

    @property
    def ending(self) -> str:
        """The sentence that says how a turn ended that was not completed; if a refused call ended it, with the reason."""
        refused = self.denied[-1]["reason"] if self.denied and self.end_reason in ("doom_loop", "denied") else ""
        why = refused.removeprefix("denied: ").rstrip(".")
        return f"the turn ended: {self.end_reason}{f' ({why})' if why else ''}"

    @property
    def shortfall(self) -> Shortfall | None:
        """Why the answer of a completed turn is incomplete; ``None`` if it is complete or the turn did not complete."""
        if self.end_reason != "completed":
            return None
        if self.unfit and self.finish not in SHORTFALLS:
            return Shortfall(
                1, f"the answer does not fit the schema: {self.unfit}", "say it in other words, or simplify the schema"
            )
        if self.unmet:
            return Shortfall(1, self.unmet, "moryflow run -c --until COMMAND goes on, with more --rounds or another prompt")
        return SHORTFALLS.get(self.finish)

    @property
    def status(self) -> str:
        """``completed`` or ``failed``."""
        return "completed" if self.end_reason == "completed" and not (self.unfit or self.unmet) else "failed"

    def as_json(self) -> dict[str, Any]:
        """Return the ``result`` event."""
        usage = {"input": self.usage.input, "output": self.usage.output, "cached": self.usage.cached}
        found = {
            "v": 1,
            "type": "result",
            "ts": now(),
            "status": self.status,
            "end_reason": self.end_reason,
            "finish": self.finish,
            "exit_code": self.exit_code,
            "text": self.text,
            "usage": usage,
            "cost": self.cost,
            "steps": self.steps,
            "denied": list(self.denied),
            "session": self.session,
            **({"value": self.value[0]} if self.value else {}),
            **({"unfit": self.unfit} if self.unfit else {}),
            **({"unmet": self.unmet} if self.unmet else {}),
        }
        return found if self.error is None else {**found, "error": error_json(self.error)}


class AnswerSchema:
    """A JSON Schema that the last answer of a turn has to satisfy."""

    def __init__(self, schema: Any) -> None:
        """Take a schema as a JSON object.

        :raises ConfigError: it is not a JSON Schema.
        """
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for

        if not isinstance(schema, dict):
            raise ConfigError("a schema is a JSON object", next_step='for example {"type": "object", "required": ["name"]}')
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            place = "/".join(map(str, error.absolute_path))
            raise ConfigError(f"not a JSON Schema: {error.message[:300]}", where=place, next_step="json-schema.org") from error
        if odd := unusable_pattern(schema):
            raise ConfigError(f"no answer can be checked against {odd!r:.80}", next_step="write it without look-around")
        self.document = schema

    @property
    def instructions(self) -> str:
        """The text to append to the prompt. It works with every model, and the session shows it."""
        written = json.dumps(self.document, ensure_ascii=False)
        return f"\n\nEnd with an answer that is one JSON value and nothing else, and that fits this JSON Schema:\n{written}"

    def read(self, text: str) -> tuple[Any, str]:
        """Return the value in an answer and what is wrong with it; a code fence around the value is removed."""
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


async def stored_result(store: Store, run: RunRow) -> TurnResult:
    """Return the result of a stored turn, with the steps and refused calls of its sub-agents.

    A turn without a stored end was interrupted. ``value`` and ``unfit`` stay empty, because the schema is not stored.
    """
    below = [child for child in await _children(store, run) if not child.is_compaction]
    until = await _next_turn_start(store, run)
    nodes = [node for node in await store.nodes(run.session) if node.kind == "assistant"]
    said = [node for node in nodes if run.started <= node.created <= until]
    last = said[-1].payload if said else {}
    denied = [*await _denied(store, run), *[one for child in below for one in await _denied(store, child, placed=True)]]
    reason: Any = run.end_reason or "interrupted"
    return TurnResult(
        session=run.session,
        end_reason=reason,
        text=str(last.get("text") or ""),
        usage=Usage(**run.usage),
        cost=run.cost,
        steps=run.steps + sum(child.steps for child in below),
        denied=tuple(denied),
        unasked=any(one["cause"] == "headless" for one in denied),
        finish=str(last.get("finish") or ""),
    )


async def _children(store: Store, run: RunRow) -> Sequence[RunRow]:
    found: list[RunRow] = []
    until = await _next_turn_start(store, run)
    for child in await store.sessions(1000, purpose=None, parent=run.session):
        own = [one for one in await store.runs(child.id) if run.started <= one.started <= until]
        for one in own:
            found += [one, *await _children(store, one)]
    return found


async def _next_turn_start(store: Store, run: RunRow) -> str:
    """Return when the session's next turn began. Turns do not overlap, so everything of `run` was stored before that."""
    turns = [one for one in await store.runs(run.session) if not one.is_compaction]
    return min((one.started for one in turns if one.started > run.started), default="~")


async def _denied(store: Store, run: RunRow, *, placed: bool = False) -> list[dict[str, Any]]:
    calls = {call.id: call for call in await store.calls(run.session) if call.turn == run.id}
    found: list[dict[str, Any]] = []
    for event in await store.events(run.session, types=("tool.result",)):
        call = calls.get(str(event.data["call_id"]))
        if call is None or event.turn != run.id or "targets" not in event.data:
            continue
        ruling = call.ruling or {}
        about = {name: event.data[name] for name in ("call_id", "tool")} | {"targets": list(event.data["targets"])}
        about["cause"] = call.cause or "user"
        about["reason"] = event.data["output"] if event.data["status"] == "denied" else ruling.get("reason", "")
        kept = [one for one in ruling.get("remember", ()) if one.get("scope") == "user"]
        about["rules"] = [{"domain": one["domain"], "pattern": one["pattern"]} for one in kept]
        found.append(({"session": run.session, "agent": run.agent} if placed else {}) | about)
    return found

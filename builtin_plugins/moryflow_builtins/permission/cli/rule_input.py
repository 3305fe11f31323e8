"""Rules from a file or from the command line, in any of the forms a person may have them in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import ConfigError, Rule
from moryflow_sdk.rule_entries import read_entries
from pydantic import ValidationError

_PLACE = ("agents", "runtime", "permission", "rules")
_HINT = 'a list [{"domain": "bash", "pattern": "ls *", "decision": "allow"}], or a file with one'


def given_rules(text: str) -> list[Rule]:
    """Return the rules in `text`: JSON with comments, or the name of a file with it; a whole configuration will do.

    :raises ConfigError: it holds no rules.
    """
    inline = text.lstrip().startswith(("[", "{"))
    source = text if inline else _content(Path(text).expanduser())
    where = "RULES" if inline else text
    try:
        return list(read_rules(_list_in(_parsed(source))))
    except ValueError as problem:
        raise ConfigError(str(problem), where=where, next_step=_HINT) from problem


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot be read: {reason}", where=str(file), next_step=_HINT) from error


def _parsed(source: str) -> object:
    import json

    try:
        return json.loads(source)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError:
        import json5

        return json5.loads(source)


def _list_in(value: object) -> object:
    """Return the list of rules in a list, in ``{"rules": …}``, or in a whole configuration."""
    if not isinstance(value, Mapping):
        return value
    found: Any = cast("Mapping[str, Any]", value)
    if "rules" in found:
        return found["rules"]
    for key in _PLACE:
        if not isinstance(found, Mapping) or key not in found:
            raise ValueError(f"it has no {'.'.join(_PLACE)}")
        found = cast("Mapping[str, Any]", found)[key]
    return found


def read_rules(rows: object) -> list[Rule]:
    """Return the rules in `rows` as a person's.

    What a gate would take with a question, as a key too many, is taken with that question here.

    :raises ValueError: one is no rule.
    """
    if not isinstance(rows, list):
        raise ValueError("the rules must be a list")
    entries = cast("list[object]", rows)
    for index, row in enumerate(entries):
        _refuse_no_rule(index, row)
    return read_entries(entries, "user")[0]


def _refuse_no_rule(index: int, row: object) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"rule {index} is no object")
    fields = {key: cast("Mapping[str, Any]", row).get(key) for key in ("domain", "pattern", "decision")}
    try:
        Rule.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"rule {index}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

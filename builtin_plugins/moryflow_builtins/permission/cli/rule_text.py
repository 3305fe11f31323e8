"""Rules as text: read from a file or the command line, and shown in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import ConfigError, Rule, ValidationError
from moryflow_sdk.support import texts
from moryflow_sdk.support.rule_entries import read_entries

_PLACE = ("agents", "runtime", "permission", "rules")
_HINT = 'a list [{"domain": "bash", "pattern": "ls *", "decision": "allow"}], or a file with one'


def given_rules(text: str) -> list[Rule]:
    """Return the rules in `text`: JSON with comments, or the name of a file with it; a whole configuration will do.

    :raises ConfigError: it holds no rules.
    """
    inline = text.lstrip().startswith(("[", "{"))
    source = text if inline else _content(Path(text).expanduser())
    try:
        return read_rules(_list_in(_parsed(source)))
    except ValueError as problem:
        raise ConfigError(str(problem), where="RULES" if inline else text, next_step=_HINT) from problem


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot be read: {reason}", where=str(file), next_step=_HINT) from error


def _parsed(source: str) -> object:
    import json5

    try:
        return json5.loads(source)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _list_in(value: Any) -> Any:
    """Return the list of rules in a list, in ``{"rules": …}``, or in a whole configuration."""
    if not isinstance(value, Mapping) or "rules" in value:
        return cast("Mapping[str, Any]", value)["rules"] if isinstance(value, Mapping) else value
    for key in _PLACE:
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"it has no {'.'.join(_PLACE)}")
        value = cast("Mapping[str, Any]", value)[key]
    return value


def read_rules(rows: object) -> list[Rule]:
    """Return the rules in `rows` as a person's.

    What a gate would take with a question, as a key too many, is taken with that question here.

    :raises ValueError: one is no rule.
    """
    if not isinstance(rows, list):
        raise ValueError("the rules must be a list")
    entries = cast("list[Any]", rows)
    for index, row in enumerate(entries):
        if not isinstance(row, Mapping):
            raise ValueError(f"rule {index} is no object")
        try:
            Rule.model_validate({key: cast("Mapping[str, Any]", row).get(key) for key in ("domain", "pattern", "decision")})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"rule {index}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return read_entries(entries, "user")[0]


def visible(text: str, limit: int = 0) -> str:
    """Return `text` on one line, control and invisible characters spelled out, cut to `limit` characters."""
    if 0 < limit < len(text):
        text = text[: limit - 1] + "…"
    return texts.visible(text)


def table(rows: Iterable[Sequence[object]], *, indent: str = "", limit: int = 120) -> list[str]:
    """Return `rows` as lines with aligned columns; the last column is not padded."""
    cells = [[visible(str(cell), limit) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]

"""Rules as text: read from a file or the command line, shown in a terminal, written as no target ever is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import ConfigError, Rule, ValidationError
from moryflow_sdk.support import texts
from moryflow_sdk.support.patterns import Pattern, address_pattern
from moryflow_sdk.support.rule_entries import read_entries
from moryflow_sdk.support.urls import RefusedUrl, parse_url

_PLACE = ("agents", "runtime", "permission", "rules")
_HINT = 'a list [{"domain": "bash", "pattern": "ls *", "decision": "allow"}], or a file with one'


def given_rules(text: str) -> list[Rule]:
    """Return the rules in `text`: JSON with comments, or the name of a file with it; a whole configuration will do.

    :raises ConfigError: it holds no rules.
    """
    inline = text.lstrip().startswith(("[", "{"))
    source = text if inline else _content(Path(text).expanduser())
    try:
        return read_rules(_list_in(_parse(source)))
    except ValueError as problem:
        raise ConfigError(str(problem), where="RULES" if inline else text, next_step=_HINT) from problem


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot be read: {reason}", where=str(file), next_step=_HINT) from error


def _parse(source: str) -> object:
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


# ------------------------------------------------------------------------------------------------
# Patterns that no target is written like
# ------------------------------------------------------------------------------------------------

_JOINED = re.compile(r"(?:^|\s)(?:&&|\|\||\||&)(?:\s|$)|;(?:\s|$)")
_REDIRECTED = re.compile(r"(?:^|\s)\d?(?:>>?|<)\s*\S")


def mistake(rule: Rule, pattern: Pattern) -> str:
    """Return why `rule` can never match; empty when it can, or when that cannot be told."""
    text = rule.pattern
    if text in ("*", "**") or text.startswith(("regex:", "tool:")):
        return ""
    match rule.domain:
        case "read" | "edit":
            return _path(text.partition(":")[2] if text.startswith(("vault:", "fs:")) else text)
        case "bash":
            return _command(text.removeprefix("shell:"), allows=rule.decision == "allow")
        case "web_fetch":
            full = address_pattern(text.removeprefix("url:"), allows=rule.decision == "allow")
            return _url(full, exact=pattern.exact)
        case "mcp":
            body = text.removeprefix("mcp:")
            return "" if "/" in body or "*" in body else "tools of a server are written SERVER/TOOL; a star stands for all"
        case _:
            return ""


def _path(body: str) -> str:
    if re.search(r"(?:^|/)\.{1,2}(?:/|$)", body):
        return "targets are resolved, so none has . or .. in it"
    if "//" in body:
        return "targets are resolved, so none has // in it"
    if body.endswith("/") and body != "/":
        return f"targets do not end with a slash; write {body}** for what is in the folder"
    return ""


def _command(body: str, *, allows: bool) -> str:
    if body != body.strip(" "):
        return "commands are matched without blanks around them"
    if re.search(r"['\"\\]", body):
        return ""
    if _JOINED.search(body):
        return "every command of a line is judged alone; write a rule for each"
    if "  " in body:
        return "words are matched with one blank between them"
    if allows and _REDIRECTED.search(body):
        return "redirections are judged as reading and editing, not as part of the command"
    if allows and ("$(" in body or "`" in body):
        return "an allow never covers what is known only when it runs"
    return ""


def _url(body: str, *, exact: bool) -> str:
    if exact:
        return _exact_url(body)
    if re.search(r"[\[{]", body):
        return ""
    literal = body[: body.index("*")] if "*" in body else body
    if not any(literal.startswith(start) or start.startswith(literal) for start in ("http://", "https://")):
        return "addresses begin with http:// or https://; write docs.python.org or https://docs.python.org/** for a whole site"
    if "://" in literal and "**" not in body and "/" not in body.partition("://")[2]:
        return f"an address has a path after its host, and * stops at a slash; write {body.rstrip('*')}/**"
    return ""


def wider_address(rule: Rule) -> str:
    """Return the pattern that was probably meant where the last star of one for addresses stops at a slash; else nothing."""
    pattern = rule.pattern
    if rule.domain != "web_fetch" or pattern == "*" or pattern.startswith(("regex:", "tool:")):
        return ""
    full = address_pattern(pattern, allows=rule.decision == "allow")
    return f"{pattern}*" if full.endswith("*") and not full.endswith(("**", "\\*")) else ""


def _exact_url(body: str) -> str:
    try:
        canonical = str(parse_url(body))
    except RefusedUrl as error:
        if error.service is None:
            return f"no such address is fetched: {error}"
        canonical = str(error.service)
    return "" if canonical == body else f"addresses are matched in one form; this one is {canonical}"

"""Read Markdown files that the user writes: frontmatter with fields, and a body.

Frontmatter that starts with ``{`` is JSON5, anything else YAML, read by a safe loader without aliases. Frontmatter that is
only nearly YAML, as other systems take it, is read field by field. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from .own_files import doubt_about, leads_nowhere
from .texts import keys_once

MAX_FRONTMATTER_BYTES = 64 * 1024
MAX_JSON5_BYTES = 8 * 1024
"""Of frontmatter that is JSON5 and not JSON: its reader takes a tenth of a second for each KiB."""
MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 32
_BOUNDARY = re.compile(r"^---[ \t]*$", re.MULTILINE)
_JSON_HEAD = re.compile(r"---[ \t]*\n(\{.*?\})[ \t]*\n---[ \t]*(?:\n|\Z)", re.DOTALL)


class WrongFile(Exception):
    """The file cannot be read as Markdown with frontmatter.

    :param code: ``read``, ``size``, ``encoding`` or ``frontmatter``.
    """

    def __init__(self, code: str, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.code, self.line, self.column = code, line, column


class MarkdownFile(NamedTuple):
    """The content of a file.

    :ivar distrusted: why others could have written the file: they own it or may write it; empty if nobody else could.
    :ivar head: the frontmatter as it was written, from the first line of the file on.
    :ivar loose: why the frontmatter is not YAML, if its fields were read one by one; whoever wrote it may have meant more.
    """

    metadata: Mapping[str, Any]
    body: str
    distrusted: str = ""
    head: str = ""
    loose: WrongFile | None = None

    def line_of(self, *path: str) -> int | None:
        """Return the line of a field in the file, or ``None`` if it cannot be found.

        :param path: the name of the field; for a nested field, all names from the outermost on.
        """
        place, found = 0, None
        for name in path:
            key = re.compile(rf"""(?:^[ \t]*|[{{,][ \t]*)(?P<quote>["']?){re.escape(name)}(?P=quote)[ \t]*:""", re.MULTILINE)
            found = key.search(self.head, place)
            if found is None:
                return None
            place = found.end()
        return self.head.count("\n", 0, place) + 1 if found else None


def read_markdown(path: Path, *, json5: bool = True) -> MarkdownFile:
    """Return the content of the file at `path`.

    :param json5: whether frontmatter that starts with ``{`` is JSON5; else it is JSON or YAML, which is five times as fast.
    :raises WrongFile: it cannot be read, is too large, is not text, or its frontmatter is wrong.
    """
    try:
        if not path.is_file():
            raise WrongFile("read", leads_nowhere(path) or "this is not a regular file")
        with path.open("rb") as file:
            doubt = doubt_about(path, os.fstat(file.fileno()))
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise WrongFile("read", f"it cannot be read: {error.strerror}") from error
    return parse_markdown(data, f"{doubt.reason}: {doubt.step}" if doubt else "", json5=json5)


def parse_markdown(data: bytes, distrusted: str = "", *, json5: bool = True) -> MarkdownFile:
    """Return the content of a file with the bytes `data`.

    Plain JSON is read with the standard library, which adds no import to the start of a host; all else with
    python-frontmatter and our handler.

    :raises WrongFile: it is too large, is not text, or its frontmatter is wrong.
    """
    text = _text(data)
    found = _JSON_HEAD.match(text)
    if found is not None and len(found[1]) <= MAX_FRONTMATTER_BYTES:
        with suppress(ValueError, RecursionError):
            metadata: dict[str, Any] = json.loads(found[1], object_pairs_hook=keys_once)
            return MarkdownFile(metadata, text[found.end() :].strip(), distrusted, text[: found.end(1)])
    import frontmatter
    from frontmatter.default_handlers import BaseHandler

    class YamlHandler(BaseHandler):
        FM_BOUNDARY = _BOUNDARY
        START_DELIMITER = END_DELIMITER = "---"
        loose: WrongFile | None = None

        def load(self, fm: str) -> dict[str, Any]:
            if len(fm.encode("utf-8", "surrogatepass")) > MAX_FRONTMATTER_BYTES:
                raise WrongFile("frontmatter", f"the frontmatter is larger than {MAX_FRONTMATTER_BYTES // 1024} KiB", 1)
            loose = None
            try:
                value = _json5(fm) if json5 and fm.lstrip().startswith("{") else _yaml(fm)
            except WrongFile as wrong:
                if fm.lstrip().startswith("{"):
                    raise
                value, loose = _field_by_field(fm, wrong), wrong
            if not isinstance(value, dict):
                raise WrongFile("frontmatter", "the frontmatter must be an object with named fields", 2)
            found, self.loose = cast("dict[str, Any]", value), loose
            return found

    if not re.match(r"---[ \t]*\n", text):
        raise WrongFile("frontmatter", 'such a file begins with a line "---"', 1)
    if (closing := _BOUNDARY.search(text, 3)) is None:
        raise WrongFile("frontmatter", 'the frontmatter is not closed with a line "---"', 1)
    metadata, body = frontmatter.parse(text, handler=(handler := YamlHandler()))
    return MarkdownFile(metadata, body, distrusted, text[: closing.start()], handler.loose)


def shown_path(path: Path) -> str:
    """Return a path as text, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "replace")


def _text(data: bytes) -> str:
    if len(data) > MAX_FILE_BYTES:
        raise WrongFile("size", f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongFile("encoding", "it is not UTF-8 text", data.count(b"\n", 0, error.start) + 1) from error
    if (place := text.find("\0")) >= 0:
        raise WrongFile("encoding", "it holds a NUL character", text.count("\n", 0, place) + 1)
    return text.replace("\r\n", "\n")


_FIELD = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?=\s|\Z)")
_DESCRIBES = ("description", "argument-hint")
MAX_FIELDS = 100


def _field_by_field(block: str, wrong: WrongFile) -> dict[str, Any]:
    """Return the fields of frontmatter that is nearly YAML; a field that is not YAML by itself is the text behind its colon."""
    fields: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in block.splitlines():
        found = _FIELD.match(line)
        if found and found[1] in fields:
            raise wrong
        if found:
            lines = fields[found[1]] = []
        lines.append(line)
    if not 0 < len(fields) <= MAX_FIELDS:
        raise wrong
    return {name: _one_field(name, "\n".join(written), wrong) for name, written in fields.items()}


def _one_field(name: str, text: str, wrong: WrongFile) -> Any:
    try:
        return _yaml(text)[name]
    except WrongFile as error:
        if name not in _DESCRIBES and not _is_syntax(error):
            raise wrong from error
        return text.partition(":")[2].strip()


def _is_syntax(error: WrongFile) -> bool:
    from yaml.parser import ParserError
    from yaml.scanner import ScannerError

    return isinstance(error.__cause__, ParserError | ScannerError)


def _json5(block: str) -> Any:
    import json5

    if len(block.encode("utf-8", "surrogatepass")) > MAX_JSON5_BYTES:
        said = f"frontmatter that is JSON5 may have {MAX_JSON5_BYTES // 1024} KiB; write it as JSON or YAML"
        raise WrongFile("frontmatter", said, 1)
    try:
        return json5.loads(block, allow_duplicate_keys=False)
    except (ValueError, RecursionError) as error:
        found = re.search(r":(\d+) .*column (\d+)", str(error), re.DOTALL)
        line, column = (int(found[1]), int(found[2])) if found else (2, None)
        reason = str(error).split(" ", 1)[-1] if found else str(error)
        raise WrongFile("frontmatter", f"the frontmatter is not JSON5: {reason}", line, column) from error


YAML_VALUE_ERRORS = (RecursionError, ValueError, LookupError, AttributeError)
"""Errors that PyYAML raises beside its own: for ``!!bool x`` a :class:`KeyError`, for ``!!timestamp x`` an AttributeError."""


def yaml_problem(error: Exception) -> str:
    """Return in one line why PyYAML could not read a text."""
    if problem := getattr(error, "problem", None):
        return str(problem)
    text = str(error).partition("\n")[0]
    return f"a value does not fit its tag ({text})" if isinstance(error, LookupError | AttributeError) else text


def _yaml(block: str) -> Any:
    """Read YAML without aliases, keys that are given twice, and deep nesting."""
    import yaml

    untyped: Any = yaml
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the reader in C is eight times as fast

    class Loader(safe):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            found: Any = safe.construct_mapping(self, node, deep=deep)
            if len(found) != len(node.value):
                raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=node.start_mark)
            return found

    depth = 0
    try:
        for event in untyped.parse(block, Loader=safe):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                problem = "aliases are not accepted" if depth <= MAX_DEPTH else f"it is nested deeper than {MAX_DEPTH}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return untyped.load(block, Loader=Loader)  # a subclass of SafeLoader
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (2, None)
        raise WrongFile("frontmatter", f"the frontmatter is not YAML: {yaml_problem(error)}", line, column) from error

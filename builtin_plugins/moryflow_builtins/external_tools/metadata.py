"""What a single file needs, from its ``# /// script`` block (PEP 723); the file is read and not run."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass

from moryflow_sdk import ToolError

_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_REQUIREMENT = re.compile(r"[A-Za-z0-9]")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\Z")
_COMPARE = {
    ">=": lambda is_, said: is_ >= said,
    "<=": lambda is_, said: is_ <= said,
    ">": lambda is_, said: is_ > said,
    "<": lambda is_, said: is_ < said,
}


@dataclass(frozen=True)
class Requirements:
    """What a file says it needs.

    :param dependencies: packages, as pip understands them.
    :param python: a version specifier for Python; empty for any.
    """

    dependencies: tuple[str, ...] = ()
    python: str = ""

    def check_python(self) -> None:
        """Refuse a Python that the file does not run on.

        :raises ToolError: with both versions.
        """
        here = sys.version_info[:3]
        for clause in filter(None, (part.strip() for part in self.python.split(","))):
            if not _fits(clause, here):
                version = ".".join(map(str, here))
                raise ToolError(f"it needs Python {self.python}, and this is {version}", code="tool_python")


def requirements(source: bytes) -> Requirements:
    """Return what the block in `source` says; a file without one needs nothing.

    :raises ToolError: there are two blocks, or the block is not valid; with its line in the message.
    """
    text = source.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return Requirements()
    if len(blocks) > 1:
        raise _wrong(text, blocks[1].start(), "there is a second block")
    lines = blocks[0]["content"].splitlines(keepends=True)
    try:
        values = tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise _wrong(text, blocks[0].start(), f"not valid TOML: {error}") from error
    needed, python = values.get("dependencies", []), values.get("requires-python", "")
    if not isinstance(needed, list) or not all(isinstance(item, str) and _REQUIREMENT.match(item) for item in needed):
        raise _wrong(text, blocks[0].start(), "dependencies must be a list of packages")
    if not isinstance(python, str):
        raise _wrong(text, blocks[0].start(), "requires-python must be text")
    return Requirements(tuple(needed), python)


def _wrong(text: str, place: int, what: str) -> ToolError:
    line = text.count("\n", 0, place) + 1
    return ToolError(f'the "# /// script" block in line {line}: {what}', code="tool_metadata")


def _fits(clause: str, here: tuple[int, ...]) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        return True  # a form that is not known here is the installer's to judge
    sign, said = match[1], tuple(int(part) for part in match[2].split("."))
    same = here[: len(said)] == said
    if sign in ("==", "!="):
        return same == (sign == "==")
    if sign == "~=":
        return here >= said and here[: len(said) - 1] == said[:-1]
    return _COMPARE[sign](here[: len(said)] if sign in (">", "<=") else here, said)

"""A Markdown file is an agent: frontmatter says who it is, the body is its prompt (S0.90, D41, D42).

A block that starts with ``{`` is JSON5, anything else YAML, read by a safe loader without aliases. Nothing in a file is
ever executed. A file that is wrong gives a :class:`Diagnostic` with file and line instead of an agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from .agents import Agent, ModelSettings
from .diagnostics import Diagnostic
from .verdicts import Rule

MAX_FRONTMATTER_BYTES = 64 * 1024
MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 32
RESERVED = frozenset({"default_compact_agent", "build", "compaction", "title", "summary"})
_JSON_HEAD = re.compile(r"---[ \t]*\n(\{.*?\})[ \t]*\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_KNOWN = frozenset({"id", "name", "description", "modelSettings", "mode", "model", "tools", "permission", "hidden", "maxSteps"})


class _Wrong(Exception):
    """The file cannot be an agent."""

    def __init__(self, code: str, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.code, self.line, self.column = code, line, column


def read_agent(path: Path, *, reserved: frozenset[str] = RESERVED) -> tuple[Agent | None, list[Diagnostic]]:
    """Return the agent in the file at `path`, or ``None``, and what is wrong with it. Never raises.

    :param reserved: ids that it may not have; only the plugin that brings the built-in agents gives another set.
    """
    try:
        if not path.is_file():
            raise _Wrong("agent_read", "this is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except _Wrong as wrong:
        return None, [Diagnostic(file=str(path), code=wrong.code, message=str(wrong))]
    except OSError as error:
        return None, [Diagnostic(file=str(path), code="agent_read", message=f"it cannot be read: {error.strerror}")]
    return parse_agent(data, str(path), default_id=path.stem, reserved=reserved)


def parse_agent(
    data: bytes, source: str, *, default_id: str = "", reserved: frozenset[str] = RESERVED
) -> tuple[Agent | None, list[Diagnostic]]:
    """Return the agent that `data` describes, or ``None``, and what is wrong with it.

    :param default_id: used for files of other systems, which have a ``name`` and no ``id``; only when it is valid.
    """
    try:
        metadata, body = _split(_text(data))
        agent, warnings = _agent(metadata, body, source, _id(metadata, default_id, reserved))
    except _Wrong as wrong:
        found = Diagnostic(file=source, code=wrong.code, message=str(wrong), line=wrong.line, column=wrong.column)
        return None, [found]
    return agent, [Diagnostic(file=source, code="agent_field", message=text) for text in warnings]


def _text(data: bytes) -> str:
    if len(data) > MAX_FILE_BYTES:
        raise _Wrong("agent_size", f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Wrong("agent_encoding", "it is not UTF-8 text", data.count(b"\n", 0, error.start) + 1) from error
    if "\0" in text:
        raise _Wrong("agent_encoding", "it holds a NUL character")
    return text.replace("\r\n", "\n")


def _split(text: str) -> tuple[Mapping[str, Any], str]:
    """Return frontmatter and body: plain JSON at once, all else through python-frontmatter with a handler of ours."""
    if (plain := _plain_json(text)) is not None:
        return plain
    import frontmatter
    from frontmatter.default_handlers import BaseHandler

    class Handler(BaseHandler):
        FM_BOUNDARY = re.compile(r"^---[ \t]*$", re.MULTILINE)
        START_DELIMITER = END_DELIMITER = "---"

        def load(self, fm: str) -> dict[str, Any]:
            return _load(fm)

    if not re.match(r"---[ \t]*\n", text):
        raise _Wrong("agent_frontmatter", 'an agent file begins with a line "---"', 1)
    if len(re.findall(r"^---[ \t]*$", text, re.MULTILINE)) < 2:
        raise _Wrong("agent_frontmatter", 'the frontmatter is not closed with a line "---"', 1)
    metadata, body = frontmatter.parse(text, handler=Handler())
    return metadata, body


def _plain_json(text: str) -> tuple[dict[str, Any], str] | None:
    """Read frontmatter that is plain JSON with the standard library, which costs a host's start nothing.

    Whatever is odd about it is left to the careful way, which knows how to say so.
    """
    found = _JSON_HEAD.match(text)
    if found is None or len(found[1].encode("utf-8", "surrogatepass")) > MAX_FRONTMATTER_BYTES or _too_deep(found[1]):
        return None
    try:
        value: dict[str, Any] = json.loads(found[1], object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        return None
    return value, text[found.end() :].strip()


def _too_deep(block: str) -> bool:
    depth = 0
    for char in block:
        depth += (char in "[{") - (char in "]}")
        if depth > MAX_DEPTH:
            return True
    return False


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")
    return value


def _load(block: str) -> dict[str, Any]:
    if len(block.encode("utf-8", "surrogatepass")) > MAX_FRONTMATTER_BYTES:
        raise _Wrong("agent_frontmatter", f"the frontmatter is larger than {MAX_FRONTMATTER_BYTES // 1024} KiB", 1)
    value = _json5(block) if block.lstrip().startswith("{") else _yaml(block)
    if not isinstance(value, dict):
        raise _Wrong("agent_frontmatter", "the frontmatter must be an object with named fields", 2)
    return cast("dict[str, Any]", value)


def _json5(block: str) -> Any:
    import json5

    if _too_deep(block):
        raise _Wrong("agent_frontmatter", f"the frontmatter is nested deeper than {MAX_DEPTH}", 2)
    try:
        return json5.loads(block, allow_duplicate_keys=False)
    except (ValueError, RecursionError) as error:
        found = re.search(r":(\d+) .*column (\d+)", str(error), re.DOTALL)
        line, column = (int(found[1]), int(found[2])) if found else (2, None)
        reason = str(error).split(" ", 1)[-1] if found else str(error)
        raise _Wrong("agent_frontmatter", f"the frontmatter is not JSON5: {reason}", line, column) from error


def _yaml(block: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe, without aliases, duplicate keys or the surprises of YAML 1.1 in deep places."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            untyped: Any = self
            if untyped.check_event(yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="aliases are not accepted", problem_mark=untyped.peek_event().start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            untyped: Any = self
            keys = [repr(untyped.construct_object(key, deep=deep)) for key, _ in node.value]
            if len(set(keys)) != len(keys):
                raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(block, Loader=Loader)  # a subclass of SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
        line, column = (mark.line + 1, mark.column + 1) if mark else (2, None)
        raise _Wrong("agent_frontmatter", f"the frontmatter is not YAML: {reason}", line, column) from error


def _agent(metadata: Mapping[str, Any], body: str, source: str, name: str) -> tuple[Agent, list[str]]:
    warnings = [f"the field {key!r} is not known and is ignored" for key in metadata if key not in _KNOWN]
    tools, denied = _tools(metadata.get("tools"), warnings)
    fields = {
        "id": name,
        "name": _string(metadata, "name", warnings),
        "description": _string(metadata, "description", warnings),
        "mode": _choice(metadata, warnings),
        "model": _string(metadata, "model", warnings) or None,
        "prompt": body,
        "tools": tools,
        "deny_tools": denied,
        "rules": _rules(metadata.get("permission"), source),
        "settings": _settings(metadata.get("modelSettings"), warnings),
        "hidden": metadata.get("hidden") is True,
        "max_steps": _steps(metadata.get("maxSteps"), warnings),
        "source": source,
    }
    return Agent.model_validate(fields), warnings


def _steps(value: Any, warnings: list[str]) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    warnings.append(f"maxSteps: {value!r:.60} is not a whole number above 0; it is ignored")
    return None


def _id(metadata: Mapping[str, Any], default_id: str, reserved: frozenset[str]) -> str:
    if "id" not in metadata and "modelSettings" not in metadata and isinstance(metadata.get("description"), str):
        found: Any = default_id  # a file of another system: the file name is the name
    else:
        found = metadata.get("id")
    if not isinstance(found, str) or not found:
        raise _Wrong("agent_id" if "id" not in metadata or found == "" else "agent_frontmatter", "it needs an id, a text", 2)
    if not _ID.match(found):
        raise _Wrong("agent_id", f"the id {found[:80]!r} may hold letters, digits, '-' and '_' only", 2)
    if found.lower() in reserved:
        raise _Wrong("agent_id", f"the id {found!r} is the host's own", 2)
    return found


def _string(metadata: Mapping[str, Any], key: str, warnings: list[str]) -> str:
    value = metadata.get(key, "")
    if isinstance(value, str):
        return value
    warnings.append(f"{key} must be text; it is ignored")
    return ""


def _choice(metadata: Mapping[str, Any], warnings: list[str]) -> str:
    value = metadata.get("mode", "all")
    if value in ("primary", "subagent", "all"):
        return cast("str", value)
    warnings.append("mode must be primary, subagent or all; it is ignored")
    return "all"


def _tools(value: Any, warnings: list[str]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Read a list of names or globs, ``a, b``, or ``{allow, deny}``; what is not understood allows nothing more."""
    if value is None:
        return None, ()
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, dict):
        sides = cast("dict[str, Any]", value)
        allow, deny = sides.get("allow"), sides.get("deny", [])
        if (allow is None or _names(allow)) and _names(deny):
            return None if allow is None else tuple(allow), tuple(deny)
    elif _names(value):
        return tuple(cast("list[str]", value)), ()
    warnings.append("tools must be a list of names; the agent gets none")
    return (), ()


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value))


def _rules(value: Any, source: str) -> tuple[Rule, ...]:
    """Read permission rules; a mistake in one refuses the file, so that no deny is lost (D26)."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _Wrong("agent_field", "permission must be a list of rules", 2)
    try:
        return tuple(
            Rule.model_validate({**rule, "source": "agent", "file": source, "index": index})
            for index, rule in enumerate(cast("list[dict[str, Any]]", value))
        )
    except (ValidationError, TypeError) as error:
        raise _Wrong("agent_field", "a permission rule needs domain, pattern and decision (allow, ask or deny)", 2) from error


def _settings(value: Any, warnings: list[str]) -> ModelSettings:
    """Check each parameter by itself; a bad one is dropped (D42)."""
    if value is None:
        return ModelSettings()
    if not isinstance(value, dict):
        warnings.append("modelSettings must be an object; it is ignored")
        return ModelSettings()
    names = {"temperature": "temperature", "topP": "top_p", "maxTokens": "max_tokens"}
    kept: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", value).items():
        try:
            if key not in names or isinstance(item, bool | str):
                raise ValueError(key)
            ModelSettings.model_validate({names[key]: item})
        except (ValidationError, ValueError):
            warnings.append(f"modelSettings.{key}: {item!r:.60} cannot be used and is dropped")
        else:
            kept[names[key]] = item
    return ModelSettings.model_validate(kept)

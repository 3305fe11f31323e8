"""The schema of a tool as it is sent to a model service: a form that the strictest of them accepts.

If a service refuses one schema, it refuses the whole request, and with it every other tool. So the model is shown less than the
schema says: the host checks a call against the schema itself, and tells the model what does not fit.

What is left out or rewritten, and who refuses it, stands in ``docs/services.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

MAX_PARTS = 2000
"""How many parts a sent schema may have: thirty references that each lead twice to the next make a billion."""

_WORDS = ("title", "description", "default", "format")
_OF_TEXT = ("pattern", "minLength", "maxLength")
_OF_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_LIST = ("items", "minItems", "maxItems", "uniqueItems")
_OF_OBJECT = ("properties", "required", "additionalProperties", "minProperties", "maxProperties")
_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": _OF_OBJECT, "array": _OF_LIST, "string": _OF_TEXT, "number": _OF_NUMBER, "integer": _OF_NUMBER,
}  # fmt: skip
_SENT = frozenset({"type", "enum", "anyOf", *_WORDS, *_OF_TEXT, *_OF_NUMBER, *_OF_LIST, *_OF_OBJECT})
"""The keywords that are sent; all others are for the host's own check."""
_NOT_FOR_GEMINI = frozenset(
    {"default", "additionalProperties", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems"}
)
_FORMATS_OF_GEMINI = frozenset({"enum", "date-time", "float", "double", "int32", "int64"})
_NULL = {"type": "null"}


def sent_schema(schema: Mapping[str, Any], *, gemini: bool = False) -> dict[str, Any]:
    """Return the parameters of a tool as they are sent.

    :param schema: what :func:`moryflow_sdk.support.tool_schemas.plain_schema` has accepted.
    :param gemini: whether the model is one of Gemini's, which know fewer keywords and want a type everywhere.
    """
    return {"type": "object", "properties": {}, **_Rewriter(schema, gemini).whole()}


class _Rewriter:
    def __init__(self, root: Mapping[str, Any], gemini: bool) -> None:
        self._root, self._gemini, self._left = root, gemini, MAX_PARTS

    def whole(self) -> dict[str, Any]:
        made = self._part(self._root, (), needed=True)
        made.pop("anyOf", None)
        return {**made, "type": "object"}

    def _part(self, part: Any, followed: tuple[str, ...], *, needed: bool = False) -> dict[str, Any]:
        """Return one part of the schema, rewritten.

        :param followed: the references that led here.
        :param needed: whether the part must have a value, so that ``null`` says something that leaving it out does not.
        """
        self._left -= 1
        if not isinstance(part, Mapping) or self._left < 0:
            return self._any() if not isinstance(part, Mapping) else self._stub(cast("Mapping[str, Any]", part))
        schema, followed = self._merged(cast("Mapping[str, Any]", part), followed)
        _name_type(schema)
        made = {key: value for key, value in schema.items() if key in _SENT}
        if choices := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            return self._choice(made, choices, followed, needed)
        kinds = made.get("type")
        if isinstance(kinds, list | tuple):
            return self._one_of_types(made, [str(kind) for kind in cast("list[Any]", kinds)], followed, needed)
        return self._plain(made, schema, followed)

    def _merged(self, part: Mapping[str, Any], followed: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return a part with the targets of its reference and of ``allOf`` in it, and the references followed.

        What stands beside them counts first.
        """
        made = {key: value for key, value in part.items() if key not in ("$ref", "allOf")}
        inner: list[Any] = list(part.get("allOf", ()))
        reference = part.get("$ref")
        if isinstance(reference, str):
            if reference in followed:
                made.setdefault("type", "object")
            else:
                followed = (*followed, reference)
                inner.append(_target(reference, self._root))
        for other in inner:
            self._left -= 1
            if isinstance(other, Mapping) and self._left > 0:
                found, followed = self._merged(cast("Mapping[str, Any]", other), followed)
                properties = {**found.get("properties", {}), **made.get("properties", {})}
                required = [*made.get("required", ()), *found.get("required", ())]
                made = {**found, **made, **({"properties": properties} if properties else {})}
                made |= {"required": list(dict.fromkeys(required))} if required else {}
        return made, followed

    def _choice(self, made: dict[str, Any], choices: list[Any], followed: tuple[str, ...], needed: bool) -> dict[str, Any]:
        """Return a choice without ``null``, if leaving the value out says the same; beside ``anyOf`` stands no type."""
        beside = {key: made[key] for key in _WORDS if made.get(key) is not None}
        if "properties" in made:  # the branches only say which of the properties go together
            return self._plain({key: value for key, value in made.items() if key != "anyOf"}, made, followed)
        found: list[dict[str, Any]] = []
        for choice in choices:
            one = self._part(choice, followed, needed=True)
            found += [inner for inner in one.get("anyOf", [one]) if inner not in found]
        kept = found if needed else [one for one in found if one != _NULL] or found
        if any(not one for one in kept):  # one of them takes anything
            return {**self._any(), **beside}
        return self._finished({**kept[0], **beside} if len(kept) == 1 else {**beside, "anyOf": kept})

    def _one_of_types(self, made: dict[str, Any], kinds: list[str], followed: tuple[str, ...], needed: bool) -> dict[str, Any]:
        kept = kinds if needed else [kind for kind in kinds if kind != "null"] or kinds
        parts = {kind: {key: made[key] for key in ("enum", *_BY_TYPE.get(kind, ())) if key in made} for kind in kept}
        if len(kept) == 1:
            beside = {key: made[key] for key in _WORDS if key in made}
            return self._plain({"type": kept[0], **beside, **parts[kept[0]]}, made, followed)
        choices = [{"type": kind, **part} for kind, part in parts.items()]
        return self._choice({key: made[key] for key in _WORDS if key in made}, choices, followed, needed=True)

    def _plain(self, made: dict[str, Any], schema: Mapping[str, Any], followed: tuple[str, ...]) -> dict[str, Any]:
        kind = made.get("type")
        values = [value for value in made.pop("enum", ()) if kind is None or _is(value, str(kind))]
        made |= {"enum": values} if values else {}
        if kind == "array":
            made["items"] = self._items(schema, followed)
        elif kind == "object":
            made |= self._members(schema, followed)
            made = {key: value for key, value in made.items() if key != "required" or value}
        return self._finished(made)

    def _items(self, schema: Mapping[str, Any], followed: tuple[str, ...]) -> dict[str, Any]:
        """Return one schema for all items, also of a tuple: no service takes a list of schemas."""
        items: Any = schema.get("items")
        choices: list[Any] = [*schema.get("prefixItems", ()), *([items] if isinstance(items, Mapping) else ())]
        return self._choice({}, choices, followed, needed=True) if choices else self._any()

    def _members(self, schema: Mapping[str, Any], followed: tuple[str, ...]) -> dict[str, Any]:
        required = schema.get("required", ())
        members: Mapping[str, Any] = schema.get("properties", {})
        made = {
            name: self._part(inner, followed, needed=name in required) for name, inner in members.items() if inner is not False
        }
        others: Any = schema.get("additionalProperties")
        if schema.get("patternProperties"):
            others = True
        elif isinstance(others, Mapping):
            others = self._part(others, followed, needed=True)
        found: dict[str, Any] = {"required": [name for name in required if name in made]}
        found |= {"properties": made} if made or "properties" in schema else {}
        return found | ({} if others is None else {"additionalProperties": others})

    def _finished(self, made: dict[str, Any]) -> dict[str, Any]:
        if made.get("default", "") is None:
            del made["default"]
        if "pattern" in made and not re.fullmatch(r"\^(?!.*\(\?).*\$", made["pattern"]):
            del made["pattern"]
        if not self._gemini:
            return made
        if made.get("format") not in _FORMATS_OF_GEMINI:
            made.pop("format", None)
        if "enum" in made and (made.get("type") != "string" or "" in made["enum"]):
            words = ", ".join(json.dumps(value, ensure_ascii=False) for value in made.pop("enum"))
            made["description"] = f"{made.get('description', '')} One of: {words}".strip()
        made = {key: value for key, value in made.items() if key not in _NOT_FOR_GEMINI}
        return made if "type" in made or "anyOf" in made else {"type": "string", **made}

    def _any(self) -> dict[str, Any]:
        return {"type": "string"} if self._gemini else {}

    def _stub(self, part: Mapping[str, Any]) -> dict[str, Any]:
        kind = part.get("type")
        known = kind if isinstance(kind, str) and kind != "array" else "object"
        return {"type": known, **{key: part[key] for key in ("description",) if key in part}}


def is_strict(schema: Any) -> bool:
    """Whether OpenAI can enforce a schema: each object has no other members than those it names, and needs them all."""
    if isinstance(schema, list):
        return all(map(is_strict, cast("list[Any]", schema)))
    if not isinstance(schema, Mapping):
        return True
    part = cast("Mapping[str, Any]", schema)
    if part.get("type") == "object":
        closed = part.get("additionalProperties") is False and set(part.get("required", ())) == set(part.get("properties", {}))
        if not closed:
            return False
    return not part.keys() & _NEVER_STRICT and all(map(is_strict, part.values()))


_NEVER_STRICT = frozenset({"oneOf", "allOf", "not", "if", "patternProperties", "prefixItems", "dependentRequired"})


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference within `root` leads to; :func:`plain_schema` has checked that it leads somewhere."""
    place: Any = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = cast("Mapping[str, Any]", place).get(name) if isinstance(place, Mapping) else None
    return place


def _name_type(schema: dict[str, Any]) -> None:
    """Write ``const`` as ``enum``, and name the type if other keywords say it."""
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "type" in schema or "anyOf" in schema or "oneOf" in schema:
        return
    kinds = {kind for value in schema.get("enum", ()) for kind in _kinds_of(value)}
    told = next(
        (kind for kind, keys in _BY_TYPE.items() if any(key in schema for key in (*keys, *_ONLY_CHECKED.get(kind, ())))), ""
    )
    if kinds:
        schema["type"] = kinds.pop() if len(kinds) == 1 else sorted(kinds)
        if schema["type"] == "null":
            del schema["enum"]
    elif told:
        schema["type"] = told


_ONLY_CHECKED = {"object": ("patternProperties",), "array": ("prefixItems", "contains")}


def _kinds_of(value: Any) -> Iterator[str]:
    names = ("null", "boolean", "integer", "number", "string", "array", "object")
    yield next((name for name in names if _is(value, name)), "string")


def _is(value: Any, kind: str) -> bool:
    """Whether a value of ``enum`` has the type `kind`."""
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number":
            return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list | tuple)
        case "object":
            return isinstance(value, Mapping)
        case _:
            return isinstance(value, str)

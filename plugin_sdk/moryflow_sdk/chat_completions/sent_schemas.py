"""The schema of a tool as it is sent to a model service: a form that the strictest of them accepts.

If a service refuses one schema, it refuses the whole request, and with it every other tool. So the model is shown less than the
schema says: the host checks a call against the schema itself, and tells the model what does not fit.

What is left out or rewritten, and who refuses it, stands in ``docs/services.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

MAX_PARTS = 2000
"""How many parts a sent schema may have: thirty references that each lead twice to the next make a billion."""

_WORDS = ("title", "description", "default", "format")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties"),
    "array": ("items", "minItems", "maxItems", "uniqueItems", "prefixItems", "contains"),
    "string": ("pattern", "minLength", "maxLength"),
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "boolean": (),
    "null": (),
}
"""The keywords of each type; what is in none of these lists is for the host's own check, and is not sent."""
_UNSENT = frozenset({"patternProperties", "prefixItems", "contains"})
_NOT_FOR_GEMINI = frozenset({
    "default", "additionalProperties", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems",
})  # fmt: skip
_FORMATS_OF_GEMINI = frozenset({"enum", "date-time", "float", "double", "int32", "int64"})
_NULL = {"type": "null"}
_TYPES: Mapping[Any, str] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip


def sent_schema(schema: Mapping[str, Any], *, gemini: bool = False) -> dict[str, Any]:
    """Return the parameters of a tool as they are sent.

    :param schema: what :func:`moryflow_sdk.support.tool_schemas.plain_schema` has accepted.
    :param gemini: whether the model is one of Gemini's, which know fewer keywords and want a type everywhere.
    """
    made = _Rewriter(schema, gemini).part(schema, (), needed=True)
    made.pop("anyOf", None)
    return {"properties": {}, **made, "type": "object"}


class _Rewriter:
    def __init__(self, root: Mapping[str, Any], gemini: bool) -> None:
        self._root, self._gemini, self._left = root, gemini, MAX_PARTS

    def part(self, part: Any, followed: tuple[str, ...], *, needed: bool = False) -> dict[str, Any]:
        """Return one part of the schema, rewritten: as one type with its keywords, or as a choice of such.

        :param followed: the references that led here.
        :param needed: whether the part must have a value, so that ``null`` says something that leaving it out does not.
        """
        self._left -= 1
        if not isinstance(part, Mapping):
            return self._any()
        if self._left < 0:
            return {"type": "object"}
        schema, followed = self._merged(cast("Mapping[str, Any]", part), followed)
        if "const" in schema:
            schema["enum"] = [schema["const"]]
        beside = {key: schema[key] for key in _WORDS if schema.get(key) is not None}
        choices: list[Any] = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        if choices and "properties" not in schema:  # else the branches only say which of the properties go together
            return self._choice(beside, [self.part(choice, followed, needed=True) for choice in choices], needed)
        kinds = _kinds(schema)
        kinds = kinds if needed else [kind for kind in kinds if kind != "null"] or kinds
        if len(kinds) == 1:
            return self._of_type(kinds[0], schema, followed, beside)
        found = [self._of_type(kind, schema, followed, {}) for kind in kinds]
        return self._choice(beside, found, needed) if found else self._finished(beside)

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

    def _choice(self, beside: dict[str, Any], found: list[dict[str, Any]], needed: bool) -> dict[str, Any]:
        """Return a choice without ``null``, if leaving the value out says the same; beside ``anyOf`` stands no type."""
        flat: list[dict[str, Any]] = []
        for one in found:
            flat += [inner for inner in one.get("anyOf", [one]) if inner not in flat]
        kept = flat if needed else [one for one in flat if one != _NULL] or flat
        if any(not one for one in kept):  # one of them takes anything
            return self._finished({**self._any(), **beside})
        return self._finished({**kept[0], **beside} if len(kept) == 1 else {**beside, "anyOf": kept})

    def _of_type(
        self, kind: str, schema: Mapping[str, Any], followed: tuple[str, ...], beside: Mapping[str, Any]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {"type": kind, **beside}
        made |= {key: schema[key] for key in _BY_TYPE[kind] if key in schema and key not in _UNSENT}
        if values := [value for value in schema.get("enum", ()) if kind != "null" and _is(value, kind)]:
            made["enum"] = values
        if kind == "array":
            items: Any = schema.get("items")
            choices: list[Any] = [*schema.get("prefixItems", ()), *([items] if isinstance(items, Mapping) else ())]
            parts = [self.part(choice, followed, needed=True) for choice in choices]
            made["items"] = self._choice({}, parts, needed=True) if parts else self._any()  # no service takes a list of schemas
        elif kind == "object":
            required = schema.get("required", ())
            members = {
                name: self.part(inner, followed, needed=name in required)
                for name, inner in schema.get("properties", {}).items()
                if inner is not False
            }
            made |= {"properties": members} if members or "properties" in schema else {}
            made["required"] = [name for name in required if name in members]
            if schema.get("patternProperties"):
                made["additionalProperties"] = True
            elif isinstance(others := schema.get("additionalProperties"), Mapping):
                made["additionalProperties"] = self.part(others, followed, needed=True)
        return self._finished({key: value for key, value in made.items() if key != "required" or value})

    def _finished(self, made: dict[str, Any]) -> dict[str, Any]:
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


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """Return the types of a part: those that it names, those of its ``enum``, or the one whose keywords it has."""
    if named := schema.get("type"):
        return [named] if isinstance(named, str) else list(named)
    if values := schema.get("enum"):
        return sorted({_type_of(value) for value in values})
    return [kind for kind, keys in _BY_TYPE.items() if any(key in schema for key in keys)][:1]


def _is(value: Any, kind: str) -> bool:
    return _type_of(value) == kind or (_type_of(value) == "integer" and kind == "number")


def _type_of(value: Any) -> str:
    return _TYPES.get(cast("Any", type(value)), "string")

"""The OpenAPI document of the table: 3.2, which can describe a stream, or 3.1 for generators that read no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moryflow import __version__

from .operations import Operation

ERRORS = {
    "400": "the body is not JSON, or a name is ambiguous",
    "401": "no token, or a wrong one",
    "403": "a page of another site asks",
    "404": "there is no such thing",
    "409": "it is busy, was answered, has changed, or must be confirmed",
    "413": "the body is too large",
    "415": "the body is not application/json",
    "421": "another Host",
    "422": "a value is wrong",
    "429": "too many streams",
    "503": "the database is locked or full, or the server is being stopped",
}
_EVENT = {
    "type": "object",
    "required": ["type"],
    "properties": {"id": {"type": "integer"}, "event": {"type": "string"}, "data": {"type": "string"}},
}


def document(operations: Iterable[Operation], version: str = "3.2") -> dict[str, Any]:
    """Return the description of `operations`.

    :param version: ``3.2``, or ``3.1`` without ``itemSchema``.
    """
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        for path in (one.path, *one.aliases):
            paths.setdefault(path, {})[one.method.lower()] = _operation(one, version, path)
    error = {"type": "object", "required": ["code", "message", "next"]}
    error["properties"] = {name: {"type": "string"} for name in ("code", "message", "next", "where")}
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "openapi": "3.1.1" if version == "3.1" else "3.2.0",
        "info": {"title": "Moryflow", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": error},
            "responses": {status: {"description": text, "content": refused} for status, text in ERRORS.items()},
        },
    }


def _operation(one: Operation, version: str, path: str) -> dict[str, Any]:
    schema = one.arguments.schema
    properties: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    in_body = one.method not in ("GET", "DELETE") and not one.raw
    parameters = [
        {
            "name": name,
            "in": "path" if name in one.in_path else "query",
            "required": name in one.in_path or name in required,
            "schema": found,
            **({"description": found["description"]} if "description" in found else {}),
        }
        for name, found in properties.items()
        if name in one.in_path or not in_body
    ]
    said: dict[str, Any] = {
        "operationId": one.name if path == one.path else f"{one.name}_{path.strip('/').replace('/', '_')}",
        "summary": one.summary,
        "parameters": parameters,
        "responses": {
            str(one.status): {"description": one.answer, "content": _content(one, version)},
            **{status: {"$ref": f"#/components/responses/{status}"} for status in ERRORS},
        },
    }
    body = {name: found for name, found in properties.items() if name not in one.in_path}
    if in_body and body:
        wanted = {"type": "object", "properties": body, "additionalProperties": False}
        wanted |= {"required": sorted(required - set(one.in_path))} if required - set(one.in_path) else {}
        wanted |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
        said["requestBody"] = {"required": "required" in wanted, "content": {"application/json": {"schema": wanted}}}
    elif one.raw and one.method == "POST":
        said["requestBody"] = {"required": True, "content": {one.raw: {"schema": {"type": "string"}}}}
    if one.path == "/code":
        said["security"] = []
    return said


def _content(one: Operation, version: str) -> dict[str, Any]:
    if one.stream:
        return {"text/event-stream": {"schema": {"type": "string"}, **({"itemSchema": _EVENT} if version != "3.1" else {})}}
    kind = one.raw if one.raw and one.method == "GET" else "application/json"
    return {kind: {"schema": {} if kind == "application/json" else {"type": "string"}}}

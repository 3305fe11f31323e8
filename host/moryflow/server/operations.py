"""The table of operations, the source of the routes, the OpenAPI document, the client's methods and a documentation page.

An operation is a function. Its parameters come from the path, the query and the body of a request; as with tools, their type
hints are the schema and the check. The OpenAPI document is version 3.2, which can describe a stream, or 3.1 for generators
that do not read 3.2.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from moryflow_sdk.arguments import ToolArguments
from starlette.responses import Response

from moryflow import __version__

from .replies import RequestError, json_reply
from .tokens import bearer

if TYPE_CHECKING:
    from starlette.requests import Request

    from .service import Service


Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True)
class Call:
    """A request on its way to an operation."""

    service: Service
    request: Request

    @property
    def user(self) -> str:
        """Whose token the request has; empty: the administrator's."""
        return self.request.scope.get("moryflow.user", "")

    @property
    def token_id(self) -> str:
        """Which of the listed tokens the request has; empty: the server's own, a user's, none, or one that was revoked."""
        return self.service.tokens.id_of(bearer(self.request.headers.get("authorization", "")))


@dataclass(frozen=True)
class Operation:
    """One operation that clients can call.

    :ivar handler: takes a :class:`Call` and the parameters; returns a JSON document or a complete response.
    :ivar answer: the response in words, for the documentation.
    :ivar stream: whether the answer is a stream of events.
    :ivar raw: the media type of the body if it is not JSON.
    """

    method: Method
    path: str
    handler: Callable[..., Awaitable[Any]]
    answer: str
    status: int = 200
    stream: bool = False
    raw: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that clients use, which is that of the handler."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """What the operation does: the first paragraph of the handler's docstring."""
        return inspect.cleandoc(self.handler.__doc__ or "").split("\n\n")[0].replace("\n", " ")

    @cached_property
    def arguments(self) -> ToolArguments:
        """The parameters of the handler, as schema and check."""
        return ToolArguments(self.name, self.handler, "at")

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    async def __call__(self, service: Service, request: Request) -> Response:
        """Answer `request`.

        :raises MoryflowError: the request is invalid, or the operation failed.
        """
        at = Call(service, request)
        owners = service.owners if at.user else None
        if owners is not None:
            await owners.permit(self.path, request, at.user)
        given = {**(await self._given(request)), **{name: request.path_params[name] for name in self.in_path}}
        reply = await self.handler(at, **self._checked(given))
        if owners is not None and not isinstance(reply, Response):
            reply = await owners.own(self.method, self.path, reply, at.user)
        return reply if isinstance(reply, Response) else json_reply(reply, self.status)

    async def _given(self, request: Request) -> Mapping[str, Any]:
        if self.method in ("GET", "DELETE") or self.raw:
            query = request.query_params
            properties: Mapping[str, Any] = self.arguments.schema["properties"]
            lists = {name for name, schema in properties.items() if "array" in str(schema.get("anyOf", schema.get("type")))}
            return {name: query.getlist(name) if name in lists else query[name] for name in query}
        body = await request.body()
        if not body:
            return {}
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "not_json", "the body must be application/json", "send Content-Type: application/json")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestError(400, "bad_json", f"the body is not JSON: {error}", "send an object") from error
        if not isinstance(document, dict):
            raise RequestError(400, "bad_json", "the body is not an object", 'send an object, for example {"text": "…"}')
        for name, value in document.items():
            wanted = self.arguments.schema["properties"].get(name, {}).get("type")
            if wanted == "boolean" and not isinstance(value, bool):  # "yes" confirms nothing
                raise RequestError(422, "invalid", f"{name}: only true and false are booleans", f"send true or false as {name}")
        return document

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError

        try:
            return self.arguments.validate(given)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the body'}: {item['msg']}" for item in error.errors()[:3])
            known = ", ".join(name for name in self.arguments.names if name not in self.in_path) or "nothing"
            raise RequestError(422, "invalid", said, f"{self.method} {self.path} takes {known}") from error


OPERATIONS: list[Operation] = []


def operation(method: Method, path: str, answer: str, **more: Any) -> Callable[[F], F]:
    """Return a decorator that adds a handler to the table."""

    def add(function: F) -> F:
        OPERATIONS.append(Operation(method, path, function, answer, **more))
        return function

    return add


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
    """Return the OpenAPI document of `operations`.

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
        said["requestBody"] = {"required": True, "content": _raw(one.raw)}
    if one.path == "/code":
        said["security"] = []
    return said


def _content(one: Operation, version: str) -> dict[str, Any]:
    if one.stream:
        return {"text/event-stream": {"schema": {"type": "string"}, **({"itemSchema": _EVENT} if version != "3.1" else {})}}
    if one.raw and one.method == "GET":
        return _raw(one.raw)
    return {"application/json": {"schema": {}}}


def _raw(kind: str) -> dict[str, Any]:
    """Describe bytes; generators of clients know no JSON Lines, so these are described as plain bytes too."""
    if kind.startswith("text/"):
        return {kind: {"schema": {"type": "string"}}}
    return {
        name: {"schema": {"type": "string", "format": "binary"}} for name in dict.fromkeys((kind, "application/octet-stream"))
    }

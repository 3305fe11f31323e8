"""The table of operations: routes, the OpenAPI document, the clients' methods and the page of the documentation come from it.

An operation is a function. What a request gives it, in path, query and body, are its parameters: their hints are the schema
and the check, as for tools.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from moryflow_sdk.arguments import ToolArguments
from starlette.responses import Response

from .replies import RequestError, json_reply

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


@dataclass(frozen=True)
class Operation:
    """One thing a client may ask for.

    :ivar handler: takes a :class:`Call` and the parameters; what it returns is the answer, JSON or a whole response.
    :ivar answer: what comes back, in words.
    :ivar stream: the answer is a stream of events; `raw` says that the body is not JSON but text of the given media type.
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
        """What clients call it."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """What it does, in one sentence."""
        return inspect.cleandoc(self.handler.__doc__ or "").split("\n\n")[0].replace("\n", " ")

    @cached_property
    def arguments(self) -> ToolArguments:
        """What the function takes."""
        return ToolArguments(self.name, self.handler, "at")

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """The parameters that stand in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    async def __call__(self, service: Service, request: Request) -> Response:
        """Answer `request`.

        :raises MoryflowError: why not.
        """
        given = {**(await self._given(request)), **{name: request.path_params[name] for name in self.in_path}}
        reply = await self.handler(Call(service, request), **self._checked(given))
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
    """Add the function below to the table."""

    def add(function: F) -> F:
        OPERATIONS.append(Operation(method, path, function, answer, **more))
        return function

    return add

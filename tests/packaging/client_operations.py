"""``moryflow_sdk/client/operations.py``: a method for each operation of the server's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moryflow.server.app import OPERATIONS
from moryflow.server.operations import Operation

HEAD = '''"""The operations of a server as methods; made from its table by tests/packaging/refresh_docs.py."""

# fmt: off
# ruff: noqa: E501

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote


class Operations:
    """What may be asked of a server; every method raises :class:`ClientError` when the server says no."""

    @abstractmethod
    async def _call(
        self, method: str, path: str, given: Mapping[str, Any], *, raw: bool = False, headers: Mapping[str, str] | None = None
    ) -> Any: ...
'''
BY_HAND = ("import_session", "events", "session_events")
"""Whose bodies are not JSON; the client has them itself."""
_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "Sequence[Any]",
    "object": "Mapping[str, Any]",
    "null": "None",
}


def module() -> str:
    """Return the text of the module."""
    return "\n".join([HEAD, *(_method(one) for one in OPERATIONS if one.name not in BY_HAND)])


def _method(one: Operation) -> str:
    schema = one.arguments.schema
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = [name for name in properties if name in schema.get("required", ())]
    optional = [name for name in properties if name not in required]
    parameters = ["self", *(f"{name}: {_type(properties[name])}" for name in required)]
    key = one.name == "prompt"
    named = [f"{name}: {_type(properties[name])} = {_default(properties[name])}" for name in optional]
    named += ['key: str = ""'] if key else []
    parameters += ["*", *named] if named else []
    head = f"    async def {one.name}({', '.join(parameters)}) -> Any:"
    if len(head) > 128:
        inside = ", ".join(parameters)
        head = f"    async def {one.name}(\n        {inside}\n    ) -> Any:"
        if len(inside) > 120:
            head = f"    async def {one.name}(\n" + "".join(f"        {each},\n" for each in parameters) + "    ) -> Any:"
    parts = one.path.split("/")[1:]
    path = "".join(f"/{{quote({part[1:-1]}, safe='')}}" if part.startswith("{") else f"/{part}" for part in parts)
    path = f'f"{path}"' if "{" in path else f'"{path}"'
    given = ", ".join(f'"{name}": {name}' for name in properties if name not in one.in_path)
    more = (", raw=True" if one.raw else "") + (', headers={"Idempotency-Key": key} if key else None' if key else "")
    summary = one.summary if len(one.summary) < 110 else f"{one.summary.partition(': ')[0].rstrip('.')}."
    doc = f'        """{summary}"""'
    call = f'        return await self._call("{one.method}", {path}, {{{given}}}{more})'
    if len(call) <= 128:
        return "\n".join([head, doc, call, ""])
    call = call.replace(f"{{{given}}}{more})", f"given{more})")
    return "\n".join([head, doc, f"        given: dict[str, Any] = {{{given}}}", call, ""])


def _type(found: Mapping[str, Any]) -> str:
    kinds = [_TYPES[str(part["type"])] for part in found.get("anyOf", (found,))]
    return " | ".join(dict.fromkeys(kinds))


def _default(found: Mapping[str, Any]) -> str:
    value = found.get("default")
    if isinstance(value, str):
        return f'"{value}"'
    return "()" if value == [] else repr(value)

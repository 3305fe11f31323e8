"""Turns a plugin of ``extensions.jsonl``, which speaks of ``register(api)``, into one of ours."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus" / "extensions.jsonl"
ADAPTER = """

from moryflow_sdk import Tool as _Tool, hookimpl as _hookimpl, SystemBlock as _Block


class _Api:
    def __init__(self):
        self.tools = []

    def add_tool(self, name, handler, schema, description):
        async def body(**arguments):
            return handler(**arguments)

        self.tools.append(_Tool(name=name, description=description, function=body, domain="read", schema=schema))

    def add_hook(self, event, function):
        from moryflow_sdk import HOOKS

        names = {info.dotted: info.name for info in HOOKS.values()}
        if event not in names:
            raise ValueError(f"unknown hook {event!r}")


@_hookimpl
def tools():
    api = _Api()
    register(api)
    return api.tools
"""


def cases(target: str) -> Iterator[dict[str, Any]]:
    """Yield the cases of one target that are one file with a given content."""
    for line in CORPUS.read_text("utf-8").splitlines():
        case = json.loads(line)
        if case["target"] == target and not {"fs", "steps", "files"} & case.keys():
            yield case


def content(case: Mapping[str, Any]) -> bytes:
    """Return what the file of a case holds."""
    if "b64" in case:
        return base64.b64decode(case["b64"])
    if "gen" in case:
        gen = case["gen"]
        body = gen.get("join", "").join([gen["repeat"]] * gen["n"])
        return f"{gen['prefix']}{body}{gen['tail']}{gen.get('close', '') * gen['n']}".encode()
    return case["text"].encode()


def adapted(case: Mapping[str, Any]) -> bytes:
    """Return the file of a plugin that this host can load, if it can be loaded at all."""
    source = content(case)
    return source + ADAPTER.encode() if b"def register" in source else source

"""Conversations for the benchmarks of compaction: nodes made by hand, and a model that stands in for a summarizer."""

from __future__ import annotations

import json
import re
from typing import Any

from moryflow.store import Commit, NewNode, Node
from moryflow_sdk import BaseProvider, Finished, ModelInfo, TextDelta, Usage, freeze

Item = tuple[str, dict[str, Any]]


def step(number: int, tool: str = "read", size: int = 800, **more: Any) -> list[Item]:
    call = {"id": f"c{number}", "name": tool, "arguments": json.dumps({"path": f"src/file_{number % 40}.py"})}
    output = {"call_id": f"c{number}", "tool": tool, "status": "ok", "output": "line of text\n" * (size // 13), **more}
    return [("assistant", {"text": "", "calls": [call]}), ("tool", output)]


def path_of(items: list[Item]) -> list[Node]:
    return [
        Node(f"n{i}", "s", i, f"n{i - 1}" if i else None, kind, freeze(payload), 1, "", "")
        for i, (kind, payload) in enumerate(items)
    ]


class Extractive(BaseProvider):
    """Stands in for a summarizer: keeps every sentence with "must", in the asked sections; or writes nothing of use."""

    name = "scripted"

    def __init__(self, window: int, *, keeps: bool = True) -> None:
        self.info = ModelInfo(id="scripted", name="scripted", provider="scripted", context_window=window)
        self.keeps = keeps
        self.sizes: list[int] = []

    def find(self, model: str) -> ModelInfo | None:
        return self.info

    def default(self, environ: Any) -> str | None:
        return self.info.id

    async def stream(self, request: Any) -> Any:
        text = "\n".join(message.text for message in request.messages[1:])
        self.sizes.append(sum(len(message.text) for message in request.messages) // 4)
        kept = dict.fromkeys(re.findall(r"It must [^.\n]+\.", text)) if self.keeps else ()
        yield TextDelta(text="## Goal\nMend it.\n## Constraints & Preferences\n" + "\n".join(kept))
        yield Finished(usage=Usage(input=self.sizes[-1], output=20))


async def append(host: Any, session: str, items: list[Item]) -> None:
    hold = await host.store.hold(session)
    await hold.commit(Commit(nodes=[NewNode(kind, payload) for kind, payload in items]))
    hold.release()

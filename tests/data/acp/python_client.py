"""Speaks with an agent through the Python SDK, with files: FOLDER OF THE SDK, FOLDER TO WORK IN, COMMAND."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])
from acp import PROTOCOL_VERSION, spawn_agent_process, text_block  # pyright: ignore
from acp.interfaces import Client  # pyright: ignore
from acp.schema import ClientCapabilities  # pyright: ignore


class Editor(Client):  # pyright: ignore
    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.asked = 0
        self.served: list[str] = []

    async def request_permission(self, options: Any, session_id: str, tool_call: Any, **_: Any) -> Any:
        self.asked += 1
        return {"outcome": {"outcome": "selected", "optionId": options[0].option_id}}

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.kinds.add(update.session_update)

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> Any:
        self.served.append("read")
        return {"content": Path(path).read_text()}

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> Any:
        self.served.append("write")
        Path(path).write_text(content)


async def main() -> None:
    editor = Editor()
    async with spawn_agent_process(editor, *sys.argv[3:], env=dict(os.environ)) as (agent, _):
        offered = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
        await agent.initialize(protocol_version=PROTOCOL_VERSION, client_capabilities=ClientCapabilities(**offered))
        session = (await agent.new_session(cwd=sys.argv[2], mcp_servers=[])).session_id
        turns = [await agent.prompt(session_id=session, prompt=[text_block("Go on.")]) for _ in range(3)]
    reasons = [turn.stop_reason for turn in turns]
    print(json.dumps({"reasons": reasons, "asked": editor.asked, "kinds": sorted(editor.kinds), "served": editor.served}))


asyncio.run(main())

"""A host with a running MCP server that ends, after a line, as its last argument says: ``ending_host.py HOME VAULT HOW``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from moryflow import open_host


async def main(home: str, vault: str, how: str) -> None:
    host = await open_host(home=Path(home), environ=dict(os.environ), probe=False)
    done = await host.call_tool("mcp__family__echo", {"text": "hi"}, vault=Path(vault))
    print(done.result.output, flush=True)
    if how == "in a call":
        await host.call_tool("mcp__family__echo", {"text": "wait"}, vault=Path(vault))
    await asyncio.to_thread(sys.stdin.readline)  # whoever waits has seen what runs
    if how == "exit":
        os._exit(3)
    if how == "error":
        raise RuntimeError(how)
    if how == "in order":
        await host.aclose()
        return
    await asyncio.sleep(3600)


asyncio.run(main(*sys.argv[1:]))

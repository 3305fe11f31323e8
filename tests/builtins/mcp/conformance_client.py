"""Our MCP client as the conformance suite starts it: ``python conformance_client.py URL``, the scenario in the environment.

It is the helper process that hosts use, asked as they ask it; logging in opens addresses as a browser would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from moryflow_builtins.mcp.helper import Helper, spec_of
from moryflow_sdk import ToolError
from moryflow_sdk.support.settings import ServerSettings

ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


def opened(url: str) -> None:
    """Open what a login shows, as a browser would, beside the helper that waits for it."""
    asyncio.get_running_loop().run_in_executor(None, lambda: urlopen(url, timeout=30).read())


async def call_all(helper: Helper, spec: Mapping[str, Any]) -> None:
    """List the tools and call each."""
    tools = (await helper.request({"do": "list", "server": spec}))["tools"]
    pinned = {tool["name"]: tool["hash"] for tool in tools}
    for tool in tools:
        message = {"do": "call", "server": spec, "tool": tool["name"], "args": ARGUMENTS.get(tool["name"], {})}
        await helper.request({**message, "pinned": pinned})


async def main(url: str) -> None:
    """Connect, log in where that is what is tested, list the tools and call each."""
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(Path(folder), os.environ)
        given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
        settings = ServerSettings(url=url, client_id=given.get("client_id"), client_secret=given.get("client_secret"))
        spec = spec_of("server", settings, os.environ, Path(folder), Path(folder))
        try:
            if os.environ.get("MCP_CONFORMANCE_SCENARIO", "").startswith("auth/"):
                await helper.request({"do": "login", "server": spec}, show=opened)
            try:
                await call_all(helper, spec)
            except ToolError as error:
                if error.code != "mcp_login":
                    raise
                await helper.request({"do": "login", "server": spec}, show=opened)  # as a person does who is told so
                await call_all(helper, spec)
        finally:
            await helper.close()


asyncio.run(main(sys.argv[-1]))

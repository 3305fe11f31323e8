"""A host with MCP servers of our own, reviewed as a person would review them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from moryflow.testing.isolated import IsolatedHost
from moryflow_builtins.mcp.helper import Helper, spec_of
from moryflow_builtins.mcp.lock import store_pin
from moryflow_builtins.mcp.review import Listing, accepted
from moryflow_sdk.support.settings import ServerSettings

pytest.importorskip("mcp", reason="the extra mcp is not installed")

NASTY = Path(__file__).with_name("nasty_server.py")


def settings_of(*arguments: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(NASTY), *arguments], **more}


class Servers(IsolatedHost):
    """An isolated host that can review servers before it opens."""

    async def listing(self, helper: Helper, name: str, entry: Mapping[str, Any]) -> Listing:
        server = ServerSettings.model_validate({**entry, "args": tuple(entry.get("args", ()))})
        spec = spec_of(name, server, os.environ, self.vault, self.home / "data" / "mcp")
        return Listing(await helper.request({"do": "list", "server": spec}))

    def review(self, servers: Mapping[str, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """Configure and pin servers, all through one helper process; return what each says."""
        self.configure({"mcp": {"servers": servers, **more}})
        self.environ |= {name: os.environ[name] for name in ("PATH", "HOME")} | {"SECRET_KEY": "s"}

        async def work() -> dict[str, Any]:
            (self.home / "data" / "mcp").mkdir(mode=0o700, parents=True, exist_ok=True)
            helper = Helper(self.home / "data" / "mcp", os.environ)
            found: dict[str, Any] = {}
            for name, entry in servers.items():
                try:
                    found[name] = await self.listing(helper, name, entry)
                except Exception as error:
                    found[name] = error
                    continue
                server = ServerSettings.model_validate({**entry, "args": tuple(entry.get("args", ()))})
                store_pin(self.home, name, accepted(name, server, found[name]))
            await helper.close()
            return found

        return self.wait(work())

    def call(self, server: str, tool: str, **args: Any) -> Any:
        """Call a tool of a server through the whole chain."""
        return self.call_tool(f"mcp__{server}__{tool}", **args)

    def lock(self) -> dict[str, Any]:
        return json.loads((self.home / "mcp.lock").read_text())["servers"]

    def tools(self) -> Sequence[str]:
        return [name for name in self.host.tools if name.startswith("mcp__")]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """An isolated host that can review servers."""
    host = Servers(tmp_path / "home", tmp_path / "vault")
    yield host
    host.close()

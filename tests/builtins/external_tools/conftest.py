"""Tools in files of a person's own, in a host with the control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

PLUGINS = ("permission", "audit", "truncation", "files", "shell", "config_hooks", "external_tools", "script_model")


@dataclass
class Toolbox:
    """The folder ``tools`` of a home, and the bench whose host loads it."""

    bench: Any

    def write(self, name: str, source: str, *, mode: int = 0o600) -> Path:
        """Write a file with tools; the SDK's names are there."""
        folder = self.bench.home / "tools"
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / f"{name}.py"
        file.write_text(dedent(source), encoding="utf-8")
        file.chmod(mode)
        return file

    def program(self, name: str, text: str | bytes, *, mode: int = 0o700) -> Path:
        """Write a program, or the description of one beside it."""
        file = self.write("placeholder", "").with_name(name)
        file.with_name("placeholder.py").unlink()
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)
        return file

    def enable(self, *rules: dict[str, str], **runtime: Any) -> None:
        """Switch external tools on."""
        self.bench.config(tools={"external": {"enabled": True}}, permission={"rules": list(rules)}, **runtime)

    async def loaded(self, **options: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the external tools by name, and what was left out."""
        async with self.bench.host(**options) as host:
            record = next(record for record in host.plugin_set.records if record.name == "external_tools")
            assert record.status == "loaded"
            mine = {name: owned.tool for name, owned in host.tools.items() if owned.plugin == "external_tools"}
            return mine, record.notes

    async def call(self, name: str, /, *, mode: str = "full_access", **args: Any) -> Any:
        """Call one tool through the whole chain and return its result."""
        async with self.bench.host() as host:
            return (await host.call_tool(name, args, vault=self.bench.vault, mode=mode)).result

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true."""
        for _ in range(3_000):
            if condition():
                return
            await asyncio.sleep(0.02)
        pytest.fail("it did not happen")

    async def expect_gone(self, pid: str) -> None:
        """Wait until a process has ended."""
        status = Path(f"/proc/{pid}/stat")
        await self.until(lambda: not status.exists() or ") Z " in status.read_text(encoding="utf-8"))


@pytest.fixture
def box(bench) -> Toolbox:
    """An empty toolbox; external tools are off."""
    bench.builtins = tuple(f"moryflow_builtins.{name}" for name in PLUGINS)
    return Toolbox(bench)

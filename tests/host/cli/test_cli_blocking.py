"""A plugin that keeps the whole host from running is named while it does so."""

from __future__ import annotations

import subprocess
import time
from typing import Any

SOURCE = """
from moryflow_sdk import hookimpl
import time
from pathlib import Path

@hookimpl
async def chat_params(params):
    deadline = time.monotonic() + 200
    while not Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
"""


def test_a_plugin_that_blocks_the_loop_is_named_before_it_ends(cli: Any) -> None:
    """A watchdog names it at once, with its line; it cannot stop it (ARCHITECTURE §4)."""
    cli.plugin("bad", SOURCE)
    log = cli.vault / "log"
    with log.open("wb") as sink:
        process = cli.start("run", "-m", cli.script("fine"), "hi", stderr=sink, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while "plugin bad" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, "it is named while it still blocks"
        said = log.read_text()
        assert "it has kept the whole host from running" in said and "bad.py:10" in said
        (cli.vault / "go").touch()
        assert process.communicate()[0] == "fine\n"
    finally:
        process.kill()

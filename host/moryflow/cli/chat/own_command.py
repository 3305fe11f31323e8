"""``!command``: the user's own command in the vault, without a model. What it prints goes with the next prompt."""

from __future__ import annotations

import asyncio
import codecs
from pathlib import Path

from moryflow_sdk import ConfigError

from moryflow.cli.terminal import plain
from moryflow.cli.terminal.streams import stderr

# How many characters of the end of an output go with the next prompt.
KEPT = 16_000


async def run_own(command: str, vault: Path) -> dict[str, str]:
    """Run `command` as the user's shell would, show what it prints, and return that as an attachment.

    :raises ConfigError: the folder is not on this machine.
    """
    if not vault.is_dir():
        raise ConfigError("the folder of this session is not on this machine", where=str(vault), next_step="run it there")
    process = await asyncio.create_subprocess_shell(
        command, cwd=vault, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    decode, text = codecs.getincrementaldecoder("utf-8")("replace").decode, ""
    try:
        while data := await process.stdout.read(65536):
            piece = decode(data)
            stderr().write(plain(piece))
            stderr().flush()
            text = (text + piece)[-2 * KEPT :]
        code = await process.wait()
    finally:
        if process.returncode is None:  # Ctrl-C; the terminal has told the command too
            process.terminate()
    ended = "" if not text or text.endswith("\n") else "\n"
    end = f"[exit code {code}]" if code else ""
    stderr().write(f"{ended}{end}\n" if end else ended)
    cut = "" if len(text) <= KEPT else "[the beginning is left out]\n"
    return {"path": f"! {command}", "text": f"{cut}{text[-KEPT:]}{ended}{end}"}

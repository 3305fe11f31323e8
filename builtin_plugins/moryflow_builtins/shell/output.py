"""A command's output: shown as it comes, kept up to 32 MiB, spooled to a file beyond that."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from moryflow_sdk import ToolResult

MEMORY_BYTES = 32 * 1024 * 1024
SPOOL_BYTES = 1024 * 1024 * 1024
SHOWN_TAIL = 64 * 1024


class Output:
    """Collects chunks; decodes across their borders."""

    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        self._folder = folder
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._chunks: list[bytes] = []
        self._size = 0
        self._spool: IO[bytes] | None = None
        self._path = folder
        self._tail = b""

    def add(self, chunk: bytes) -> None:
        """Take what the command printed; what is over a gibibyte is counted and dropped."""
        self._size += len(chunk)
        self._show(self._decoder.decode(chunk))
        if self._spool is None and self._size > MEMORY_BYTES:
            self._begin_spool()
        if self._spool is None:
            self._chunks.append(chunk)
            return
        if self._size <= SPOOL_BYTES:
            self._spool.write(chunk)
        self._tail = (self._tail + chunk)[-SHOWN_TAIL:]

    def _begin_spool(self) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix="spool-")
        self._spool, self._path = os.fdopen(descriptor, "wb"), Path(name)
        self._spool.writelines(self._chunks)
        self._chunks = []

    def discard(self) -> None:
        """Remove the spooled file: nobody will ask for the result."""
        if self._spool is not None:
            self._spool.close()
            self._path.unlink(missing_ok=True)

    def result(self, ended: str, code: int | None, *, stopped: bool, sandboxed: bool) -> ToolResult:
        """Return what the model reads: the output, then how the command ended."""
        note = "" if ended == "exit code 0" else f"[{ended}]"
        if self._spool is not None:
            self._spool.close()
            shown = self._tail.decode("utf-8", "replace")
            shown = f"[{self._size} bytes; these are the last {len(self._tail)}]\n{shown}"
        else:
            shown = b"".join(self._chunks).decode("utf-8", "replace")
        text = f"{shown.rstrip()}\n{note}".strip() if note else shown
        return ToolResult(
            status="error" if stopped else "ok",
            code="timeout" if stopped else None,
            output=text or f"[no output, {ended}]",
            title=ended,
            metadata={"exit_code": code, "bytes": self._size, "sandboxed": sandboxed},
            spool=str(self._path) if self._spool is not None else None,
        )

"""What comes in from files and standard input."""

from __future__ import annotations

import base64
import os
import select
import stat
import sys
from pathlib import Path
from typing import IO, Any

from moryflow_sdk import ConfigError

MAX_INPUT_BYTES = 8 * 1024 * 1024
_PIECE = 64 * 1024
PATIENCE_SECONDS = 0.5
"""How long to wait for the first byte of a pipe when there is a prompt already; an inherited pipe may never speak."""

_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def piped_text(*, have_prompt: bool) -> str | None:
    """Return the text on standard input when something is piped in, else ``None``.

    :raises ConfigError: it is binary or too large.
    """
    stream = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        return None
    kind = os.fstat(stream.fileno()).st_mode
    waits = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
    if have_prompt and waits and not select.select([stream], [], [], PATIENCE_SECONDS)[0]:
        return None
    data = _read(stream.buffer)
    if len(data) > MAX_INPUT_BYTES:
        raise ConfigError(
            f"standard input is larger than {MAX_INPUT_BYTES // 2**20} MiB", next_step="save it in the vault and name the file"
        )
    return as_text(data, "standard input") or None


def _read(file: IO[bytes]) -> bytes:
    """Return what is in `file`; of what is too large, a little more than the limit.

    Not in one go: Python takes memory for all that is asked for, and once glibc has given back a block of 8 MiB, it never
    again returns smaller ones to the system. A command's output of 20 MB cost 12 MB more.
    """
    data = bytearray()
    while len(data) <= MAX_INPUT_BYTES and (piece := file.read(_PIECE)):
        data += piece
    return bytes(data)


def as_text(data: bytes, where: str) -> str:
    """Return `data` as text.

    :raises ConfigError: it is not text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("this is not text (UTF-8)", where=where, next_step="give a text file, or an image with -f") from error
    if "\0" in text:
        raise ConfigError("this is binary, not text", where=where, next_step="give a text file, or an image with -f")
    return text


def attachment(path: Path) -> tuple[str, dict[str, Any]]:
    """Return (``files`` or ``images``, the attachment) for one ``-f FILE``.

    :raises ConfigError: it cannot be read, is too large, or is neither text nor an image.
    """
    try:
        with path.open("rb") as file:
            data = _read(file)
    except OSError as error:
        raise ConfigError(
            f"cannot read the file: {error.strerror}", where=str(path), next_step="check the path after -f"
        ) from error
    if len(data) > MAX_INPUT_BYTES:
        raise ConfigError(
            f"the file is larger than {MAX_INPUT_BYTES // 2**20} MiB", where=str(path), next_step="name it in the prompt"
        )
    for magic, media_type in _IMAGES.items():
        if data.startswith(magic):
            return "images", {"media_type": media_type, "data": base64.b64encode(data).decode("ascii")}
    return "files", {"path": str(path), "text": as_text(data, str(path))}

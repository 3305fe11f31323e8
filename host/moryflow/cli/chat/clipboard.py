"""Images that are pasted: by their path, or from the clipboard as files that last as long as the conversation."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import mention

# The commands that print a clipboard's image, each with the variable that must be set if it is to find a clipboard.
_COMMANDS = (
    ("WAYLAND_DISPLAY", ("wl-paste", "--no-newline", "--type", "image/png")),
    ("DISPLAY", ("xclip", "-selection", "clipboard", "-target", "image/png", "-out")),
    ("", ("pngpaste", "-")),
)
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def image_of(pasted: str) -> str:
    """Return the mention of the image whose path was pasted, an empty text if something else was pasted."""
    try:
        words = shlex.split(pasted.strip()) if len(pasted) < 4096 else []
    except ValueError:
        return ""
    path = Path(words[0].removeprefix("file://")) if len(words) == 1 else None
    try:
        return mention(str(path)) if path and path.is_absolute() and path.suffix.lower() in _IMAGES and path.is_file() else ""
    except OSError:
        return ""


class Clipboard:
    """Images that were copied, as files that last as long as the conversation."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def image(self) -> str:
        """Return the mention of the image that was copied; if there is none, say so and return an empty text."""
        data = _copied_image()
        if not data:
            sys.stderr.write("no image in the clipboard, or nothing here that reads it (wl-paste, xclip, pngpaste)\n")
            return ""
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="moryflow-")
        path = Path(self._folder.name, f"{hashlib.sha256(data).hexdigest()[:8]}.png")
        path.write_bytes(data)
        return f"{mention(str(path))} "


def _copied_image() -> bytes:
    for variable, command in _COMMANDS:
        if (variable and variable not in os.environ) or shutil.which(command[0]) is None:
            continue
        try:
            found = subprocess.run(command, capture_output=True, check=False, timeout=3).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found.startswith(b"\x89PNG"):
            return found
    return b""

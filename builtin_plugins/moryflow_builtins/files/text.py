"""Bytes as text and back, so that nothing but the change differs: encoding, byte-order mark and line ends are kept."""

from __future__ import annotations

from dataclasses import dataclass

from moryflow_sdk import ToolError
from moryflow_sdk.support.texts import looks_binary, mark_of

MAX_BYTES = 32 * 1024 * 1024
"""Files over this are neither edited nor read as one piece."""

FALLBACK = "latin-1"
"""Takes every byte, so what is not touched comes back as it was."""


@dataclass(frozen=True)
class FileText:
    """The text of a file and what is needed to write it again."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str, name: str) -> bytes:
        """Return `text` as bytes of this file.

        :raises ToolError: ``encoding``, the file's encoding cannot write a character of it; ``binary``, a NUL would come in.
        """
        try:
            data = self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = ascii(text[error.start])
            raise ToolError(
                f"{name} is {self.encoding} text and cannot hold {character}",
                code="encoding",
                next_step="leave that character out, or convert the file to UTF-8 first",
            ) from error
        if "\0" in text and "\0" not in self.text:
            message = f"{name} would be a binary file: what is to be written holds a NUL"
            raise ToolError(message, code="binary", next_step="leave it out; what is no text is made by a program")
        return data


def decode(data: bytes, name: str) -> FileText:
    """Return `data` as text: by its mark, as UTF-8, or else as :data:`FALLBACK`.

    :raises ToolError: ``binary``.
    """
    mark, encoding = mark_of(data)
    try:
        if not looks_binary(data):
            return FileText(data[len(mark) :].decode(encoding or "utf-8"), encoding or "utf-8", mark)
    except UnicodeDecodeError:
        if encoding in ("", "utf-8"):
            return FileText(data.decode(FALLBACK), FALLBACK)
    raise ToolError(f"{name} is a binary file", code="binary", next_step="change it with a program made for it")


def encode_new(text: str, name: str) -> bytes:
    """Return the content of a new file."""
    return FileText("").encode(text, name)

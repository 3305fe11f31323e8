"""What a file is when it is not text: images with their size, everything else by its first bytes."""

from __future__ import annotations

from dataclasses import dataclass

_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", "PDF document"), (b"PK\x03\x04", "zip archive, or a document in one"), (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"), (b"\xfd7zXZ\0", "xz data"), (b"\x28\xb5\x2f\xfd", "zstandard data"),
    (b"7z\xbc\xaf", "7-zip archive"),
    (b"\x7fELF", "ELF program or library"), (b"MZ", "Windows program or library"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program or library"), (b"\0asm", "WebAssembly module"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"OggS", "Ogg audio or video"), (b"ID3", "MP3 audio"), (b"RIFF", "RIFF audio or video"),
    (b"\0\0\0\x18ftyp", "MP4 video"), (b"\0\0\0\x1cftyp", "MP4 video"), (b"\0\0\0\x20ftyp", "MP4 video"),
    (b"wOFF", "web font"), (b"wOF2", "web font"),
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """An image by its header: media type and size in pixels, where the header has it."""

    media_type: str
    width: int | None
    height: int | None

    def __str__(self) -> str:
        size = f", {self.width} × {self.height} pixels" if self.width else ""
        return f"{self.media_type.removeprefix('image/').upper()} image{size}"


def kind_of(head: bytes) -> str:
    """Return what the beginning of a file says it is."""
    return next((kind for magic, kind in _KINDS if head.startswith(magic)), "unknown format")


def picture_of(head: bytes) -> Picture | None:
    """Return the image that begins with `head` (some hundred kilobytes find the size of any JPEG), or nothing."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return Picture("image/png", _big(head[16:20]), _big(head[20:24]))
    if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
        return Picture("image/gif", _little(head[6:8]), _little(head[8:10]))
    if head.startswith(b"\xff\xd8\xff"):
        return Picture("image/jpeg", *_jpeg_size(head))
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Picture("image/webp", *_webp_size(head))
    return None


def _jpeg_size(head: bytes) -> tuple[int | None, int | None]:
    """Follow the segments to the frame header, which holds the size."""
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _big(head[position + 7 : position + 9]), _big(head[position + 5 : position + 7])
        position += 2 + max(_big(head[position + 2 : position + 4]), 2)
    return None, None


def _webp_size(head: bytes) -> tuple[int | None, int | None]:
    match head[12:16]:
        case b"VP8X" if len(head) >= 30:
            return _little(head[24:27]) + 1, _little(head[27:30]) + 1
        case b"VP8 " if len(head) >= 30:
            return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF
        case b"VP8L" if len(head) >= 25:
            bits = _little(head[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            return None, None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")

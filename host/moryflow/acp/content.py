"""Content in both directions: the blocks of a prompt; the title, kind, locations and diffs of a tool call."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from moryflow_sdk.support.texts import visible

from .connection import INVALID_PARAMS, RpcError

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
TITLE = 120
"""Characters of the title of a call."""
MOST_OF_A_FILE = 1 << 20
"""Bytes of a file up to which its difference is shown whole."""

_KINDS = {
    "read": "read", "edit": "edit", "bash": "execute", "web_fetch": "fetch", "web_search": "search", "task": "think",
}  # fmt: skip
"""What kind a call of a domain is to an editor."""
_OTHER_KINDS = {"delete": "delete", "move": "move", "glob": "search", "grep": "search", "search_in_file": "search"}
"""The kind of a tool whose domain does not say it."""


class EditorPrompt(NamedTuple):
    """A prompt, as :meth:`moryflow.runtime.session.Session.prompt` takes it."""

    text: str
    typed: int | None
    files: list[dict[str, str]]
    images: list[dict[str, str]]


def prompt_of(blocks: Any, vault: Path) -> EditorPrompt:
    """Return the prompt that blocks of content stand for.

    What is named in the text stands below it under a number, so that no name of a file is taken for a person's words.

    :raises RpcError: a block is not one of those that are understood here.
    """
    if not isinstance(blocks, list) or not blocks:
        raise RpcError(INVALID_PARAMS, "a prompt is a list of blocks, and has one at least")
    made = EditorPrompt("", 0, [], [])
    said: list[str] = []
    named: list[str] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                said.append(text)
            case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                made.images.append(_image(data, kind))
            case {"type": "resource_link", "uri": str(uri)}:
                named.append(_place(uri, vault))
                said.append(f"[{len(named)}]")
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                named.append(f"{_place(uri, vault)} (attached)")
                said.append(f"[{len(named)}]")
                made.files.append({"path": _place(uri, vault), "text": text})
            case {"type": "resource", "resource": {"blob": str(data), "mimeType": str(kind)}}:
                made.images.append(_image(data, kind))
            case _:
                kind = block.get("type") if isinstance(block, dict) else block
                raise RpcError(INVALID_PARAMS, f"this block of a prompt is not understood: {str(kind)[:100]}")
    text = "".join(said)
    below = "".join(f"\n[{number}] {name}" for number, name in enumerate(named, 1))
    return made._replace(text=f"{text}\n{below}" if below else text, typed=len(text))


def _image(data: str, kind: str) -> dict[str, str]:
    if kind not in IMAGES:
        raise RpcError(INVALID_PARAMS, f"{kind[:100]} cannot be attached", f"one of {', '.join(IMAGES)}, or text")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RpcError(INVALID_PARAMS, "the data of an image is not base64") from error
    return {"media_type": kind, "data": data}


def _place(uri: str, vault: Path) -> str:
    """Return a file as it is called from `vault` on, with the lines that are meant; what is not a file as it is."""
    try:
        parts = urlsplit(uri)
        path = Path(unquote(parts.path)) if parts.scheme == "file" else None
    except ValueError:
        path, parts = None, None
    if path is None or parts is None:
        found = uri
    else:
        found = str(path.relative_to(vault)) if path.is_relative_to(vault) else str(path)
        found += f"#{parts.fragment}" if parts.fragment else ""
    return visible(found[:2_000]).replace('"', "%22").replace("<", "%3C")


# -------------------------------------------------------------------- calls


def kind_of(tool: str, domain: str) -> str:
    """Return what kind of call an editor is told of."""
    return _OTHER_KINDS.get(tool) or _KINDS.get(domain, "other")


def title_of(tool: str, args: Any) -> str:
    """Return a call in one line: the tool and what it is about."""
    values = (args.get("path"), *args.values()) if isinstance(args, Mapping) else (args,)
    about = next((str(value) for value in values if isinstance(value, str) and value.strip()), "")
    line = visible(f"{tool} {about.strip().partition(chr(10))[0]}".strip())
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


def path_of(target: str, vault: Path) -> Path | None:
    """Return the file that a target stands for."""
    kind, _, rest = target.partition(":")
    if kind == "vault":
        return vault / rest.lstrip("/")
    return Path(rest) if kind == "fs" else None


def places_of(targets: Sequence[str], vault: Path, args: Any) -> list[dict[str, Any]]:
    """Return where in which files a call works."""
    paths = [path for target in targets if (path := path_of(target, vault)) is not None]
    line = args.get("offset") if isinstance(args, Mapping) and len(paths) == 1 else None
    more = {"line": line} if isinstance(line, int) and line > 0 else {}
    return [{"path": str(path), **more} for path in paths]


def text_block(text: str) -> dict[str, Any]:
    """Return a text as the content of a call."""
    return {"type": "content", "content": {"type": "text", "text": text}}


def fenced(text: str, language: str = "") -> dict[str, Any]:
    """Return a text as it is, where editors would read Markdown; what nobody would see in it is spelled out."""
    longest = max((len(found) for found in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return text_block(f"{fence}{language}\n{visible(text, keep=chr(10) + chr(9))}\n{fence}")


def difference(path: Path, old: str | None, new: str) -> dict[str, Any]:
    """Return the two texts of a file."""
    before = {} if old is None else {"oldText": old}
    return {"type": "diff", "path": str(path), **before, "newText": new}


def content_of(path: Path) -> str | None:
    """Return the text of a file; nothing of what is not there, is not a file, is not text, or is large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_OF_A_FILE:
            return None
        try:
            return file.read(MOST_OF_A_FILE).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            return None


def previewed(preview: str, targets: Sequence[str], vault: Path) -> list[dict[str, Any]]:
    """Return what a question shows of a call: the differences in its preview where all of it is understood, else its text."""
    if not preview:
        return []
    found = list(_differences(preview, targets, vault))
    if None in found:
        return [fenced(preview, "diff")]
    return [one for one in found if one is not None]


def _differences(preview: str, targets: Sequence[str], vault: Path) -> Iterator[dict[str, Any] | None]:
    """Yield each changed place of a preview: lines of a file begin with a blank, a sign or a backslash, of a place with @@."""
    path = path_of(targets[0], vault) if len(targets) == 1 else None
    old: list[str] = []
    new: list[str] = []
    fresh = False

    def made() -> Iterator[dict[str, Any] | None]:
        if old or new:
            yield difference(path, None if fresh else "\n".join(old), "\n".join(new)) if path is not None else None
            old.clear()
            new.clear()

    for line in (visible(line, keep="\t") for line in preview.split("\n")):
        match line[:1]:
            case "@":
                yield from made()
            case " ":
                old.append(line[1:])
                new.append(line[1:])
            case "-":
                old.append(line[1:])
            case "+":
                new.append(line[1:])
            case "\\":
                pass
            case _ if path is not None and line.startswith("new file"):
                fresh = True
            case _:
                yield None
    yield from made()

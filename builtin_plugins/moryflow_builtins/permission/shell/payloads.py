"""The files that a patch changes, and the files in an archive: their paths are judged like operands.

A patch is read more loosely than ``git apply``, ``git am`` or ``patch`` reads it: a path may be judged in vain, but none is
missed. A text that is not understood is asked about. Reading an archive is bounded.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.protected_files import read_start

from .effects import CommandEffects, CommandItem, EffectUnknown, Patch, names_of, operands_of, small_number, values_of
from .syntax import Arg

MAX_BYTES = 4 * 1024 * 1024
"""The longest patch that is read."""

MAX_NAMES = 2000
"""How many files a patch may name."""


_ONLY_LOOKS = frozenset({"stat", "numstat", "summary", "check"})
_HARMLESS = _ONLY_LOOKS | {"p", "v", "verbose", "z", "R", "reverse", "directory", "index", "cached", "recount"}
"""Options with which ``--check`` or ``--stat`` only reads the patch. With others, ``--no-check`` for one, git may apply it."""
_NO_PATCH = frozenset({"abort", "continue", "skip", "quit", "show-current-patch", "retry", "resolved", "r"})


def git_patch(verb: str, found: Sequence[CommandItem], effects: CommandEffects) -> None:
    """Record the patches that ``git apply`` or ``git am`` applies."""
    letters = names_of(found)
    files = tuple(operands_of(found))
    only_looks = verb == "apply" and letters & _ONLY_LOOKS and letters <= _HARMLESS
    if only_looks or (verb == "am" and letters & _NO_PATCH and not files):
        return
    folder = "".join([value.text for value in values_of(found, "directory")][-1:])
    merges = verb == "am" and "no-3way" not in letters
    shape = Patch(strip=small_number(found, "p", "strip"), directory=folder, by_git=True, may_merge=merges)
    _add_patches(effects, f"git {verb}", files, shape)


def plain_patch(found: Sequence[CommandItem], effects: CommandEffects) -> None:
    """Record the patches that ``patch`` applies."""
    if "dry-run" in names_of(found):
        return
    operands, strip = operands_of(found), small_number(found, "p", "strip")
    _add_patches(effects, "patch", (*values_of(found, "i", "input"), *operands[1:2]), Patch(strip=strip, given=bool(operands)))


def _add_patches(effects: CommandEffects, why: str, files: tuple[Arg, ...], shape: Patch) -> None:
    named = tuple(file for file in files if file.text != "-")
    if named:
        effects.patches.append(shape._replace(files=named))
    if files and len(named) == len(files):
        return
    if effects.stdin is not None:
        effects.patches.append(shape._replace(text=effects.stdin_text))
    elif effects.stdin_file is not None:
        effects.patches.append(shape._replace(files=(effects.stdin_file,), outside=True))
    else:
        effects.guard_unseen(f"{why} changes whatever the text it is fed says")


GIT_CONFIGURATION = (".git/config", ".git/config.worktree", "~/.gitconfig", "~/.config/git/config", "/etc/gitconfig")
"""Files in which git looks for ``am.threeWay``; relative paths start at the vault."""


def merges_by_configuration(files: Iterable[str | None]) -> bool:
    """Whether ``am.threeWay`` may be set: then ``git am`` follows renames, to paths that are not in the patch."""
    for file in filter(None, files):
        try:
            if b"threeway" in read_start(file, MAX_BYTES).lower():
                return True
        except OSError:
            continue
    return False


# ---------------------------------------------------------------- the paths in a patch

_NAMED = re.compile(r"(?:\+\+\+|---|\*\*\*|Index:|rename (?:from|to)|copy (?:from|to)|Prereq:)[ \t](.+)")
_LINK = re.compile(r"(?:new file|new|deleted file|old) mode 1[26]0000|index [0-9a-f]+\.\.[0-9a-f]+ 1[26]0000")
_ENCODED = re.compile(r"content-transfer-encoding:\s*(?:base64|quoted-printable)", re.IGNORECASE)
_ED = re.compile(r"\d+(?:,\d+)?[acdis]\s*|\d+(?:,\d+)?s/.*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_INDENT = re.compile(r"(?:[ \tX]|- )+")
"""Text at the start of a line that ``patch`` ignores."""


def paths_in(text: str, patch: Patch) -> list[str]:
    """Return the paths that the patch in `text` changes, in every way the program may read them.

    :raises EffectUnknown: the paths cannot be determined.
    """
    names: dict[tuple[str, bool], None] = {}
    for line in map(_without_indent, text.replace("\r\n", "\n").split("\n")):
        if _ENCODED.match(line):
            raise EffectUnknown("it is encoded as mail")
        if _LINK.match(line):
            raise EffectUnknown("it makes a link or a submodule")
        if line.startswith("# This series applies on GIT commit"):
            raise EffectUnknown("it is a list of other patches")
        if not patch.by_git and _ED.fullmatch(line):
            raise EffectUnknown("it may be a script for ed")
        names.update(dict.fromkeys(_names(line)))
        if len(names) > MAX_NAMES:
            raise EffectUnknown(f"it names more than {MAX_NAMES} files")
    names.pop(("/dev/null", False), None)
    if not names and not patch.given:
        raise EffectUnknown("it names no file")
    found = (path for name, moved in names for path in _strip_folders(name, patch, moved=moved))
    prefix = f"{patch.directory.rstrip('/')}/" if patch.directory else ""
    return list(dict.fromkeys(f"{prefix}{path}" for path in found if path))


def _without_indent(line: str) -> str:
    found = _INDENT.match(line)
    return line[found.end() :] if found else line


def _names(line: str) -> Iterator[tuple[str, bool]]:
    """Yield each name in a line of a patch, and whether it is the name of a rename or copy, which has no ``a/`` in front."""
    if line.startswith("diff --git "):
        yield from ((name, False) for name in _header_names(line.removeprefix("diff --git ")))
        return
    found = _NAMED.match(line)
    if found is None:
        return
    moved = line.startswith(("rename", "copy"))
    rest = found.group(1)
    quoted = _QUOTED.match(rest.lstrip())
    if quoted:
        yield _unquote(quoted.group(1)), moved
        return
    for text in (rest, rest.strip()):
        name = text.partition("\t")[0]
        yield from ((one, moved) for one in (name, name.rstrip(), name.strip().partition(" ")[0]))


def _header_names(rest: str) -> Iterator[str]:
    """Yield the two names of ``diff --git a/x b/x``: quoted, one word each, or equal after their first folder."""
    for quoted in _QUOTED.finditer(rest):
        yield _unquote(quoted.group(1))
    words = rest.rstrip().split(" ")
    if len(words) == 2:
        yield from (word for word in words if not word.startswith('"'))
        return
    half = len(rest.rstrip()) // 2
    yield from (part for part in (rest[:half], rest[half + 1 :].rstrip()) if part and '"' not in part)


def _unquote(text: str) -> str:
    def one(found: re.Match[bytes]) -> bytes:
        char = found.group(1)
        return bytes((int(char, 8) & 0xFF,)) if char.isdigit() else _LETTERS.get(char, char)

    return _ESCAPE.sub(one, text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _strip_folders(name: str, patch: Patch, *, moved: bool) -> Iterator[str]:
    """Yield `name` without the first folders, as many as the patch strips; if that is unknown, in each possible way."""
    parts = [part for part in name.split("/") if part]
    if not parts:
        return
    if patch.strip is None:
        yield "/".join(parts[1:] or parts) if patch.by_git else parts[-1]
        yield from (name,) if moved or not patch.by_git else ()
        return
    for strip in (patch.strip, max(patch.strip - 1, 0)) if moved else (patch.strip,):
        yield "/".join(parts[strip:] or parts[-1:])
        yield "/".join(name.split("/")[strip:]) if strip else name


# ---------------------------------------------------------------- archives

MAX_MEMBERS = 20_000
"""How many files of an archive are judged."""

MAX_UNPACKED = 128 * 1024 * 1024
"""How many bytes of an archive are read, after decompression."""


class UnreadableArchive(Exception):
    """The archive cannot be read, or is too large to read."""


def archive_members(path: str) -> Iterator[tuple[str, bool]]:
    """Yield the paths in an archive, each with ``False``, and the goals of its links, each with ``True``.

    :raises FileNotFoundError: there is no such file.
    :raises UnreadableArchive: not all of the archive can be listed.
    """
    import lzma  # importing the archive modules takes as long as importing the judge
    import tarfile
    import zipfile
    import zlib

    try:
        yield from _members(path)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise UnreadableArchive from error


class _Bounded(io.RawIOBase):
    """A stream that raises :class:`UnreadableArchive` after :data:`MAX_UNPACKED` bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, MAX_UNPACKED

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._left -= len(data)
        if self._left < 0:
            raise UnreadableArchive
        return data


def _members(path: str) -> Iterator[tuple[str, bool]]:
    with open_regular(path, follow=False) as stream:
        head = stream.read(8)
        stream.seek(0)
        members = _zip_members(stream) if head.startswith(b"PK") else _tar_members(stream, head)
        for count, member in enumerate(members):
            if count >= MAX_MEMBERS:
                raise UnreadableArchive
            yield member


def _zip_members(stream: IO[bytes]) -> Iterator[tuple[str, bool]]:
    if os.fstat(stream.fileno()).st_size > MAX_UNPACKED:
        raise UnreadableArchive
    from zipfile import ZipFile

    with ZipFile(stream) as archive:
        for member in archive.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UnreadableArchive  # the goal of the link is in its content, which is not read
            yield member.filename.replace("\\", "/"), False


def _tar_members(stream: IO[bytes], head: bytes) -> Iterator[tuple[str, bool]]:
    import tarfile

    with _open_plain(stream, head) as plain, tarfile.open(fileobj=_Bounded(plain), mode="r|") as archive:  # type: ignore[arg-type]
        for member in archive:
            yield member.name, False
            if member.issym():
                yield os.path.normpath(f"{member.name.rpartition('/')[0] or '.'}/{member.linkname}"), True


def _open_plain(stream: IO[bytes], head: bytes) -> AbstractContextManager[Any]:
    import bz2
    import gzip
    import lzma

    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if head.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        return lzma.LZMAFile(stream)
    return nullcontext(stream)

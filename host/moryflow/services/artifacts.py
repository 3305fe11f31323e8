"""Outputs that are too large for the context, each stored as a file with a row in the session store.

The file goes into the vault, where the agent can read it, or below Moryflow's home if the vault cannot be written or the
profile is ``remote``. When the file expires, the row stays and says so. Folders of outputs are private, a file is written
whole or not at all, and neither is ever reached through a link.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moryflow_sdk import Artifact, ToolError

from moryflow.base.events import written

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext


EVERYTHING = 1_000_000
log = logging.getLogger(__name__)
# How long a file without a record is kept, for example after its session was deleted.
ORPHAN_TTL = timedelta(days=7)
VAULT_FOLDER = ".agent-output"
HOME_FOLDER = "agent-output"
# Characters or bytes processed at a time, so that a large output is never copied as a whole.
CHUNK = 1 << 18
Content = str | bytes | Path
_NAME = re.compile(r"(\d{8}T\d{6}Z)-[A-Za-z0-9_]{1,40}-([0-9a-f]{12})\.txt")
_STAMP = "%Y%m%dT%H%M%SZ"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TurnRows:
    """The records of outputs, as one turn reads and writes them.

    A new record waits for the turn's next commit, so that an output and its call are stored together or not at all.
    """

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope
        self._store = scope.around.store

    async def add(self, artifact: Artifact) -> None:
        """Keep a new record, and a copy of the file if the store is shared."""
        await self._store.keep_output(artifact)
        self._scope.artifacts.append(artifact)

    async def copy(self, artifact: Artifact, offset: int, limit: int) -> bytes | None:
        """Return a part of the copy in a shared store."""
        return await self._store.output(artifact, offset, limit)

    async def get(self, artifact: str) -> Artifact | None:
        waiting = next((item for item in self._scope.artifacts if item.id == artifact), None)
        return waiting or await self._store.artifact(artifact)

    async def list(self, *, session: str | None = None, limit: int | None = None) -> Sequence[Artifact]:
        """Return records, newest first; all of them without a `limit`."""
        return await self._store.artifacts(session, limit=limit or EVERYTHING)

    async def expire(self, artifact: str) -> None:
        """Mark a record: its file is gone."""
        await self._store.update_artifact(artifact, state="expired")


class ArtifactService:
    """Stores, reads and expires outputs for one session; implements :class:`moryflow_sdk.services.Artifacts`.

    :param vault: the folder where the agent works; ``None`` if nothing may be written there (profile ``remote``).
    """

    def __init__(self, home: Path, rows: TurnRows, *, session: str, vault: Path | None) -> None:
        self._rows = rows
        self._session = session
        below_home = OutputFolder(home.resolve(), HOME_FOLDER)
        self._places = (OutputFolder(vault, VAULT_FOLDER), below_home) if vault else (below_home,)

    async def store(self, content: Content, *, call_id: str, tool: str, ttl_days: float | None = 7) -> Artifact:
        created, artifact = datetime.now(UTC), new_id()
        stored = await asyncio.to_thread(put, content, file_name(created, tool, artifact), self._places)
        row = Artifact(
            id=artifact,
            session=self._session,
            call_id=call_id,
            tool=tool,
            path=str(stored.path),
            size=stored.size,
            sha256=stored.sha256,
            lines=stored.lines,
            created=written(created),
            expires=written(created + timedelta(days=ttl_days)) if ttl_days else None,
        )
        await self._rows.add(row)
        return row

    async def get(self, artifact: str) -> Artifact | None:
        return await self._rows.get(artifact)

    async def list(self, *, session: str | None = None, limit: int = 100) -> Sequence[Artifact]:
        return await self._rows.list(session=session, limit=limit)

    async def read(self, artifact: str, *, offset: int = 0, limit: int = 65536) -> bytes:
        row = await self._rows.get(artifact)
        if row is None:
            raise ToolError(f"no output has the id {artifact!r}", code="not_found", next_step="moryflow output list")
        if row.state == "expired":
            raise _expiry_error(row)
        path = Path(row.path)
        try:
            return await asyncio.to_thread(read, _place_of(path), path.name, max(offset, 0), max(limit, 0))
        except FileNotFoundError:
            if (copy := await self._rows.copy(row, max(offset, 0), max(limit, 0))) is not None:
                return copy  # it was made on another machine
            await self._rows.expire(row.id)
            raise _expiry_error(row) from None
        except OSError as error:
            raise ToolError(f"the output cannot be read: {error.strerror}", code="io", where=row.path) from error

    async def expire(self) -> int:
        """Remove expired files from every folder that holds outputs, and mark their rows; return how many were removed."""
        now = datetime.now(UTC)
        stored = {row.id: row for row in await self._rows.list() if row.state == "stored"}
        removed = await asyncio.to_thread(self._sweep, stored, now)
        gone = {row.id for row in stored.values() if _is_expired(row, now)} | (stored.keys() & set(removed))
        for artifact in gone:
            await self._rows.expire(artifact)
        return len(removed)

    def _sweep(self, stored: dict[str, Artifact], now: datetime) -> list[str]:
        def due(artifact: str, created: datetime) -> bool:
            row = stored.get(artifact)
            return created + ORPHAN_TTL < now if row is None else _is_expired(row, now)

        removed: list[str] = []
        for place in self._known_places(stored):
            try:
                removed += remove_due(place, due)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("outputs in %s were not looked through: %s", place.path, error.strerror)
        return removed

    def _known_places(self, stored: dict[str, Artifact]) -> set[OutputFolder]:
        named = {_place_of(Path(row.path)) for row in stored.values() if parse_name(Path(row.path).name)}
        ours = (place for place in named if place.name in (VAULT_FOLDER, HOME_FOLDER))
        straight = {place for place in ours if place.root.resolve() == place.root}
        return straight | set(self._places)


def remove_files(rows: Sequence[Artifact]) -> None:
    """Remove the files of outputs whose records are gone; a file that cannot be removed now is swept later as an orphan."""
    wanted = {row.id for row in rows}
    for place in {_place_of(Path(row.path)) for row in rows}:
        if place.name in (VAULT_FOLDER, HOME_FOLDER) and place.root.resolve() == place.root:
            with suppress(OSError):
                remove_due(place, lambda artifact, _: artifact in wanted)


def _place_of(path: Path) -> OutputFolder:
    return OutputFolder(path.parent.parent, path.parent.name)


def _is_expired(row: Artifact, now: datetime) -> bool:
    return row.expires is not None and datetime.fromisoformat(row.expires) < now


def _expiry_error(row: Artifact) -> ToolError:
    return ToolError(f"output {row.id} of {row.tool} has expired; its file is gone", code="expired", where=row.path)


class OutputFolder(NamedTuple):
    """A folder for outputs: `name` directly below `root`."""

    root: Path
    name: str

    @property
    def path(self) -> Path:
        return self.root / self.name


# Bytes, lines and SHA-256 of a content; a last line without a newline counts as a line.
Measures = tuple[int, int, str]


class Stored(NamedTuple):
    """The path and the measures of a stored file."""

    path: Path
    size: int
    lines: int
    sha256: str


def new_id() -> str:
    """Return a random id of an output; it is the last part of the file's name."""
    return secrets.token_hex(6)


def file_name(created: datetime, tool: str, output_id: str) -> str:
    """Return ``<UTC time>-<tool>-<id>.txt``."""
    safe = re.sub(r"[^A-Za-z0-9_]+", "_", tool)[:40] or "tool"
    return f"{created.astimezone(UTC):{_STAMP}}-{safe}-{output_id}.txt"


def parse_name(name: str) -> tuple[datetime, str] | None:
    """Return creation time and id from the name of an output's file, or ``None`` for any other file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    with suppress(ValueError):
        return datetime.fromisoformat(found[1]), found[2]
    return None


def put(content: Content, name: str, places: Iterable[OutputFolder]) -> Stored:
    """Write `content` as `name` into the first of `places` that can be written; a path is moved.

    :raises OSError: none of them could be written; nothing is left behind.
    """
    if not isinstance(content, Path) and len(content) >= LARGE_BLOCK:
        _return_large_blocks()
    problem: OSError = FileNotFoundError(errno.ENOENT, "no folder for outputs")
    for place in places:
        try:
            with open_folder(place, create=True) as folder:
                measures = (
                    _move(folder, name, content) if isinstance(content, Path) else _write_new(folder, name, _chunks(content))
                )
            return Stored(place.path / name, *measures)
        except OSError as error:
            problem = error
    raise problem


def read(place: OutputFolder, name: str, offset: int, limit: int) -> bytes:
    """Return at most `limit` bytes of a stored file from `offset`.

    :raises OSError: the file is gone, or no longer a regular file in a real folder.
    """
    with open_folder(place) as folder:
        file = os.open(name, _READ, dir_fd=folder)
        try:
            _check_regular(file, name)
            pieces = list(_pieces(file, offset, limit))
        finally:
            os.close(file)
    return b"".join(pieces)


def remove_due(place: OutputFolder, due: Callable[[str, datetime], bool]) -> list[str]:
    """Remove the output files for which ``due(id, created)`` is true; return their ids."""
    removed: list[str] = []
    with open_folder(place) as folder:
        with os.scandir(folder) as entries:
            plain = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        for name in plain:
            known = parse_name(name)
            if known is None or not due(known[1], known[0]):
                continue
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
                removed.append(known[1])
    return removed


@contextmanager
def open_folder(place: OutputFolder, *, create: bool = False) -> Iterator[int]:
    """Open the folder itself and never follow a link in its place; with `create`, make it first.

    :raises OSError: it is missing, or is not a folder.
    """
    if create and place.name == HOME_FOLDER:
        place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = os.open(place.root, _FOLDER)
    try:
        if create:
            with suppress(FileExistsError):
                os.mkdir(place.name, 0o700, dir_fd=root)
        folder = os.open(place.name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
    finally:
        os.close(root)
    try:
        if create:
            _keep_out_of_git(folder)
        yield folder
    finally:
        os.close(folder)


def _keep_out_of_git(folder: int) -> None:
    with suppress(OSError):
        ignore = os.open(".gitignore", _NEW, 0o600, dir_fd=folder)
        try:
            os.write(ignore, b"*\n")
        finally:
            os.close(ignore)


def _move(folder: int, name: str, source: Path) -> Measures:
    file = os.open(source, _READ)
    try:
        _check_regular(file, str(source))
        info = os.fstat(file)
        pieces = _pieces(file, 0, info.st_size)
        if info.st_dev != os.fstat(folder).st_dev:
            filled = _write_new(folder, name, pieces)
        else:
            os.fchmod(file, 0o600)
            filled = _measure(pieces)
            os.rename(source, name, dst_dir_fd=folder)
            _check_same(folder, name, info)
    finally:
        os.close(file)
    with suppress(OSError):
        source.unlink()
    return filled


def _write_new(folder: int, name: str, pieces: Iterable[bytes]) -> Measures:
    file = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        return _measure(pieces, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(file)


def _measure(pieces: Iterable[bytes], file: int | None = None) -> Measures:
    size = lines = 0
    piece, digest = b"", hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        lines += piece.count(b"\n")
        rest = memoryview(piece)
        while file is not None and rest:
            rest = rest[os.write(file, rest) :]
    return size, lines + (piece[-1:] not in (b"", b"\n")), digest.hexdigest()


def _chunks(content: str | bytes) -> Iterator[bytes]:
    """Yield `content` as UTF-8; a lone surrogate, which UTF-8 cannot encode, is written as an escape such as ``\\udcff``."""
    for start in range(0, len(content), CHUNK):
        piece = content[start : start + CHUNK]
        yield piece if isinstance(piece, bytes) else piece.encode("utf-8", "backslashreplace")


def _pieces(file: int, offset: int, limit: int) -> Iterator[bytes]:
    while limit > 0 and (piece := os.pread(file, min(limit, CHUNK), offset)):
        yield piece
        offset, limit = offset + len(piece), limit - len(piece)


def _check_regular(file: int, name: str) -> None:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", name)


def _check_same(folder: int, name: str, info: os.stat_result) -> None:
    """Refuse if another object took the place of the file that was opened."""
    moved = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (moved.st_dev, moved.st_ino) != (info.st_dev, info.st_ino):
        os.unlink(name, dir_fd=folder)
        raise OSError(errno.ESTALE, "the spooled file was replaced while it was moved", name)


LARGE_BLOCK = 4 * 1024 * 1024
_M_MMAP_THRESHOLD = -3


@cache
def _return_large_blocks() -> None:
    """Make glibc return every freed block of at least :data:`LARGE_BLOCK` bytes to the system.

    By default glibc does so only until the first such block is freed, and then keeps blocks of that size: after four outputs
    of 20 MB the process holds 75 MB, with this call 61. It needs ctypes, so it waits for the first large output.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # musl has no mallopt, and needs none
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)

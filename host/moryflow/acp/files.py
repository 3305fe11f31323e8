"""Files with the editor's unsaved text: an open file is read as the editor has it, not as the disk has it.

Gates, targets and identities are those of :class:`VaultFiles`: the judged object is opened here first, and the editor's answer
only replaces its bytes. If the editor is slow, silent or wrong, the bytes on disk are used. Moryflow itself writes files: an
editor would follow a link that a sandboxed command swaps in, and so write outside the sandbox. If a person has set
``acp.editorWrites``, the editor writes, and the file is checked afterwards.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from moryflow_sdk import Identity, MoryflowError, Target, ToolError

from moryflow.services.file_walk import judged_status, name_of, parent_folder, path_of, refuse_changed
from moryflow.services.files import VaultFiles, is_kept

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

    from .connection import EditorConnection

SECONDS = 2.0
"""How long an editor may take to return a text; after a timeout it is not asked to read or save again."""
SAVE_SECONDS = 10.0
"""How long an editor may take to save a text: some run a formatter first."""
MOST = 1 << 20
"""The most bytes of a file that an editor is asked to read or save."""
COARSE_SECONDS = 0.02
"""Seconds within which two changes of a file may have the same timestamp: many systems count it in ticks."""
_MARK = "\ufeff"


class EditorTexts:
    """The texts of files in an editor, requested from the threads of tools.

    :param capabilities: the file operations that the editor declares.
    :param knows: whether the editor has a session open.
    :ivar passed: files that Moryflow has written. The editor's text of such a file is older than the change, so it is ignored
        until it equals the disk; until then the editor asks the person which of the two to keep.
    :ivar doubted: files whose path led elsewhere while the editor read them, so that its text may be of another file, and
        files that it did not save as told. From then on the editor is not used for them.
    :ivar saving: held while the editor saves; if two agents change one file, the second gets an error.
    """

    def __init__(self, connection: EditorConnection, capabilities: Any, knows: Callable[[str], bool]) -> None:
        given = capabilities if isinstance(capabilities, dict) else {}
        self._can_read, self._can_write = given.get("readTextFile") is True, given.get("writeTextFile") is True
        self._connection, self._knows = connection, knows
        self._loop = asyncio.get_running_loop()
        self._silent = False
        self.passed: set[str] = set()
        self.doubted: set[str] = set()
        self.saving = threading.Lock()

    @property
    def answers(self) -> bool:
        """Whether the editor may be asked on this thread."""
        return not self._silent and not _on_a_loop()

    @property
    def reads(self) -> bool:
        """Whether the editor may be asked for a text on this thread."""
        return self._can_read and self.answers

    def files(self, scope: TurnContext, _plugin: str) -> VaultFiles:
        """Return the service ``files`` of a turn. For a sub-agent, the editor is asked as the session that it has open."""
        if scope.files is None:
            place = (scope.vault, scope.around.home, Path.home())
            session = scope.lineage[-1]
            writes = self._can_write and scope.around.config.get("acp.editorWrites") is True
            known = (self._can_read or writes) and self._knows(session)
            scope.files = EditorFiles(self, session, *place, writes=writes) if known else VaultFiles(*place)
        return scope.files  # pyright: ignore[reportReturnType]

    def text(self, session: str, path: str) -> str | None:
        """Return the editor's text of a file, or ``None`` if it returns none."""
        answer = None
        with suppress(MoryflowError):
            answer = self._ask("fs/read_text_file", SECONDS, sessionId=session, path=path)
        content = answer.get("content") if isinstance(answer, dict) else None
        return content if isinstance(content, str) else None

    def save(self, session: str, path: str, text: str) -> None:
        """Have the editor write a text. Success is no proof that it did, so the caller checks the file.

        :raises MoryflowError: the editor reports an error, or does not answer.
        """
        self._ask("fs/write_text_file", SAVE_SECONDS, sessionId=session, path=path, content=text)

    @contextmanager
    def doubting(self, path: str) -> Iterator[None]:
        """If the block fails, never ask the editor about this file again."""
        try:
            yield
        except ToolError:
            self.doubted.add(path)
            raise

    def _ask(self, method: str, seconds: float, **params: str) -> Any:
        try:
            asked = asyncio.run_coroutine_threadsafe(self._within(method, seconds, params), self._loop)
            return asked.result(seconds * 2)
        except TimeoutError as error:
            self._silent = True
            raise ToolError(f"it did not answer within {seconds:g} s, and may still do it later", code="editor") from error
        except (CancelledError, RuntimeError) as error:  # the loop ended with the editor's connection
            raise ToolError("it has disconnected", code="editor") from error

    async def _within(self, method: str, seconds: float, params: dict[str, str]) -> Any:
        async with asyncio.timeout(seconds):
            return await self._connection.ask(method, params)


def _on_a_loop() -> bool:
    """Whether this thread runs an event loop, and so must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class EditorFiles(VaultFiles):
    """The files of one vault, for a session that an editor has open.

    :param writes: whether the editor saves texts, as the person has chosen.
    """

    waits = True

    def __init__(
        self, editor: EditorTexts, session: str, vault: Path, home: Path, user_home: Path, *, writes: bool = False
    ) -> None:
        super().__init__(vault, home, user_home)
        self._editor, self._session, self._writes = editor, session, writes
        self._unsaved: set[str] = set()
        self._stamps: dict[str, tuple[int, int, int]] = {}

    def unsaved(self, target: Target) -> bool:
        """Whether the content last read of `target` was unsaved text of the editor."""
        return target.path in self._unsaved

    @contextmanager
    def open(self, target: Target) -> Iterator[BinaryIO]:
        """Open the judged file for reading; if the editor has unsaved text of it, yield that text instead."""
        with super().open(target) as file:
            self._stamps[path_of(target)] = _stamp(file)
            text = self._unsaved_text(target, file)
            if text is None:
                file.seek(0)
                yield file
                return
            with tempfile.TemporaryFile() as held:
                os.fchmod(held.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
                held.write(text)
                held.seek(0)
                yield held

    def _unsaved_text(self, target: Target, file: BinaryIO) -> bytes | None:
        path = path_of(target)
        self._unsaved.discard(path)
        if not self._editor.reads or not self._may_ask_about(path):
            return None
        before, way = _text_in(file), self._path_identities(target)
        if before is None:
            return None
        if time.time() - max(changed for _, _, changed in way) / 1e9 < COARSE_SECONDS:
            time.sleep(COARSE_SECONDS)
        said = self._editor.text(self._session, path)
        if said is not None and _normalised(said) == _normalised(before):
            self._editor.passed.discard(path)
            return None
        if said is None or path in self._editor.passed:
            return None
        with self._editor.doubting(path):
            if self._path_identities(target) != way:
                refuse_changed(target)
        return self._as_stored(path, said, before)

    def _as_stored(self, path: str, said: str, before: str) -> bytes | None:
        """Return unsaved text as bytes with the byte order mark and the line ends of its file; ``None`` if it is unusable."""
        mark = _MARK if before.startswith(_MARK) else ""
        body = _normalised(said).replace("\n", "\r\n" if "\r\n" in before else "\n")
        try:
            data = f"{mark}{body}".encode()
        except UnicodeEncodeError:
            return None
        if _decoded(data) is None:
            return None
        self._unsaved.add(path)
        return data

    def _path_identities(self, target: Target) -> list[tuple[int, int, int]]:
        """Return device, inode and ctime of the judged file and of the folders in the vault that lead to it.

        They differ if a link took the place of one of these while the editor opened the path, even if it is gone again:
        a rename changes the ctime of the renamed object.

        :raises ToolError: another object is at the path, or a link leads there.
        """
        path = path_of(target)
        with parent_folder(target) as (parent, name):
            judged_status(target, parent, name)
            folders = [str(folder) for folder in Path(path).parents if Path(self._paths.vault) in folder.parents]
            return [(about.st_dev, about.st_ino, about.st_ctime_ns) for about in map(os.lstat, (path, *folders))]

    def _may_ask_about(self, path: str) -> bool:
        """Whether the editor may be asked about a path: it is printable, not doubted, and outside Moryflow's own folder."""
        return path.isprintable() and path not in self._editor.doubted and not self._in_home(path)

    def write(
        self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None, direct: bool = False
    ) -> Target:
        """Replace or create a file: through the editor if it is text and the person has chosen that, otherwise here. After a
        write here, the editor's own text of the file counts as outdated.
        """
        path = path_of(target)
        made = self._save_in_editor(target, data) if self._writes and not direct and self._editor.answers else None
        if made is None:
            made = super().write(target, data, create_parents=create_parents, mode=mode)
            self._editor.passed.add(path)
            self._stamps.pop(path, None)
        self._unsaved.discard(path)
        return made

    def _save_in_editor(self, target: Target, data: bytes) -> Target | None:
        """Have the editor save the judged file; return its new target, or ``None`` if the file must be written here.

        It must be if the file is new, large, doubted, read-only or not text, has hard links, an access list or attributes, or
        has a byte order mark or line ends that the editor might change.

        :raises ToolError: the file changed since it was last read, or the editor did not save this text at this place.
        """
        path, text = path_of(target), _decoded(data)
        if target.identity is None or not self._may_ask_about(path) or not _is_plain(text):
            return None
        with self._editor.saving:
            with super().open(target) as file:
                before, stamp, about, bare = _text_in(file), _stamp(file), os.fstat(file.fileno()), _is_bare(file)
            if not (self._editor.answers and bare and about.st_nlink == 1 and _is_plain(before) and os.access(path, os.W_OK)):
                return None
            if self._stamps.pop(path, stamp) != stamp:
                refuse_changed(target)
            folders, refusal = self._folders(target), ""
            try:
                self._editor.save(self._session, path, text or "")
            except MoryflowError as error:
                refusal = error.message
            found, after, way = self._state_at(target, text, about.st_mode & 0o777)
            if not refusal and (after, way) == (text, folders):
                return found
        self._editor.doubted.add(path)
        state = "is as it was" if after == before else "may hold another text by now"
        why = refusal or "it says that it did; a formatter, or a link that another program put there, may be the reason"
        message = f"the editor did not save {name_of(target)} as it was told: {why}. The file {state}"
        raise ToolError(message, code="editor", next_step="read it again; the next change of it is written without the editor")

    def _state_at(self, target: Target, text: str | None, mode: int) -> tuple[Target, str | None, list[tuple[int, int]]]:
        """Return the target that is at the path now, its text and its folders.

        Many editors replace the file by a new one; if that holds `text`, it gets the `mode` of the old file.
        """
        with suppress(ToolError), parent_folder(target) as (parent, name):
            about = os.stat(name, dir_fd=parent, follow_symlinks=False)
            found = target.replace(identity=Identity(device=about.st_dev, inode=about.st_ino))
            with super().open(found) as file:
                self._stamps[path_of(target)] = _stamp(file)
                after, folders = _text_in(file), self._folders(found)
                if after == text and os.fstat(file.fileno()).st_mode & 0o777 != mode:
                    os.fchmod(file.fileno(), mode)
            return found, after, folders
        return target, None, []

    def _folders(self, target: Target) -> list[tuple[int, int]]:
        return [(device, inode) for device, inode, _ in self._path_identities(target)[1:]]


def _stamp(file: BinaryIO) -> tuple[int, int, int]:
    """Return values that change whenever a file does, even if it is written in place."""
    about = os.fstat(file.fileno())
    return about.st_ino, about.st_size, about.st_mtime_ns


def _is_bare(file: BinaryIO) -> bool:
    """Whether a file has no access list and no attributes, which an editor might not keep."""
    if not hasattr(os, "listxattr"):
        return True
    with suppress(OSError):
        return not any(map(is_kept, os.listxattr(file.fileno())))
    return True


def _is_plain(text: str | None) -> bool:
    """Whether every editor would save a text unchanged: it has no byte order mark, and only newlines as line ends."""
    return text is not None and "\r" not in text and not text.startswith(_MARK)


def _text_in(file: BinaryIO) -> str | None:
    """Return the text in a file, or ``None`` if it is too large or not text."""
    if os.fstat(file.fileno()).st_size > MOST:
        return None
    file.seek(0)
    return _decoded(file.read(MOST + 1))


def _decoded(data: bytes) -> str | None:
    if len(data) > MOST or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _normalised(text: str) -> str:
    """Return a text in the form used for comparison: without byte order mark, and with newlines as line ends."""
    return text.removeprefix(_MARK).replace("\r\n", "\n")

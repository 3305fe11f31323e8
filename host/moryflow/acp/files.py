"""Files as the editor has them: the unsaved text of an open file is read, and a change is made in the editor.

Gates, targets and identities are those of :class:`VaultFiles`: the judged object is opened here first, and an answer of the
editor only stands in for its bytes. An editor that is slow, silent or wrong costs nothing but that: the disk holds then.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from moryflow_sdk import Identity, MoryflowError, Target, ToolError

from moryflow.services.file_walk import name_of, open_content, parent_folder, path_of, same, status_at
from moryflow.services.files import VaultFiles

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

    from .connection import EditorConnection

SECONDS = 2.0
"""How long an editor may take to give or to save a text; one that took longer is not asked again."""
MOST = 1 << 20
"""Bytes of a file that an editor is asked about."""
_MARK = "\ufeff"


class EditorTexts:
    """What an editor holds of files, asked on the threads of tools.

    :param capabilities: what it says it can do with files.
    :param knows: whether it has a session open.
    """

    def __init__(self, connection: EditorConnection, capabilities: Any, knows: Callable[[str], bool]) -> None:
        given = capabilities if isinstance(capabilities, dict) else {}
        self.reads, self.writes = given.get("readTextFile") is True, given.get("writeTextFile") is True
        self._connection, self._knows = connection, knows
        self._loop = asyncio.get_running_loop()
        self._silent = False

    def files(self, scope: TurnContext, _plugin: str) -> VaultFiles:
        """Return the files of a turn; the service ``files``. A sub-agent works for the session that the editor knows."""
        if scope.files is None:
            place = (scope.vault, scope.around.home, Path.home())
            session = scope.lineage[-1]
            known = (self.reads or self.writes) and self._knows(session)
            scope.files = EditorFiles(self, session, *place) if known else VaultFiles(*place)
        return scope.files  # pyright: ignore[reportReturnType]

    def text(self, session: str, path: str) -> str | None:
        """Return the text of a file in the editor; ``None`` where it gives none."""
        answer = self._ask("fs/read_text_file", {"sessionId": session, "path": path}) if self.reads else None
        content = answer.get("content") if isinstance(answer, dict) else None
        return content if isinstance(content, str) else None

    def save(self, session: str, path: str, text: str) -> None:
        """Have the editor write a text; whether it did is seen in the file."""
        self._ask("fs/write_text_file", {"sessionId": session, "path": path, "content": text})

    def _ask(self, method: str, params: dict[str, str]) -> Any:
        if self._silent or _on_a_loop():
            return None
        try:
            asked = asyncio.run_coroutine_threadsafe(self._within(method, params), self._loop)
            return asked.result(SECONDS * 2)
        except TimeoutError:
            self._silent = True
        except (MoryflowError, CancelledError, RuntimeError):  # it cannot, or it is gone, and the loop with it
            pass
        return None

    async def _within(self, method: str, params: dict[str, str]) -> Any:
        async with asyncio.timeout(SECONDS):
            return await self._connection.ask(method, params)


def _on_a_loop() -> bool:
    """Whether this thread is one that must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class EditorFiles(VaultFiles):
    """The files of one vault, for a session that an editor has open."""

    waits = True

    def __init__(self, editor: EditorTexts, session: str, vault: Path, home: Path, user_home: Path) -> None:
        super().__init__(vault, home, user_home)
        self._editor, self._session = editor, session
        self._unsaved: set[str] = set()

    def unsaved(self, target: Target) -> bool:
        """Whether what was last read of `target` was not what the disk holds."""
        return target.path in self._unsaved

    @contextmanager
    def open(self, target: Target) -> Iterator[BinaryIO]:
        """Open the judged file; what is read is the editor's text where it holds another one unsaved."""
        with super().open(target) as file:
            text = self._text_of(target, file)
            if text is None:
                file.seek(0)
                yield file
                return
            with tempfile.TemporaryFile() as held:
                os.fchmod(held.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
                held.write(text)
                held.seek(0)
                yield held

    def _text_of(self, target: Target, file: BinaryIO) -> bytes | None:
        path = path_of(target)
        self._unsaved.discard(path)
        before = _text_in(file)
        said = self._editor.text(self._session, path) if before is not None and _sendable(path) else None
        if before is None or said is None or _plain(said) == _plain(before):
            return None
        mark = _MARK if before.startswith(_MARK) else ""
        body = _plain(said).replace("\n", "\r\n" if "\r\n" in before else "\n")
        try:
            data = f"{mark}{body}".encode()
        except UnicodeEncodeError:
            return None
        if len(data) > MOST:
            return None
        self._unsaved.add(path)
        return data

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace a file: a text in the editor, which is seen in the file afterwards; all else, and what failed, here."""
        self._refuse_home(target)
        made = self._saved(target, data) if self._editor.writes and target.identity is not None else None
        self._unsaved.discard(target.path or "")
        return made or super().write(target, data, create_parents=create_parents, mode=mode)

    def _saved(self, target: Target, data: bytes) -> Target | None:
        """Have the editor write the judged file and return it as it is then; ``None`` where it has not been written.

        :raises ToolError: another object with another content stands there now.
        """
        path = path_of(target)
        with parent_folder(target) as (parent, name):
            descriptor = open_content(target, parent, name)
            with os.fdopen(descriptor, "rb") as file:
                alone = os.fstat(file.fileno()).st_nlink == 1  # another name, which nobody judged, would be written too
                known = _text_in(file) is not None and os.access(name, os.W_OK, dir_fd=parent)
        text = _decoded(data)
        if not (alone and known and text is not None and "\r" not in text and _sendable(path)):
            return None
        self._editor.save(self._session, path, text)
        return self._found(target, data)

    def _found(self, target: Target, data: bytes) -> Target | None:
        with parent_folder(target) as (parent, name):
            status = status_at(parent, name)
            found = target.replace(identity=Identity(device=status.st_dev, inode=status.st_ino)) if status else target
            content = None
            with suppress(ToolError), os.fdopen(open_content(found, parent, name), "rb") as file:
                content = file.read(len(data) + 1)
        if content == data:
            return found
        if status is not None and target.identity is not None and same(status, target.identity):
            return None
        step = "read it again"
        raise ToolError(f"{name_of(target)} was saved by the editor as something else", code="changed", next_step=step)


def _text_in(file: BinaryIO) -> str | None:
    """Return the text in a file; ``None`` for a large one, and for one that is none."""
    if os.fstat(file.fileno()).st_size > MOST:
        return None
    return _decoded(file.read(MOST + 1))


def _decoded(data: bytes) -> str | None:
    if len(data) > MOST or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _plain(text: str) -> str:
    """Return a text as editors compare it: without its mark, and with one kind of line end."""
    return text.removeprefix(_MARK).replace("\r\n", "\n")


def _sendable(path: str) -> bool:
    return path.isprintable()

"""Files with the editor's unsaved text: an open file is read as the editor has it, not as the disk has it.

Gates, targets and identities are those of :class:`VaultFiles`: the judged object is opened here first, and the editor's answer
only replaces its bytes. If the editor is slow, silent or wrong, the bytes on disk are used. Moryflow itself writes files: an
editor would follow a link that a sandboxed command swaps in, and so write outside the sandbox.
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

from moryflow_sdk import MoryflowError, Target

from moryflow.services.file_walk import judged_status, parent_folder, path_of
from moryflow.services.files import VaultFiles

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

    from .connection import EditorConnection

# How long an editor may take to return a text; after a timeout it is not asked again.
SECONDS = 2.0
# The most bytes of a file that an editor is asked to read.
MAX_UNSAVED = 1 << 20
_MARK = "\ufeff"


class EditorTexts:
    """The texts of files in an editor, requested from the threads of tools.

    :param capabilities: the file operations that the editor declares.
    :param knows: whether the editor has a session open.
    :ivar passed: files that Moryflow has written. The editor's text of such a file is older than the change, so it is ignored
        until it equals the disk; until then the editor asks the user which of the two to keep.
    """

    def __init__(self, connection: EditorConnection, capabilities: Any, knows: Callable[[str], bool]) -> None:
        given = capabilities if isinstance(capabilities, dict) else {}
        self._can_read = given.get("readTextFile") is True
        self._connection, self._knows = connection, knows
        self._loop = asyncio.get_running_loop()
        self._silent = False
        self.passed: set[str] = set()

    @property
    def reads(self) -> bool:
        """Whether the editor may be asked for a text on this thread."""
        return self._can_read and not self._silent and not _on_a_loop()

    def files(self, scope: TurnContext, _plugin: str) -> VaultFiles:
        """Return the service ``files`` of a turn. For a sub-agent, the editor is asked as the session that it has open."""
        if scope.files is None:
            place = (scope.vault, scope.around.home, Path.home())
            session = scope.lineage[-1]
            known = self._can_read and self._knows(session)
            scope.files = EditorFiles(self, session, *place) if known else VaultFiles(*place)
        return scope.files  # pyright: ignore[reportReturnType]

    def text(self, session: str, path: str) -> str | None:
        """Return the editor's text of a file, or ``None`` if it returns none."""
        answer = None
        with suppress(MoryflowError, CancelledError, RuntimeError):  # the last two: the loop ended with the connection
            asked = asyncio.run_coroutine_threadsafe(self._within(session, path), self._loop)
            try:
                answer = asked.result(SECONDS * 2)
            except TimeoutError:
                self._silent = True
        content = answer.get("content") if isinstance(answer, dict) else None
        return content if isinstance(content, str) else None

    async def _within(self, session: str, path: str) -> Any:
        async with asyncio.timeout(SECONDS):
            return await self._connection.ask("fs/read_text_file", {"sessionId": session, "path": path})


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class EditorFiles(VaultFiles):
    """The files of one vault, for a session that an editor has open."""

    def __init__(self, editor: EditorTexts, session: str, vault: Path, home: Path, user_home: Path) -> None:
        super().__init__(vault, home, user_home)
        self._editor, self._session = editor, session
        self._unsaved: set[str] = set()

    def unsaved(self, target: Target) -> bool:
        """Whether the content last read of `target` was unsaved text of the editor."""
        return target.path in self._unsaved

    @contextmanager
    def open(self, target: Target) -> Iterator[BinaryIO]:
        """Open the judged file for reading; if the editor has unsaved text of it, yield that text instead."""
        with super().open(target) as file:
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
        if not self._editor.reads or not (path.isprintable() and not self._in_home(path)):
            return None
        before = _text_in(file)
        if before is None:
            return None
        said = self._editor.text(self._session, path)
        if said is not None and _normalised(said) == _normalised(before):
            self._editor.passed.discard(path)
            return None
        if said is None or path in self._editor.passed:
            return None
        with parent_folder(target) as (parent, name):
            judged_status(target, parent, name)  # refuses a link that a sandboxed command has put there meanwhile
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

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace or create a file. From then on the editor's own text of it counts as outdated."""
        path = path_of(target)
        made = super().write(target, data, create_parents=create_parents, mode=mode)
        self._editor.passed.add(path)
        self._unsaved.discard(path)
        return made


def _text_in(file: BinaryIO) -> str | None:
    if os.fstat(file.fileno()).st_size > MAX_UNSAVED:
        return None
    file.seek(0)
    return _decoded(file.read(MAX_UNSAVED + 1))


def _decoded(data: bytes) -> str | None:
    if len(data) > MAX_UNSAVED or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _normalised(text: str) -> str:
    """Return a text in the form used for comparison: without byte order mark, and with newlines as line ends."""
    return text.removeprefix(_MARK).replace("\r\n", "\n")

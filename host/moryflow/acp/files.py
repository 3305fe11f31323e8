"""Files as the editor has them: the unsaved text of an open file is read in place of what the disk holds.

Gates, targets and identities are those of :class:`VaultFiles`: the judged object is opened here first, and an answer of the
editor only stands in for its bytes. An editor that is slow, silent or wrong costs nothing but that: the disk holds then.
Files are written here: an editor would follow a link that a program swaps in, out of the sandbox of a command.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from moryflow_sdk import MoryflowError, Target, ToolError

from moryflow.services.file_walk import judged_status, parent_folder, path_of, refuse_changed
from moryflow.services.files import VaultFiles

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

    from .connection import EditorConnection

SECONDS = 2.0
"""How long an editor may take to give or to save a text; one that took longer is not asked again."""
MOST = 1 << 20
"""Bytes of a file that an editor is asked about."""
COARSE_SECONDS = 0.02
"""In which two changes of a file may have the same moment: many systems count those in ticks."""
_MARK = "\ufeff"


class EditorTexts:
    """What an editor holds of files, asked on the threads of tools.

    :param capabilities: what it says it can do with files.
    :param knows: whether it has a session open.
    :ivar passed: files that were written here. What the editor holds of them counts again once it is what the disk holds:
        until then it is older than the change, and a person is asked by the editor which of both shall stay.
    :ivar doubted: files of which it may hold the text of another file, as their path led elsewhere while it looked.
    """

    def __init__(self, connection: EditorConnection, capabilities: Any, knows: Callable[[str], bool]) -> None:
        given = capabilities if isinstance(capabilities, dict) else {}
        self._gives = given.get("readTextFile") is True
        self._connection, self._knows = connection, knows
        self._loop = asyncio.get_running_loop()
        self._silent = False
        self.passed: set[str] = set()
        self.doubted: set[str] = set()

    @property
    def reads(self) -> bool:
        """Whether it is asked for a text on this thread."""
        return self._gives and not self._silent and not _on_a_loop()

    def files(self, scope: TurnContext, _plugin: str) -> VaultFiles:
        """Return the files of a turn; the service ``files``. A sub-agent works for the session that the editor knows."""
        if scope.files is None:
            place = (scope.vault, scope.around.home, Path.home())
            session = scope.lineage[-1]
            known = self._gives and self._knows(session)
            scope.files = EditorFiles(self, session, *place) if known else VaultFiles(*place)
        return scope.files  # pyright: ignore[reportReturnType]

    def text(self, session: str, path: str) -> str | None:
        """Return the text of a file in the editor; ``None`` where it gives none."""
        answer = self._ask("fs/read_text_file", {"sessionId": session, "path": path})
        content = answer.get("content") if isinstance(answer, dict) else None
        return content if isinstance(content, str) else None

    @contextmanager
    def doubting(self, path: str) -> Iterator[None]:
        """Never ask about a file again for which the block fails."""
        try:
            yield
        except ToolError:
            self.doubted.add(path)
            raise

    def _ask(self, method: str, params: dict[str, str]) -> Any:
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
        if not self._editor.reads or not self._told(path):
            return None
        before, way = _text_in(file), self._way(target)
        if before is None:
            return None
        if time.time() - max(changed for _, _, changed in way) / 1e9 < COARSE_SECONDS:
            time.sleep(COARSE_SECONDS)
        said = self._editor.text(self._session, path)
        if said is not None and _plain(said) == _plain(before):
            self._editor.passed.discard(path)
            return None
        if said is None or path in self._editor.passed:
            return None
        with self._editor.doubting(path):
            if self._way(target) != way:
                refuse_changed(target)
        return self._as_stored(path, said, before)

    def _as_stored(self, path: str, said: str, before: str) -> bytes | None:
        """Return an unsaved text with the mark and the line ends of its file; ``None`` where it is no text for a file."""
        mark = _MARK if before.startswith(_MARK) else ""
        body = _plain(said).replace("\n", "\r\n" if "\r\n" in before else "\n")
        try:
            data = f"{mark}{body}".encode()
        except UnicodeEncodeError:
            return None
        if _decoded(data) is None:
            return None
        self._unsaved.add(path)
        return data

    def _way(self, target: Target) -> list[tuple[int, int, int]]:
        """Return the judged file and the folders of the vault that lead to it, each with the moment of its last change.

        A link that was in the place of one of them while the editor opened the path shows in it, also when it has gone again:
        a rename changes that moment of what is renamed.

        :raises ToolError: another object stands there, or a link leads there.
        """
        path = path_of(target)
        with parent_folder(target) as (parent, name):
            judged_status(target, parent, name)
            folders = [str(folder) for folder in Path(path).parents if Path(self._paths.vault) in folder.parents]
            return [(about.st_dev, about.st_ino, about.st_ctime_ns) for about in map(os.lstat, (path, *folders))]

    def _told(self, path: str) -> bool:
        """Whether an editor is told of a path: not of one in Moryflow's own folder, that no text can name, or in doubt."""
        return path.isprintable() and path not in self._editor.doubted and not self._in_home(path)

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace a file here, as everywhere; what the editor holds of it is older from then on."""
        made = super().write(target, data, create_parents=create_parents, mode=mode)
        self._unsaved.discard(target.path or "")
        self._editor.passed.add(target.path or "")
        return made


def _text_in(file: BinaryIO) -> str | None:
    """Return the text in a file; ``None`` for a large one, and for one that is none."""
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


def _plain(text: str) -> str:
    """Return a text as editors compare it: without its mark, and with one kind of line end."""
    return text.removeprefix(_MARK).replace("\r\n", "\n")

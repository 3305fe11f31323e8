"""Files as the editor has them: the unsaved text of an open file is read, and a change is made in the editor.

Gates, targets and identities are those of :class:`VaultFiles`: the judged object is opened here first, and an answer of the
editor only stands in for its bytes. An editor that is slow, silent or wrong costs nothing but that: the disk holds then.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from moryflow_sdk import Identity, MoryflowError, Target, ToolError

from moryflow.services.file_walk import (
    judged_status,
    name_of,
    open_content,
    parent_folder,
    path_of,
    refuse_changed,
    same,
    status_at,
)
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
    :ivar saving: held while a file is saved, so that of two agents that change one file the second is told.
    :ivar saves: how often a file was saved by the editor; one that saves in place leaves its identity as it was.
    :ivar doubted: files of which it may hold the text of another file, as their path led elsewhere while it looked.
    """

    def __init__(self, connection: EditorConnection, capabilities: Any, knows: Callable[[str], bool]) -> None:
        given = capabilities if isinstance(capabilities, dict) else {}
        self._gives, self._takes = given.get("readTextFile") is True, given.get("writeTextFile") is True
        self._connection, self._knows = connection, knows
        self._loop = asyncio.get_running_loop()
        self._silent = False
        self.saving = threading.Lock()
        self.saves: dict[str, int] = {}
        self.doubted: set[str] = set()

    @property
    def reads(self) -> bool:
        """Whether it is asked for a text on this thread."""
        return self._gives and not self._silent and not _on_a_loop()

    @property
    def writes(self) -> bool:
        """Whether it is asked to save a text on this thread."""
        return self._takes and not self._silent and not _on_a_loop()

    def files(self, scope: TurnContext, _plugin: str) -> VaultFiles:
        """Return the files of a turn; the service ``files``. A sub-agent works for the session that the editor knows."""
        if scope.files is None:
            place = (scope.vault, scope.around.home, Path.home())
            session = scope.lineage[-1]
            known = (self._gives or self._takes) and self._knows(session)
            over = partial(_over, scope)
            scope.files = EditorFiles(self, session, over, *place) if known else VaultFiles(*place)
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

    def save(self, session: str, path: str, text: str) -> None:
        """Have the editor write a text; whether it did is seen in the file."""
        self._ask("fs/write_text_file", {"sessionId": session, "path": path, "content": text})

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


def _over(scope: TurnContext) -> bool:
    """Whether a turn was stopped, or has ended."""
    return scope.over or scope.live.cancelled


def _on_a_loop() -> bool:
    """Whether this thread is one that must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class EditorFiles(VaultFiles):
    """The files of one vault, for a session that an editor has open.

    :param over: whether the turn is: what waited for the editor until then is not done any more.
    """

    waits = True

    def __init__(
        self, editor: EditorTexts, session: str, over: Callable[[], bool], vault: Path, home: Path, user_home: Path
    ) -> None:
        super().__init__(vault, home, user_home)
        self._editor, self._session, self._over = editor, session, over
        self._unsaved: set[str] = set()
        self._read: dict[str, int] = {}
        """How often a file had been saved by the editor when it was last read here."""

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
        self._read[path] = self._editor.saves.get(path, 0)
        if not self._editor.reads or not self._told(path):
            return None
        before, way = _text_in(file), self._way(target)
        if before is None:
            return None
        if time.time() - max(changed for _, _, changed in way) / 1e9 < COARSE_SECONDS:
            time.sleep(COARSE_SECONDS)
        said = self._editor.text(self._session, path)
        self._refuse_over(target)
        if said is None or _plain(said) == _plain(before):
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

    def _refuse_over(self, target: Target) -> None:
        if self._over():
            raise ToolError(f"the turn ended before {name_of(target)} was done; nothing was written", code="stopped")

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace a file: a text in the editor, which is seen in the file afterwards; all else, and what failed, here."""
        self._refuse_home(target)
        asked = self._editor.writes and target.identity is not None and not self._over()
        made = self._saved(target, data) if asked else None
        self._unsaved.discard(target.path or "")
        return made or super().write(target, data, create_parents=create_parents, mode=mode)

    def _saved(self, target: Target, data: bytes) -> Target | None:
        """Have the editor write the judged file and return it as it is then; ``None`` where it has not been written.

        :raises ToolError: another object with another content stands there now, somebody else had the editor save the file
            since it was read, or the turn was stopped meanwhile.
        """
        path, text = path_of(target), _decoded(data)
        if text is None or "\r" in text or not self._told(path):
            return None
        with self._editor.saving:
            saves = self._editor.saves.get(path, 0)
            if self._read.get(path, saves) != saves:
                refuse_changed(target)
            with parent_folder(target) as (parent, name), os.fdopen(open_content(target, parent, name), "rb") as file:
                about = os.fstat(file.fileno())
                if about.st_nlink != 1 or _text_in(file) is None or not os.access(name, os.W_OK, dir_fd=parent):
                    return None  # another name of the file, which nobody judged, would be written too
            self._editor.save(self._session, path, text)
            self._editor.saves[path] = self._read[path] = saves + 1
            made = self._found(target, data, about.st_mode & 0o777)
        if made is None:
            self._refuse_over(target)
        return made

    def _found(self, target: Target, data: bytes, mode: int) -> Target | None:
        with parent_folder(target) as (parent, name):
            status = status_at(parent, name)
            found = target.replace(identity=Identity(device=status.st_dev, inode=status.st_ino)) if status else target
            content = None
            with suppress(ToolError), os.fdopen(open_content(found, parent, name), "rb") as file:
                about = os.fstat(file.fileno())
                content = file.read(len(data) + 1) if about.st_nlink == 1 else None
                if content == data and about.st_mode & 0o777 != mode:
                    os.fchmod(file.fileno(), mode)  # an editor that makes a new file may give it to others to read
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

"""Watch files for changes, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
_SUFFIXES = (".py", ".md", ".toml", ".jsonc", ".json", ".pth", ".txt")


class FileWatcher:
    """Tells of changes below the folders that it was given, each once per change, whatever an editor does to save.

    watchdog hears of them on threads of its own; they cross to the loop one by one.

    :param heard: called on the loop with the path that changed.
    """

    def __init__(self, heard: Callable[[Path], None]) -> None:
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._observer: Any = None
        self._watched: dict[tuple[Path, bool], Any] = {}

    def watch(self, folders: dict[Path, bool]) -> None:
        """Watch exactly these folders from now on; the value says whether all below them too. Missing ones wait."""
        wanted = {(folder, deep) for folder, deep in folders.items() if folder.is_dir()}
        for key in self._watched.keys() - wanted:
            self._unschedule(self._watched.pop(key))
        for key in wanted - self._watched.keys():
            watch = self._schedule(*key)
            if watch is not None:
                self._watched[key] = watch

    def stop(self) -> None:
        """Stop watching."""
        observer, self._observer = self._observer, None
        self._watched.clear()
        if observer is not None:
            observer.stop()
            observer.join(timeout=1.0)

    def _schedule(self, folder: Path, deep: bool) -> Any:
        from watchdog import events

        kinds = (
            events.FileCreatedEvent, events.FileModifiedEvent, events.FileMovedEvent, events.FileDeletedEvent,
            events.FileClosedEvent, events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent,
        )  # fmt: skip
        try:
            return self._started().schedule(_handler(self._tell), str(folder), recursive=deep, event_filter=list(kinds))
        except OSError as error:  # the limit of the system, or the folder has just gone
            log.warning("%s is not watched: %s; changes there are taken at the next start", folder, error.strerror or error)
            return None

    def _started(self) -> Any:
        if self._observer is None:
            from watchdog.observers import Observer

            self._observer = Observer()
            self._observer.start()
        return self._observer

    def _unschedule(self, watch: Any) -> None:
        if self._observer is not None:
            try:
                self._observer.unschedule(watch)
            except (KeyError, OSError):  # its folder is gone, and its thread with it
                return

    def _tell(self, path: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, Path(path))


def _handler(tell: Callable[[str], None]) -> Any:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler

    class EventHandler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            for path in (event.src_path, getattr(event, "dest_path", "")):
                if path and (event.is_directory or is_source(str(path))):
                    tell(str(path))

    return EventHandler()


def is_source(path: str) -> bool:
    """Whether a change of this file may matter; editors' own files and byte code do not."""
    name = path.rpartition("/")[2]
    hidden = name.startswith((".", "#", "~")) or name.endswith(("~", "#"))
    return not hidden and name.endswith(_SUFFIXES) and "/__pycache__/" not in path

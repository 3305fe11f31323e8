"""Watch the files that a generation is made from."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

WATCHED = ("config.jsonc", "plugins", "agents")
_HARMLESS = ("opened", "closed_no_write")


class HomeWatch:
    """Knows whether configuration, plugins or agents were changed since it was last asked.

    watchdog tells of changes on a thread of its own; only a flag crosses over, and the host looks at it between turns.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._flag = threading.Event()
        self._observer: Any = None

    def start(self) -> None:
        """Begin to watch; a home that does not exist yet is made."""
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        flag, home = self._flag, self._home

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                paths = (event.src_path, getattr(event, "dest_path", ""))
                if event.event_type not in _HARMLESS and any(_matters(home, str(path)) for path in paths if path):
                    flag.set()

        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._observer = Observer()
        self._observer.schedule(Handler(), str(home), recursive=False)
        for name in WATCHED[1:]:
            if (home / name).is_dir():
                self._observer.schedule(Handler(), str(home / name), recursive=True)
        self._observer.start()

    def changed(self) -> bool:
        """Whether something was changed since the last call."""
        found = self._flag.is_set()
        self._flag.clear()
        return found

    def stop(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(timeout=1.0)
            self._observer = None


def _matters(home: Path, path: str) -> bool:
    """Whether `path` is one of the watched files; editors' own files and byte code are not."""
    try:
        parts = Path(path).relative_to(home).parts
    except ValueError:
        return False
    if not parts or parts[0] not in WATCHED or "__pycache__" in parts:
        return False
    return len(parts) == 1 or parts[-1].endswith((".py", ".md", ".toml"))

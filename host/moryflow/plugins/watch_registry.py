"""The plugins' file watches, served by the host's reloader if it has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Watches = dict[tuple[str, Path], Callable[[Path], None]]


class Hub:
    """What plugins want watched, by plugin and path. A host that does not reload never looks at it.

    :ivar changed: called when the wishes have changed; `asked` when a plugin asks for a new generation. From any thread.
    """

    def __init__(self) -> None:
        self.watches: Watches = {}
        self.changed: Callable[[], None] = lambda: None
        self.asked: Callable[[], None] = lambda: None

    def watch(self, plugin: str, path: Path, tell: Callable[[Path], None]) -> Callable[[], None]:
        """Tell `plugin` of changes below `path`; return what ends that. A second wish takes the place of the first."""
        key = (plugin, path.absolute())
        self.watches[key] = tell
        self.changed()

        def end() -> None:
            if self.watches.get(key) is tell:
                del self.watches[key]
                self.changed()

        return end

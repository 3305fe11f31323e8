"""What the input of a conversation puts in place of parts of prompt_toolkit: keys, history, printer, styles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.patch_stdout import StdoutProxy

from moryflow.cli.terminal import streams

# Seconds for which texts are collected before they are printed above the input.
BUNDLE = 0.02
# Nothing but the terminal's own colours, and no box behind the lists.
COLOURS = {
    "dim": "dim", "bottom-toolbar": "noreverse dim", "completion-menu": "bg:default fg:default", "scrollbar": "bg:default",
    "completion-menu.completion": "bg:default fg:default",
    "completion-menu.completion.current": "bg:default fg:default reverse",
    "completion-menu.meta.completion": "bg:default fg:default dim",
    "completion-menu.meta.completion.current": "bg:default fg:default",
}  # fmt: skip


class LongHistory(FileHistory):
    """The history in a file, with the pastes unfolded: another conversation does not have them."""

    def __init__(self, file: Path, unfolded: Callable[[str], str]) -> None:
        super().__init__(str(file))
        self._unfolded = unfolded

    def append_string(self, string: str) -> None:
        super().append_string(self._unfolded(string))


class Keys(Vt100Input):
    """The keys of the terminal, which are not echoed while something is printed above the input either."""

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


class Printer(StdoutProxy):
    """Replaces both standard streams while the input is shown, and prints text above it; a redirected output stays."""

    def __init__(self) -> None:
        super().__init__(BUNDLE, raw=True)
        self._streams = streams.stdout(), streams.stderr()
        stream: Any = self
        streams.use(stream if self._streams[0].isatty() else self._streams[0], stream)
        streams.restore()

    def write(self, data: str) -> int:
        return super().write(streams.without_secrets(data))

    def close(self) -> None:
        super().close()
        streams.use(*self._streams)
        streams.restore()

"""What Tab and typing complete in a conversation: commands behind a slash, files behind an @, items of a list."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion

from moryflow.cli.terminal import cut, plain, terminal_width

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from . import PickItem

MAX_FILES = 20_000
# The most files that are offered: the whole list is measured each time it is drawn.
MAX_OFFERED = 100
# Seconds after which the files are listed anew.
FRESH = 5.0


class ItemCompleter(Completer):
    """Offers the items that have every word which was typed; choosing one types its key."""

    def __init__(self, items: Sequence[PickItem]) -> None:
        self._items = items

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        back = -len(document.text_before_cursor)
        for item in self._matching(document.text):
            yield Completion(item.key, back, display=cut(plain(item.text).replace("\n", " "), (terminal_width() or 80) - 3))

    def has(self, key: str) -> bool:
        return any(item.key == key for item in self._items)

    def picked(self, typed: str) -> str:
        """Return the key that was typed, or that of the first item found; empty if nothing was typed or fits."""
        found = self._matching(typed) if typed and not self.has(typed) else []
        return found[0].key if found else typed if self.has(typed) else ""

    def _matching(self, typed: str) -> list[PickItem]:
        words = [] if self.has(typed) else typed.lower().split()
        return [item for item in self._items if all(word in item.text.lower() for word in words)]


class LineCompleter(Completer):
    """Completes a line of a conversation. Files that git ignores are left out.

    :param files: lists the files of the vault, by path relative to the vault.
    :param commands: returns each command that may follow a slash, with what it does, the most useful first.
    :param past: the lines that were typed before; the commands among them are offered first.
    """

    def __init__(
        self, files: Callable[[], Iterable[str]], commands: Callable[[], Mapping[str, str]], past: Iterable[str] = ()
    ) -> None:
        self._list = files
        self._commands = commands
        self._used = Counter(line[1:].split(maxsplit=1)[0] for line in past if re.match(r"/\w", line))
        self._listed = 0.0
        self._files: list[str] = []

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = completed(document.text_before_cursor)
        if word.startswith("/"):
            yield from self._slash(word)
        elif word:
            yield from (Completion(path, 1 - len(word)) for path in nearest(word[1:], self._paths()))

    async def get_completions_async(self, document: Document, complete_event: CompleteEvent) -> AsyncGenerator[Completion]:
        """Yield the same completions; files are listed in a thread."""
        if completed(document.text_before_cursor).startswith("/"):
            for found in self.get_completions(document, complete_event):
                yield found
            return
        for found in await asyncio.to_thread(list, self.get_completions(document, complete_event)):
            yield found

    def _slash(self, text: str) -> Iterator[Completion]:
        known, typed = self._commands(), text[1:].lower()
        fuzzy = re.compile(".*?".join(map(re.escape, typed)), re.IGNORECASE)
        place = {name: number for number, name in enumerate(known)}

        def order(name: str) -> tuple[object, ...]:
            return not name.lower().startswith(typed), typed not in name.lower(), -self._used[name], place[name]

        for name in sorted((name for name in known if fuzzy.search(name)), key=order):
            yield Completion(name, start_position=1 - len(text), display=f"/{name}", display_meta=known[name])

    def _paths(self) -> list[str]:
        if time.monotonic() - self._listed > FRESH:
            self._files, self._listed = list(islice(self._list(), MAX_FILES)), time.monotonic()
        return self._files


def completed(text: str) -> str:
    """Return the word at the end of `text` that can be completed: a command, or a file behind an @; else an empty text."""
    word = text.rsplit(maxsplit=1)[-1] if text.strip() and not text[-1].isspace() else ""
    return word if word.startswith("@") or (word == text and text.startswith("/")) else ""


def nearest(typed: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that hold the characters of `typed` in order, best first: together, in the name, early, short."""
    pattern = re.compile(".*?".join(map(re.escape, typed)), re.IGNORECASE)
    found = ((match, path) for path in paths if (match := pattern.search(path)))

    def distance(item: tuple[re.Match[str], str]) -> tuple[object, ...]:
        match, path = item
        name = path.rfind("/", 0, len(path) - 1) + 1
        return len(match[0]), typed.lower() not in path[name:].lower(), abs(match.start() - name), len(path), path

    return [path for _, path in nsmallest(MAX_OFFERED, found, key=distance)]

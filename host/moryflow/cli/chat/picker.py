"""A list above the input, to pick one item from: typing narrows the list, arrow keys move, a preview stands below."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from moryflow.cli.terminal import cut, plain, terminal_width

SHOWN = 10
"""The most items that are shown at once; a low terminal shows fewer."""
PREVIEW = 6
"""The most lines of a preview."""
HINT = "Enter picks, Esc leaves; type to search > "
Fragments = list[tuple[str, str]]
Preview = Callable[[str], Awaitable[str]]
"""Returns the content of the item with a key."""


class PickItem(NamedTuple):
    """An item that can be picked.

    :ivar key: what picking it returns.
    :ivar text: the line that is shown; typing narrows the list to items whose line has every word.
    """

    key: str
    text: str


class Picker:
    """Knows which item is chosen, and renders the list.

    :param preview: is called for an item when that is chosen for the first time.
    :param chosen: the key of the item that is chosen at first.
    :param changed: called when there is something new to show.
    """

    narrows = guarded = True
    letters: Sequence[str] = ()

    def __init__(
        self, title: str, items: Sequence[PickItem], preview: Preview | None, chosen: str, changed: Callable[[], None]
    ) -> None:
        self._title, self._items, self._preview, self._changed = title, items, preview, changed
        self._previews: dict[str, list[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._typed = ""
        self._place = next((place for place, item in enumerate(items) if item.key == chosen), 0)

    def move(self, by: int) -> None:
        """Move the choice by `by` items; the first item follows the last."""
        found = self._matching()
        self._place = (self._place + by) % len(found) if found else 0

    def answer(self, typed: str) -> str:
        """Return the key of the chosen item; empty if no item fits what was typed."""
        self._narrow(typed)
        found = self._matching()
        return found[self._place].key if found else ""

    def fragments(self, typed: str, rows: int) -> Fragments:
        """Return the list, the chosen item marked, in at most two thirds of `rows`."""
        self._narrow(typed)
        found, columns = self._matching(), (terminal_width() or 80) - 1
        most = max(3, min(SHOWN, rows // 2 - 2))
        first = min(max(0, self._place - most // 2), max(0, len(found) - most))
        shown: Fragments = [("class:dim", _line(f"{self._title} · {len(found)} of {len(self._items)}", columns))]
        for place, item in enumerate(found[first : first + most], first):
            here = place == self._place
            shown.append(("class:chosen" if here else "", _line(f"{'›' if here else ' '} {item.text}", columns)))
        if found:
            lines = self._preview_of(found[self._place].key)[: max(0, min(PREVIEW, rows // 2 - 4))]
            shown += [("class:dim", _line(f"  │ {line}", columns)) for line in lines]
        return [*shown, ("class:dim", HINT if len(HINT) < columns else "search > ")]

    def _narrow(self, typed: str) -> None:
        if typed != self._typed:
            self._typed, self._place = typed, 0

    def _matching(self) -> list[PickItem]:
        words = self._typed.lower().split()
        return [item for item in self._items if all(word in item.text.lower() for word in words)]

    def _preview_of(self, key: str) -> list[str]:
        if self._preview is not None and key not in self._previews:
            self._previews[key] = []
            task = asyncio.get_running_loop().create_task(self._load(self._preview, key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._previews.get(key, [])

    async def _load(self, preview: Preview, key: str) -> None:
        self._previews[key] = [line for line in plain(await preview(key)).split("\n") if line.strip()]
        self._changed()


class Choices:
    """The answers on offer to a question. Arrow keys choose one; at first none is chosen.

    :ivar letters: each answers as soon as it is pressed alone.
    :ivar guarded: keys that were meant for something else must not answer; a reason follows the key that asks for it at once.
    """

    narrows = False

    def __init__(self, keys: str = "") -> None:
        self._keys = keys
        self._words = re.findall(r"\[\w\]\w+(?: \w+)*", keys)
        self.letters = [word[1] for word in self._words]
        self.guarded = "[" in keys
        self._chosen = -1

    def answer(self, typed: str) -> str:
        """Return what was typed, or else the letter of the chosen answer."""
        return typed or (self._words[self._chosen][1] if self._chosen >= 0 else "")

    def move(self, by: int) -> None:
        if self._words:
            before = self._chosen if self._chosen >= 0 else -1 if by > 0 else 0
            self._chosen = (before + by) % len(self._words)

    def fragments(self, typed: str, rows: int) -> Fragments:
        """Return the line of answers, the chosen one marked."""
        if self._chosen < 0:
            return [("", self._keys)]
        before, word, after = self._keys.partition(self._words[self._chosen])
        return [("", before), ("class:chosen", word), ("", after)]


def _line(text: str, columns: int) -> str:
    return cut(plain(text).replace("\n", " "), columns) + "\n"

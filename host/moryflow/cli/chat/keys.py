"""The keys of a conversation's input, and the line of answers that arrow keys choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent


class KeyTarget(Protocol):
    """What keys ask and do, as :class:`moryflow.cli.chat.input.TerminalInput` has it."""

    @property
    def asked(self) -> bool: ...
    @property
    def works(self) -> bool: ...
    @property
    def empty(self) -> bool: ...
    @property
    def begins(self) -> bool: ...
    @property
    def queued(self) -> bool: ...
    @property
    def slash(self) -> bool: ...
    def enter(self) -> None: ...
    def choose(self, by: int) -> None: ...
    def end(self) -> None: ...
    def clear(self) -> None: ...
    def stop(self) -> None: ...
    def take_back(self) -> None: ...
    def complete_command(self) -> None: ...
    async def tab(self) -> None: ...
    async def show_last(self) -> None: ...


def bindings(shown: KeyTarget) -> KeyBindings:
    """Return what the keys do, beside what prompt_toolkit has them do."""
    keys = KeyBindings()
    _lines(keys, shown)
    _answers(keys, shown)
    _turns(keys, shown)
    return keys


def _lines(keys: KeyBindings, shown: KeyTarget) -> None:
    asked, begins = Condition(lambda: shown.asked), Condition(lambda: shown.begins)

    @keys.add("enter")
    @keys.add("c-j", filter=asked | begins)
    def _(event: KeyPressEvent) -> None:
        shown.enter()

    @keys.add("c-j", filter=~asked & ~begins)
    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        shown.clear()

    @keys.add("tab", filter=Condition(lambda: shown.slash))
    def _(event: KeyPressEvent) -> None:
        shown.complete_command()

    @keys.add("tab", filter=Condition(lambda: shown.empty and not shown.asked and not shown.works))
    async def _(event: KeyPressEvent) -> None:
        await shown.tab()


def _answers(keys: KeyBindings, shown: KeyTarget) -> None:
    choosing = Condition(lambda: shown.asked and shown.empty)

    @keys.add("left", filter=choosing)
    @keys.add("up", filter=choosing)
    def _(event: KeyPressEvent) -> None:
        shown.choose(-1)

    @keys.add("right", filter=choosing)
    @keys.add("down", filter=choosing)
    def _(event: KeyPressEvent) -> None:
        shown.choose(1)

    @keys.add("c-d", filter=choosing)
    def _(event: KeyPressEvent) -> None:
        shown.end()


def _turns(keys: KeyBindings, shown: KeyTarget) -> None:
    works = Condition(lambda: shown.works)

    @keys.add("escape", filter=works)
    def _(event: KeyPressEvent) -> None:
        shown.stop()

    @keys.add("up", filter=Condition(lambda: shown.works and shown.empty and shown.queued))
    def _(event: KeyPressEvent) -> None:
        shown.take_back()

    @keys.add("c-o")
    @keys.add("c-r", filter=works)
    async def _(event: KeyPressEvent) -> None:
        await shown.show_last()


class Choices:
    """The answers on offer, of which arrow keys choose one; none is chosen before."""

    def __init__(self, keys: str = "") -> None:
        self._keys = keys
        self._words = [word for word in keys.split("  ") if word.strip().startswith("[")]
        self._chosen = -1

    @property
    def word(self) -> str:
        """The letter that stands for what is chosen."""
        return self._words[self._chosen].strip()[1] if self._chosen >= 0 else ""

    def move(self, by: int) -> None:
        """Choose the next or the last one."""
        if self._words:
            before = self._chosen if self._chosen >= 0 else -1 if by > 0 else 0
            self._chosen = (before + by) % len(self._words)

    def fragments(self) -> list[tuple[str, str]]:
        """Return the line, the chosen answer marked."""
        if self._chosen < 0:
            return [("", self._keys)]
        before, word, after = self._keys.partition(self._words[self._chosen].split(" >")[0].strip())
        return [("", before), ("class:chosen", word), ("", after)]

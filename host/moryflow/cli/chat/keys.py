"""The key bindings of a conversation's input, and how keys are read from the terminal."""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from prompt_toolkit.application.current import get_app
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

from .completion import complete_command

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyPressEvent


AT_ONCE = 32
"""If more characters than this come at once, they are a paste: nobody types so fast."""


class KeyTarget(Protocol):
    """What the key bindings need from :class:`moryflow.cli.chat.input.TerminalInput`."""

    commands: Callable[[], Mapping[str, str]]
    tab: Callable[[], Coroutine[Any, Any, None]]

    @property
    def is_asked(self) -> bool: ...
    @property
    def turn_runs(self) -> bool: ...
    @property
    def empty(self) -> bool: ...
    @property
    def is_starting(self) -> bool: ...
    @property
    def has_queued(self) -> bool: ...
    @property
    def is_command(self) -> bool: ...
    @property
    def is_picking(self) -> bool: ...
    def enter(self) -> None: ...
    def choose(self, by: int) -> None: ...
    def end(self) -> None: ...
    def clear(self) -> None: ...
    def leave(self) -> None: ...
    def take_back(self) -> None: ...
    def suspend(self) -> None: ...
    def paste(self, text: str) -> None: ...
    async def paste_image(self) -> None: ...
    async def show_last(self) -> None: ...


def bindings(target: KeyTarget) -> KeyBindings:
    """Return our key bindings, which are added to those of prompt_toolkit."""
    keys = KeyBindings()
    _lines(keys, target)
    _answers(keys, target)
    _turns(keys, target)
    return keys


def keys_joined(keys: Sequence[KeyPress]) -> list[KeyPress]:
    """Join each long run of characters among keys that came at once into one paste; an Enter after the run stays an Enter.

    A terminal that does not mark a paste sends it as keys, and each of 10,000 lines of keys is laid out anew.
    """
    joined: list[KeyPress] = []
    run: list[KeyPress] = []
    for key in [*keys, None]:
        if key is not None and (len(key.key) == 1 or key.key in _WRITTEN) and not (not run and _begins_a_key(joined)):
            run.append(key)
            continue
        end = len(run) if len(run) <= AT_ONCE or run[-1].key not in _ENTERS else len(run) - 1
        text = "".join(one.data for one in run[:end])
        joined += [KeyPress(Keys.BracketedPaste, text), *run[end:]] if end > AT_ONCE else run
        joined += [key] if key is not None else []
        run = []
    return joined


def _begins_a_key(keys: Sequence[KeyPress]) -> bool:
    """Return whether the last key is an Esc, which a terminal sends before a key that is typed with Alt."""
    return bool(keys) and keys[-1].key == Keys.Escape


_ENTERS = (Keys.ControlM, Keys.ControlJ)
_WRITTEN = (*_ENTERS, Keys.ControlI)


class TerminalKeys(Vt100Input):
    """Reads the keys of the terminal: joins those that come at once, and ends when the terminal is gone."""

    def read_keys(self) -> list[KeyPress]:
        keys = keys_joined(super().read_keys())
        if not keys and self._is_gone():
            self.stdin_reader.closed = True  # ends the input; the library would try again for ever
        return keys

    def _is_gone(self) -> bool:
        """Return whether the other side of the terminal is closed: reading fails then, but may also fail during a resize."""
        look = select.poll()
        look.register(self.fileno(), 0)  # POLLHUP and POLLERR are reported without being asked for
        return bool(look.poll(0))


def _lines(keys: KeyBindings, target: KeyTarget) -> None:
    asked, begins = Condition(lambda: target.is_asked), Condition(lambda: target.is_starting)

    @keys.add("enter")
    @keys.add("c-j", filter=asked | begins)
    def _(event: KeyPressEvent) -> None:
        target.enter()

    @keys.add("c-j", filter=~asked & ~begins)
    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-x", "c-e", filter=~asked)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()  # Enter sends what the editor wrote

    @keys.add("c-v")
    async def _(event: KeyPressEvent) -> None:
        await target.paste_image()

    @keys.add("<bracketed-paste>")
    def _(event: KeyPressEvent) -> None:
        target.paste(event.data.replace("\r\n", "\n").replace("\r", "\n"))

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        target.clear()

    @keys.add("tab", filter=Condition(lambda: target.is_command))
    def _(event: KeyPressEvent) -> None:
        complete_command(event.current_buffer, target.commands())

    @keys.add("tab", filter=Condition(lambda: target.empty and not target.is_asked and not target.turn_runs))
    async def _(event: KeyPressEvent) -> None:
        await target.tab()  # prompt_toolkit redraws when this has ended


def _answers(keys: KeyBindings, target: KeyTarget) -> None:
    picking = Condition(lambda: target.is_picking)
    choosing = Condition(lambda: target.is_asked and target.empty)

    @keys.add("left", filter=choosing & ~picking)
    @keys.add("up", filter=choosing | picking)
    @keys.add("c-p", filter=picking)
    def _(event: KeyPressEvent) -> None:
        target.choose(-1)

    @keys.add("right", filter=choosing & ~picking)
    @keys.add("down", filter=choosing | picking)
    @keys.add("c-n", filter=picking)
    @keys.add("tab", filter=picking)
    def _(event: KeyPressEvent) -> None:
        target.choose(1)

    @keys.add("c-d", filter=choosing)
    def _(event: KeyPressEvent) -> None:
        target.end()


def _turns(keys: KeyBindings, target: KeyTarget) -> None:
    works = Condition(lambda: target.turn_runs)
    alone = Condition(lambda: not get_app().key_processor.input_queue)  # else the Esc begins an Alt-Enter

    @keys.add("escape", filter=works | has_completions | Condition(lambda: target.is_asked), eager=alone)
    def _(event: KeyPressEvent) -> None:
        target.leave()

    @keys.add("up", filter=Condition(lambda: target.turn_runs and target.has_queued))
    def _(event: KeyPressEvent) -> None:
        target.take_back()

    @keys.add("c-z")
    def _(event: KeyPressEvent) -> None:
        target.suspend()

    @keys.add("c-o")
    @keys.add("c-r", filter=works)
    async def _(event: KeyPressEvent) -> None:
        await target.show_last()

"""The keys of a conversation's input, images that are pasted, and what Tab and typing complete: commands behind a slash, files
behind an @.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moryflow_sdk.support.texts import visible
from prompt_toolkit.application.current import get_app
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments

from . import mention

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyPressEvent


AT_ONCE = 32
"""More characters than that which come at once are a paste: nobody types so fast."""


class KeyTarget(Protocol):
    """What keys ask and do, as :class:`moryflow.cli.chat.input.TerminalInput` has it."""

    commands: Callable[[], Mapping[str, str]]
    tab: Callable[[], Coroutine[Any, Any, None]]

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
    @property
    def picks(self) -> bool: ...
    def enter(self) -> None: ...
    def choose(self, by: int) -> None: ...
    def end(self) -> None: ...
    def clear(self) -> None: ...
    def leave(self) -> None: ...
    def take_back(self) -> None: ...
    def paste(self, text: str) -> None: ...
    async def paste_image(self) -> None: ...
    async def show_last(self) -> None: ...


def bindings(shown: KeyTarget) -> KeyBindings:
    """Return what the keys do, beside what prompt_toolkit has them do."""
    keys = KeyBindings()
    _lines(keys, shown)
    _answers(keys, shown)
    _turns(keys, shown)
    return keys


def keys_joined(keys: Sequence[KeyPress]) -> list[KeyPress]:
    """Return what came at once with each long run of characters as one paste; an Enter behind it stays an Enter.

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
    """Whether the last key is an Esc, as a terminal sends it before what is typed with Alt."""
    return bool(keys) and keys[-1].key == Keys.Escape


_ENTERS = (Keys.ControlM, Keys.ControlJ)
_WRITTEN = (*_ENTERS, Keys.ControlI)


class TerminalKeys(Vt100Input):
    """The keys of the terminal: what comes at once is joined, and the end of the terminal is the end of the keys."""

    def read_keys(self) -> list[KeyPress]:
        keys = keys_joined(super().read_keys())
        if not keys and self._is_gone():
            self.stdin_reader.closed = True  # which ends the input; the library would try again for ever
        return keys

    def _is_gone(self) -> bool:
        """Whether the other side of the terminal is closed: reading is an error then, as it may be in a resize."""
        look = select.poll()
        look.register(self.fileno(), 0)  # the system tells of what ended all the same
        return bool(look.poll(0))


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

    @keys.add("c-x", "c-e", filter=~asked)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()  # Enter sends what it wrote

    @keys.add("c-v")
    async def _(event: KeyPressEvent) -> None:
        await shown.paste_image()

    @keys.add("<bracketed-paste>")
    def _(event: KeyPressEvent) -> None:
        shown.paste(event.data.replace("\r\n", "\n").replace("\r", "\n"))

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        shown.clear()

    @keys.add("tab", filter=Condition(lambda: shown.slash))
    def _(event: KeyPressEvent) -> None:
        complete_command(event.current_buffer, shown.commands())

    @keys.add("tab", filter=Condition(lambda: shown.empty and not shown.asked and not shown.works))
    async def _(event: KeyPressEvent) -> None:
        await shown.tab()  # prompt_toolkit draws anew when it has ended


def _answers(keys: KeyBindings, shown: KeyTarget) -> None:
    picking = Condition(lambda: shown.picks)
    choosing = Condition(lambda: shown.asked and shown.empty)

    @keys.add("left", filter=choosing & ~picking)
    @keys.add("up", filter=choosing | picking)
    @keys.add("c-p", filter=picking)
    def _(event: KeyPressEvent) -> None:
        shown.choose(-1)

    @keys.add("right", filter=choosing & ~picking)
    @keys.add("down", filter=choosing | picking)
    @keys.add("c-n", filter=picking)
    @keys.add("tab", filter=picking)
    def _(event: KeyPressEvent) -> None:
        shown.choose(1)

    @keys.add("c-d", filter=choosing)
    def _(event: KeyPressEvent) -> None:
        shown.end()


def _turns(keys: KeyBindings, shown: KeyTarget) -> None:
    works = Condition(lambda: shown.works)
    alone = Condition(lambda: not get_app().key_processor.input_queue)  # else it begins an Alt-Enter

    @keys.add("escape", filter=works | has_completions | Condition(lambda: shown.asked), eager=alone)
    def _(event: KeyPressEvent) -> None:
        shown.leave()

    @keys.add("up", filter=Condition(lambda: shown.works and shown.queued))
    def _(event: KeyPressEvent) -> None:
        shown.take_back()

    @keys.add("c-o")
    @keys.add("c-r", filter=works)
    async def _(event: KeyPressEvent) -> None:
        await shown.show_last()


# ---------------------------------------------------------------- Images that are pasted


_COMMANDS = (
    ("WAYLAND_DISPLAY", ("wl-paste", "--no-newline", "--type", "image/png")),
    ("DISPLAY", ("xclip", "-selection", "clipboard", "-target", "image/png", "-out")),
    ("", ("pngpaste", "-")),
)
"""What prints the image of a clipboard, with the variable without which it has none to ask."""
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def image_of(pasted: str) -> str:
    """Return the mention of the image whose path was pasted, an empty text where it was something else."""
    try:
        words = shlex.split(pasted.strip()) if len(pasted) < 4096 else []
    except ValueError:
        return ""
    path = Path(words[0].removeprefix("file://")) if len(words) == 1 else None
    try:
        return mention(str(path)) if path and path.is_absolute() and path.suffix.lower() in _IMAGES and path.is_file() else ""
    except OSError:
        return ""


class Clipboard:
    """Images that were copied, as files that last as long as the conversation."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def image(self) -> str:
        """Return the mention of the image that was copied; where there is none say so, and return an empty text."""
        data = _copied_image()
        if not data:
            sys.stderr.write("no image in the clipboard, or nothing here that reads it (wl-paste, xclip, pngpaste)\n")
            return ""
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="moryflow-")
        path = Path(self._folder.name, f"{hashlib.sha256(data).hexdigest()[:8]}.png")
        path.write_bytes(data)
        return f"{mention(str(path))} "


def _copied_image() -> bytes:
    for variable, command in _COMMANDS:
        if (variable and variable not in os.environ) or shutil.which(command[0]) is None:
            continue
        try:
            found = subprocess.run(command, capture_output=True, check=False, timeout=3).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found.startswith(b"\x89PNG"):
            return found
    return b""


# ---------------------------------------------------------------- What Tab and typing complete


MOST_FILES = 20_000
MOST_OFFERED = 100
"""Files that are offered: the whole list of what is offered is measured each time it is drawn."""
FRESH = 5.0
"""Seconds for which a list of files is used again."""


class LineCompleter(Completer):
    """Completes a line of a conversation. Files that git ignores are left out.

    :param files: lists the files of the vault, from there.
    :param commands: what may follow a slash, with what it does.
    """

    def __init__(self, files: Callable[[], Iterable[str]], commands: Callable[[], Mapping[str, str]]) -> None:
        self._list = files
        self._commands = commands
        self._listed = 0.0
        self._files: list[str] = []

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = completed(document.text_before_cursor)
        if word.startswith("/"):
            yield from self._slash(word)
        elif word:
            yield from (Completion(path, 1 - len(word)) for path in nearest(word[1:], self._paths()))

    async def get_completions_async(self, document: Document, complete_event: CompleteEvent) -> AsyncGenerator[Completion]:
        """Do the same; files are looked for in a thread."""
        if completed(document.text_before_cursor).startswith("/"):
            for found in self.get_completions(document, complete_event):
                yield found
            return
        for found in await asyncio.to_thread(list, self.get_completions(document, complete_event)):
            yield found

    def _slash(self, text: str) -> Iterator[Completion]:
        for name, does in sorted(self._commands().items()):
            if name.startswith(text[1:]):
                yield Completion(name, start_position=1 - len(text), display=f"/{name}", display_meta=does)

    def _paths(self) -> list[str]:
        if time.monotonic() - self._listed > FRESH:
            self._files, self._listed = list(islice(self._list(), MOST_FILES)), time.monotonic()
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

    return [path for _, path in nsmallest(MOST_OFFERED, found, key=distance)]


def complete_command(buffer: Buffer, names: Iterable[str]) -> None:
    """Complete a command as far as it is clear, then offer what fits."""
    typed = buffer.document.text_before_cursor
    common = os.path.commonprefix([f"/{name}" for name in names if f"/{name}".startswith(typed)])  # noqa: RUF071
    if len(common) > len(typed):
        buffer.insert_text(common[len(typed) :])
    elif buffer.complete_state:
        buffer.complete_next()
    else:
        buffer.start_completion()


class Unseen(Processor):
    """Spells out characters that nobody sees, as they are in a question; what is sent is what was typed."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments = transformation_input.fragments
        if fragment_list_to_text(fragments).isascii():
            return Transformation(fragments)
        shown: StyleAndTextTuples = [(style, _spelled(one)) for style, one, *_ in explode_text_fragments(fragments)]
        places = list(accumulate((len(one[1]) for one in shown), initial=0))
        places.append(places[-1] + 1)  # the cursor may stand behind the line
        return Transformation(shown, places.__getitem__, lambda place: bisect_right(places, place) - 1)


@lru_cache(4096)
def _spelled(one: str) -> str:
    """Return a character as it is shown behind a letter, on which a combining mark may stand."""
    return one if one in "\ufe0e\ufe0f" else visible(f"a{one}", keep="\t")[1:]

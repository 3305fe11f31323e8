"""How keys are read from the terminal while the input of a conversation is shown."""

from __future__ import annotations

import select
from collections.abc import Sequence

from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

AT_ONCE = 32
"""If more characters than this come at once, they are a paste: nobody types so fast."""


def keys_joined(keys: Sequence[KeyPress]) -> list[KeyPress]:
    """Join each long run of characters among keys that came at once into one paste; an Enter after the run stays an Enter.

    A terminal that does not mark a paste sends it as keys, and each of 10,000 lines of keys is laid out anew.
    """
    joined: list[KeyPress] = []
    run: list[KeyPress] = []
    for key in [*keys, None]:
        with_alt = not run and bool(joined) and joined[-1].key == Keys.Escape  # a terminal sends an Esc before such a key
        if key is not None and (len(key.key) == 1 or key.key in _WRITTEN) and not with_alt:
            run.append(key)
            continue
        end = len(run) if len(run) <= AT_ONCE or run[-1].key not in _ENTERS else len(run) - 1
        text = "".join(one.data for one in run[:end])
        joined += [KeyPress(Keys.BracketedPaste, text), *run[end:]] if end > AT_ONCE else run
        joined += [key] if key is not None else []
        run = []
    return joined


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

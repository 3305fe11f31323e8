"""Standard output of the command line: what plugins print in a hook or a tool goes to standard error instead.

Who reads ``--json`` or the events of a run must find nothing there that is not ours.
"""

from __future__ import annotations

import sys
import threading
from io import TextIOWrapper

_PLUGINS = "moryflow_plugins."
"""How the modules of a person's own plugins begin (:mod:`moryflow.loading.sources`, too much to import for a word)."""
_MAIN = threading.main_thread()


class Stdout(TextIOWrapper):
    """Takes what the host writes, on its one thread, and passes on what comes from elsewhere.

    :param shared: a plugin's own command runs, and what it prints is the answer.
    """

    shared = False

    def write(self, text: str, /) -> int:
        """Write a text where it belongs."""
        if threading.current_thread() is not _MAIN or (not self.shared and _is_plugin(sys._getframe(1).f_globals)):
            return sys.stderr.write(text)
        return super().write(text)


def install() -> None:
    """Put it in the place of a plain standard output; one that somebody else has put there is theirs."""
    found = sys.stdout
    if type(found) is not TextIOWrapper:
        return
    settings = {"encoding": found.encoding, "errors": found.errors, "line_buffering": found.line_buffering}
    sys.stdout = Stdout(found.detach(), **settings, write_through=found.write_through)
    if sys.__stdout__ is found:
        sys.__stdout__ = sys.stdout


def share() -> None:
    """Let plugins print: a command of one of them begins."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.shared = True


def _is_plugin(names: dict[str, object]) -> bool:
    return str(names.get("__name__", "")).startswith(_PLUGINS)

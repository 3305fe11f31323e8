"""Python's warnings about code that runs, such as an invalid escape: only the author is shown them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

from moryflow_sdk import PluginError

from .sources import read_owned


def slips(paths: Iterable[Path]) -> list[str]:
    """Return a sentence with file and line for each slip; a file that cannot be compiled says so elsewhere.

    For a command with one thread: while it looks, what others warn of is not shown.
    """
    return [said for path in paths for said in _slips(path)]


def _slips(path: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SyntaxWarning)
        warnings.simplefilter("always", DeprecationWarning)  # what escapes are none, on Python 3.11
        try:
            compile(read_owned(path), str(path), "exec", dont_inherit=True)
        except (PluginError, SyntaxError, ValueError, RecursionError, MemoryError):
            return []
    return list(dict.fromkeys(f"{each.filename}:{each.lineno}: {' '.join(str(each.message).split())}" for each in found))

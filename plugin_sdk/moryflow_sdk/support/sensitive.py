"""Whether a file holds secrets, told by its name: one file, or many at once. The names are in :data:`SECRETS`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from .patterns.globs import braces
from .protected_files import SECRETS

_CREDENTIALS = re.compile(
    r"(?<=://)(?!git@)[^/\s@]+@|^\s*(?:extraheader|\w*(?:token|password|secret)\w*)\s*=.*$", re.IGNORECASE | re.MULTILINE
)


def sensitive(path: str) -> bool:
    """Whether `path` (a name, a path or a target's text, with ``/`` between names) looks like a file of secrets."""
    return SECRETS.find(path) is not None


def sensitive_among(paths: Iterable[str]) -> set[str]:
    """Return those of many `paths` that are :func:`sensitive`; looks at each piece once, not at each path."""
    every = list(paths)
    plain = [path for path in every if path.isascii()]
    suspects = set(_containing("\0".join(["", *plain, ""]))) | {path for path in every if not path.isascii()}
    return {path for path in suspects if sensitive(path)}


@cache
def _telling() -> tuple[str, ...]:
    """Return pieces of the globs, one of which stands in every name that any of them matches."""
    pieces = {
        max(re.split(r"\[[^]]*\]|[*/]", name.lower()), key=len)
        for glob in (*SECRETS.files, *SECRETS.folders)
        for name in braces(glob)
    }
    return tuple(sorted(piece for piece in pieces if not any(other in piece for other in pieces - {piece})))


def _containing(listing: str) -> Iterator[str]:
    """Yield the paths of a listing, each between two NUL characters, in which a telling piece stands."""
    lower = listing.lower()
    for piece in _telling():
        found = lower.find(piece)
        while found >= 0:
            end = listing.index("\0", found)
            yield listing[listing.rindex("\0", 0, found) + 1 : end]
            found = lower.find(piece, end)


def without_git_credentials(text: str) -> str:
    """Return a configuration of git (``.git/config``) without the tokens and passwords in it; most have none."""
    return _CREDENTIALS.sub("", text)

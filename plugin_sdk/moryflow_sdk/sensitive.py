"""Which files hold secrets, told by their names; the one list for rules, search and everything else (S0.33, D3).

The globs are matched without regard to case; ``*`` stops at ``/``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from fnmatch import translate

SENSITIVE_NAMES: tuple[str, ...] = (
    "*.env", "*.env[!a-z]*", ".envrc",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.ppk", "*.kdbx", "*.keystore", "*.keychain", "*.keychain-db",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    ".npmrc", ".pypirc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".htpasswd", ".s3cfg", ".boto", ".dockercfg",
    ".vault-token", "credentials", "credentials.json", "credentials.y*ml", "credentials.toml", "credentials.ini",
    "credentials.csv", "credentials.xml", "credentials.txt", "*.credentials", "*-credentials", "*_credentials",
    "*[-_.]credentials.json", "client_secret*.json", "service[-_]account*.json",
    "secrets.json", "secrets.y*ml", "secrets.toml", "secrets.ini", "secrets.txt",
)  # fmt: skip
"""Globs of file names. ``*.env[!a-z]*`` is ``.env.local`` and ``prod.env-old`` but not ``my.environment.md``."""

SENSITIVE_FOLDERS: tuple[str, ...] = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".envs", ".docker", ".password-store")
"""Folders in which every file counts."""

_NAME = re.compile("|".join(translate(glob) for glob in SENSITIVE_NAMES))
_FOLDERS = frozenset(SENSITIVE_FOLDERS)
_PIECES = {max(re.split(r"\[[^]]*\]|\*", glob), key=len) for glob in (*SENSITIVE_NAMES, *SENSITIVE_FOLDERS)}
_TELLING = tuple(sorted(piece for piece in _PIECES if not any(other in piece for other in _PIECES - {piece})))
"""Pieces of the globs, one of which stands in every name that any of them matches."""

_BACKUP = re.compile(r"(~|\.(bak|backup|old|orig|save|swp|tmp|copy))$")


def sensitive(path: str) -> bool:
    """Whether `path` (a name, a path or a target's text, with ``/`` between names) looks like a file of secrets."""
    return sensitive_name(path) or in_sensitive_folder(path)


def in_sensitive_folder(path: str) -> bool:
    """Whether a folder above `path` is one in which every file counts."""
    return not _FOLDERS.isdisjoint(_plain(path).rstrip("/").split("/")[:-1])


def sensitive_name(path: str) -> bool:
    """Whether the last name of `path` is that of a file of secrets.

    A trailing slash, spaces, dots, a stream (``:name``) or a backup ending hide nothing: some file systems, and
    people, make the same file of them.
    """
    name = _plain(path).rstrip("/").rpartition("/")[2]
    if _NAME.match(name):
        return True
    bare = _BACKUP.sub("", name.partition(":")[0].strip().rstrip(". "))
    return bare != name and _NAME.match(bare) is not None


def sensitive_among(paths: Iterable[str]) -> set[str]:
    """Return those of many `paths` that are :func:`sensitive`; looks at each piece once, not at each path."""
    every = list(paths)
    plain = [path for path in every if path.isascii()]
    suspects = set(_containing("\0".join(["", *plain, ""]))) | {path for path in every if not path.isascii()}
    return {path for path in suspects if sensitive(path)}


def _containing(listing: str) -> Iterator[str]:
    """Yield the paths of a listing, each between two NUL characters, in which a telling piece stands."""
    lower = listing.lower()
    for piece in _TELLING:
        found = lower.find(piece)
        while found >= 0:
            end = listing.index("\0", found)
            yield listing[listing.rindex("\0", 0, found) + 1 : end]
            found = lower.find(piece, end)


def _plain(path: str) -> str:
    """Return `path` as a case-insensitive volume sees it; invisible characters are dropped."""
    if path.isascii():
        return path.lower()
    visible = "".join(c for c in unicodedata.normalize("NFKC", path) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", visible.casefold())

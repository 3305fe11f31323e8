"""Resolves the path that a tool was given into the object that gates judge.

A path is a plain name: ``~`` and ``~/…`` start at the user's home; ``$HOME``, ``%2e``, ``file://`` and back quotes
are literal characters. Links are followed here, one component at a time, so that no later step has to follow one.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from moryflow_sdk import Identity, Target, TargetRequest
from moryflow_sdk.calls import command_in
from moryflow_sdk.services import Files
from moryflow_sdk.support.texts import composed

MAX_LINKS = 40
MAX_PATH = 4096
MAX_NAME = 255
# Files below `/proc` that lead to other objects, or to a process's secrets.
PROCESS_VIEW = re.compile(r"/proc/(self|thread-self|\d+)(/task/\d+)?/(fd|map_files|environ|mem|root|cwd)(/|$)")


class Unresolvable(Exception):
    """The path names nothing that a tool may use."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a path leads: no component of `path` is a link; `status` is that of the object there, ``None`` without one."""

    path: str
    status: os.stat_result | None


class PathResolver:
    """Resolves paths of one vault.

    :param vault: the folder that relative paths start at.
    :param user_home: the folder that ``~`` stands for.
    :param case_sensitive: whether the volume distinguishes ``A`` from ``a``; found by a test if not given.
    """

    def __init__(self, vault: Path, user_home: Path, *, case_sensitive: bool | None = None) -> None:
        self.given_vault = posixpath.normpath(str(vault.absolute()))
        self.user_home = str(user_home)
        self.case_sensitive = tells_case(self.given_vault) if case_sensitive is None else case_sensitive
        self.vault = self.follow(self.given_vault).path

    def resolve(self, path: str, *, domain: str = "read", base: str | None = None, as_stored: bool = False) -> Target:
        """Return the target of `path`; a target that cannot be resolved has an ``error`` and must be denied."""
        given = path if isinstance(path, str) else repr(path)
        try:
            whole = self.absolute(path, base)
            whole = stored_path(whole) if as_stored else whole
            found = self.follow(whole)
            if found.status and (stat.S_ISCHR(found.status.st_mode) or stat.S_ISBLK(found.status.st_mode)):
                raise Unresolvable("it is a device, not a file")
        except (Unresolvable, OSError) as problem:
            reason = os.strerror(problem.errno or 0) if isinstance(problem, OSError) else str(problem)
            shown = printable(given)
            text = "fs:" + shown.replace("\0", "\ufffd")
            return Target(domain=domain, kind="file", text=text, given=shown, error=f"cannot resolve the path: {reason}")
        plain = "/" + posixpath.normpath(whole).lstrip("/")
        lexical = _text_below(self.vault, plain) or _text_below(self.given_vault, plain) or f"fs:{plain}"
        text = self.text(found.path)
        identity = Identity(device=found.status.st_dev, inode=found.status.st_ino) if found.status else None
        return Target(
            domain=domain,
            kind="file",
            text=text,
            given=given,
            path=found.path,
            identity=identity,
            lexical=lexical if lexical != text else None,
        )

    def absolute(self, path: str, base: str | None = None) -> str:
        """Return `path` as an absolute path, without following links or collapsing ``..``.

        :raises Unresolvable: no file can have that name.
        """
        check_path(path)
        if path == "~" or path.startswith("~/"):
            path = self.user_home + path[1:]
        return posixpath.join(self.vault, base or "", path)

    def follow(self, path: str) -> Found:
        """Follow every link of the absolute `path`; components that do not exist stay as they are written.

        :raises Unresolvable: the links form a loop, or lead through a process's own view of the files in ``/proc``.
        """
        todo = path.split("/")[::-1]
        current, status, links, missing = "/", os.lstat("/"), 0, False
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                current, missing = posixpath.dirname(current), False
                status = _status(current)
                continue
            current = posixpath.join(current, name if self.case_sensitive or missing else actual_name(current, name))
            if current.startswith("/proc/") and PROCESS_VIEW.match(current):
                raise Unresolvable("it leads through a process's own view of the files")
            status = None if missing else _status(current)
            missing = status is None
            if status is None or not stat.S_ISLNK(status.st_mode):
                continue
            links += 1
            if links > MAX_LINKS:
                raise Unresolvable("its links are a loop")
            goal = str(Path(current).readlink())
            current = "/" if goal.startswith("/") else posixpath.dirname(current)
            status = None
            todo.extend(check_path(goal).split("/")[::-1])
        return Found(current, status if status or missing else _status(current))

    def text(self, path: str) -> str:
        """Return the canonical text of an absolute, resolved path: ``vault:/…`` below the vault, else ``fs:/…``."""
        return _text_below(self.vault, path) or f"fs:{path}"

    def lexical_path(self, target: Target) -> str | None:
        """Return the absolute path behind ``target.lexical``."""
        if target.lexical is None:
            return None
        kind, _, rest = target.lexical.partition(":")
        return posixpath.normpath(self.vault + rest) if kind == "vault" else rest


def _text_below(vault: str, path: str) -> str | None:
    if path == vault:
        return "vault:/"
    below = vault if vault.endswith("/") else vault + "/"
    return f"vault:/{path[len(below) :]}" if path.startswith(below) else None


def _status(path: str) -> os.stat_result | None:
    """Return the status of `path`, or ``None`` if it cannot be read; opening the path later reports the reason."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def check_path(path: str) -> str:
    """Return `path` if a file can have that name.

    :raises Unresolvable: it is not text, is empty or too long, or contains NUL or a lone surrogate.
    """
    if not isinstance(path, str):
        raise Unresolvable("it is not text")
    if not path:
        raise Unresolvable("it is empty")
    if "\0" in path:
        raise Unresolvable("it contains a NUL character")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise Unresolvable("it is not valid Unicode") from None
    if len(encoded) > MAX_PATH or any(len(name) > MAX_NAME for name in encoded.split(b"/")):
        raise Unresolvable(os.strerror(errno.ENAMETOOLONG))
    return path


def printable(text: str) -> str:
    """Return `text` with ``?`` for each lone surrogate, so that UTF-8 can encode it, cut to :data:`MAX_PATH`."""
    return text.encode("utf-8", "replace").decode()[:MAX_PATH]


def stored_path(path: str) -> str:
    """Return the absolute `path` with names as the disk has them: a model may write ``é`` as one character where the disk has
    two, or the reverse. A name is replaced only if it does not exist and exactly one entry is the same text.
    """
    if path.isascii():
        return path
    found = "/"
    for name in path.split("/"):
        whole = posixpath.join(found, name)
        found = whole if name.isascii() or os.path.lexists(whole) else posixpath.join(found, _stored_name(found, name))
    return found


def _stored_name(folder: str, name: str) -> str:
    wanted = composed(name)
    try:
        with os.scandir(folder) as entries:
            same = [entry.name for entry in entries if composed(entry.name) == wanted]
    except OSError:
        return name
    return same[0] if len(same) == 1 else name


def fold_name(name: str) -> str:
    """Return `name` as a case-insensitive volume compares it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def actual_name(folder: str, name: str) -> str:
    """Return the name under which `folder` stores `name`, on a case-insensitive volume."""
    wanted = fold_name(name)
    try:
        with os.scandir(folder) as entries:
            present = [entry.name for entry in entries]
    except OSError:
        present = []
    if name in present:
        return name
    return next((found for found in present if fold_name(found) == wanted), unicodedata.normalize("NFC", name))


def tells_case(folder: str) -> bool:
    """Return whether the volume of `folder` distinguishes ``A`` from ``a``, tested with a name that exists there."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, 200) if entry.name.swapcase() != entry.name]
    except OSError:
        return True
    known = posixpath.join(folder, names[0]) if names else folder
    other = posixpath.join(posixpath.dirname(known), posixpath.basename(known).swapcase())
    try:
        return not os.path.samestat(os.lstat(known), os.lstat(other))
    except OSError:
        return True


def resolve_target(request: TargetRequest, files: Callable[[], Files]) -> Target:
    """Return `request` as the target that gates judge; one that cannot be resolved has an ``error`` and is denied."""
    if request.kind == "file":
        return files().resolve(request.value, domain=request.domain, as_stored=True)
    if request.kind == "url":
        return _url(request)
    if request.kind == "shell":
        return command_in(files().resolve(request.folder or ".", as_stored=True), request.value, request.domain)
    return Target(domain=request.domain, kind=request.kind, text=f"{request.kind}:{request.value}", given=request.value)


def _url(request: TargetRequest) -> Target:
    target = Target(domain=request.domain, kind="url", text=f"url:{request.value}", given=request.value)
    try:
        parts = urlsplit(request.value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return target.replace(error=f"not a URL: {error}")
    if parts.scheme.lower() not in ("http", "https") or not host:
        return target.replace(error="only http and https URLs with a host can be fetched")
    if parts.username is not None or parts.password is not None:
        return target.replace(error="a URL with a user name or password is refused")
    where = f"[{host}]" if ":" in host else host
    netloc = where if port is None else f"{where}:{port}"
    canonical = urlunsplit((parts.scheme.lower(), netloc, parts.path or "/", parts.query, ""))
    return target.replace(text=f"url:{canonical}")

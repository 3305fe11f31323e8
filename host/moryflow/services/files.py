"""The ``files`` service: what was judged is what is opened, written, moved and removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from moryflow_sdk import Entry, Target, ToolError

from .file_tree import list_folder, read_files, walk_files
from .file_walk import folder_at, held_folder, name_of, open_content, parent_folder, path_of, status_at
from .file_write import move_entry, remove_entry, write_file
from .paths import PathResolver


class VaultFiles:
    """Implements :class:`moryflow_sdk.services.Files` for one vault.

    :param home: Moryflow's own folder; nothing in it is ever changed through here.
    :param user_home: what ``~`` stands for.
    :param case_sensitive: whether the vault's volume tells ``A`` from ``a``; found out when not given.
    """

    def __init__(self, vault: Path, home: Path, user_home: Path, *, case_sensitive: bool | None = None) -> None:
        self._paths = PathResolver(vault, user_home, case_sensitive=case_sensitive)
        self._home = self._paths.follow(str(home.absolute())).path

    @property
    def case_sensitive(self) -> bool:
        """Whether the vault's volume tells ``A`` from ``a``."""
        return self._paths.case_sensitive

    def resolve(self, path: str, *, domain: str = "read", base: str | None = None, as_stored: bool = False) -> Target:
        """Resolve `path` (relative to `base` or the vault) into a target; never raises, see ``Target.error``."""
        return self._paths.resolve(path, domain=domain, base=base, as_stored=as_stored)

    @contextmanager
    def open(self, target: Target) -> Iterator[BinaryIO]:
        """Open a regular file for reading."""
        with parent_folder(target) as (parent, name):
            descriptor = open_content(target, parent, name)
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def read(self, target: Target, *, limit: int = 64 * 1024 * 1024) -> bytes:
        """Return a whole regular file of at most `limit` bytes."""
        with self.open(target) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(limit + 1) if size <= limit else b""
        if size > limit or len(content) > limit:
            raise ToolError(
                f"{name_of(target)} has {max(size, len(content)):,} bytes; the limit is {limit:,}",
                code="too_large",
                next_step="read a part of it with offset and limit, or search it with grep",
            )
        return content

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace or create a regular file atomically and return it with its new identity."""
        self._refuse_home(target)
        if target.identity is None:
            self._refuse_lost_vault(path_of(target))
        return write_file(target, data, create_parents=create_parents, mode=mode)

    def remove(self, target: Target, *, recursive: bool = False) -> None:
        """Remove a file, the link that the target was given as, or a folder: empty, or with all in it."""
        self._refuse_home(target)
        link = self._link(target)
        if link is None:
            self._refuse_holder(target)
        remove_entry(target, link, recursive=recursive)

    def move(self, source: Target, destination: Target) -> None:
        """Rename; refuses to replace an existing `destination`."""
        self._refuse_home(source, destination)
        self._refuse_holder(source)
        move_entry(source, destination, self._link(source))

    def entries(self, target: Target, *, ignore: bool = False) -> list[Entry]:
        """List a folder, sorted by name."""
        return list_folder(target, ignore=ignore)

    def walk(self, target: Target, *, ignore: bool = True) -> Iterator[tuple[str, Entry]]:
        """Yield ``(path relative to target, entry)`` of all files below a folder, following no links."""
        return walk_files(target, ignore=ignore)

    def contents(
        self,
        target: Target,
        wanted: Callable[[str], bool] | None = None,
        *,
        ignore: bool = True,
        limit: int = 16 * 1024 * 1024,
    ) -> Iterator[tuple[str, bytes]]:
        """Yield ``(path relative to target, content)`` of the files below a folder that are `wanted`."""
        return read_files(target, wanted, ignore=ignore, limit=limit)

    def folder(self, target: Target) -> AbstractContextManager[int]:
        """Hold a judged folder open and give its descriptor, for example to start a program in it."""
        return held_folder(target)

    def _link(self, target: Target) -> str | None:
        """Return the path of the link that `target` was given as, if it is one and stands where it was said to.

        Removing or moving a link means the link. One that is itself reached through links is named by nobody who
        judged, so it is refused.
        """
        path = self._paths.lexical_path(target)
        if path is None or not Path(path).is_symlink():
            return None
        folder, name = os.path.split(path)
        try:
            with folder_at(folder) as parent:
                status = status_at(parent, name)
        except OSError:
            status = None
        if status is None or not stat.S_ISLNK(status.st_mode) or self._paths.follow(path).path != target.path:
            raise ToolError(
                f"{target.given} is a link in a folder that is reached through another link",
                code="changed",
                next_step="name the link by its own path",
            )
        self._refuse_home_path(path, target)
        return path

    def _refuse_home(self, *targets: Target) -> None:
        """The host's own folder is closed to every tool in every mode, also where a gate is missing."""
        for target in targets:
            self._refuse_home_path(path_of(target), target)

    def _refuse_home_path(self, path: str, target: Target) -> None:
        if path == self._home or path.startswith(self._home + "/"):
            raise ToolError(f"{name_of(target)} belongs to Moryflow itself and is not changed by tools", code="permission")

    def _refuse_lost_vault(self, path: str) -> None:
        """A vault that was moved or removed is not made anew: what is written would lie apart from all the rest."""
        vault = self._paths.vault
        if path.startswith(vault.rstrip("/") + "/") and not Path(vault).is_dir():
            raise ToolError(
                f"the vault is not there any more: {vault}",
                code="not_found",
                next_step="put it back, or end here and work in another folder",
            )

    def _refuse_holder(self, target: Target) -> None:
        """A folder that holds the vault or the home does not go away."""
        path = path_of(target)
        for kept in (self._paths.vault, self._home):
            if kept == path or kept.startswith(path.rstrip("/") + "/"):
                raise ToolError(f"{name_of(target)} holds the vault or Moryflow's own folder and stays", code="permission")

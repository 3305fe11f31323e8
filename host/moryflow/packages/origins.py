"""What a person named to install: a package, a folder, a git address, an archive or one Python file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from moryflow_sdk import ConfigError

Kind = Literal["index", "folder", "editable", "git", "archive", "file"]
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_SSH = re.compile(r"([A-Za-z0-9._-]+@[A-Za-z0-9._-]+):(?!/)(.+)")
_GIT_SCHEMES = ("git+https://", "git+ssh://", "git+file://")
_HOSTS = ("https://github.com/", "https://gitlab.com/", "https://codeberg.org/", "https://bitbucket.org/")
FORMS = "a name, ./FOLDER, -e ./FOLDER, git+https://…, FILE.whl or FILE.py"


@dataclass(frozen=True)
class PackageOrigin:
    """Where a plugin is installed from.

    :param text: what the installer is given: a requirement, an absolute path or a ``git+…`` address.
    """

    kind: Kind
    text: str

    @property
    def path(self) -> Path:
        return Path(self.text)


def origin_of(given: str, *, editable: bool = False) -> PackageOrigin:
    """Return what `given` names.

    :raises ConfigError: it names nothing that can be installed, or there is nothing there.
    """
    if given.startswith("file://") and not given.partition("#")[0].endswith(".git"):
        given = unquote(urlsplit(given).path)
    address = None if editable else _git_address(given)
    if address is not None:
        return PackageOrigin("git", address)
    if "://" in given:
        raise ConfigError(f"{given!r} is not an address of a git repository", next_step=f"give {FORMS}")
    if editable or _looks_like_path(given):
        return _local(given, editable=editable)
    return PackageOrigin("index", _requirement(given))


def _git_address(given: str) -> str | None:
    if ssh := _SSH.fullmatch(given):
        return f"git+ssh://{ssh[1]}/{ssh[2]}"
    bare = given.partition("#")[0].partition("?")[0]
    if given.startswith(("https://", "ssh://", "file://")) and (bare.endswith(".git") or given.startswith(_HOSTS)):
        given = f"git+{given}"
    if not given.startswith("git+"):
        return None
    if not given.startswith(_GIT_SCHEMES):
        raise ConfigError(f"{given!r} is not fetched safely", next_step="use git+https:// or git+ssh://")
    return given


def _looks_like_path(given: str) -> bool:
    return os.sep in given or given.startswith((".", "~")) or given.endswith((".py", *_ARCHIVES))


def _local(given: str, *, editable: bool) -> PackageOrigin:
    try:
        path = Path(given).expanduser().resolve()
        there = path.exists()
    except (RuntimeError, ValueError, OSError) as error:  # an unknown home, a NUL, a name that is too long
        raise ConfigError(f"{given!r} is not a path: {error}", next_step=f"give {FORMS}") from error
    if not there:
        raise ConfigError("there is nothing to install", where=str(path), next_step=f"give {FORMS}")
    if path.is_dir():
        if not any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
            problem = "this folder is no Python project: it has neither pyproject.toml nor setup.py"
            raise ConfigError(problem, where=str(path), next_step="moryflow new plugin NAME")
        return PackageOrigin("editable" if editable else "folder", str(path))
    if editable:
        raise ConfigError("-e takes the folder of a project", where=str(path), next_step="moryflow plugin install FILE")
    if path.suffix == ".py":
        return PackageOrigin("file", str(path))
    if path.name.endswith(_ARCHIVES):
        return PackageOrigin("archive", str(path))
    raise ConfigError("this is neither a wheel, an archive nor a Python file", where=str(path), next_step=f"give {FORMS}")


def _requirement(given: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(given)
    except InvalidRequirement as error:
        raise ConfigError(f"{given!r} is not the name of a package", next_step=f"give {FORMS}") from error
    if wanted.url:
        raise ConfigError(f"{given!r} names an address", next_step=f"give the address alone: {wanted.url}")
    return str(wanted)


__all__ = ["FORMS", "Kind", "PackageOrigin", "origin_of"]

"""A vault as in the example corpus, and one that is empty."""

from __future__ import annotations

import base64
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from moryflow.services.files import VaultFiles

CORPUS = Path(__file__).parents[2] / "data" / "corpus"


def build_fixture(base: Path) -> Path:
    """Build ``paths_fixture.json`` below `base` and return `base`."""
    for item in json.loads((CORPUS / "paths_fixture.json").read_text()):
        path = base / item["path"]
        arg = str(item.get("arg", "")).replace("{BASE}", str(base))
        path.parent.mkdir(parents=True, exist_ok=True)
        _BUILD[item["type"]](path, arg, base)
    return base


def _sparse(path: Path, arg: str, _base: Path) -> None:
    with path.open("wb") as file:
        file.truncate(int(arg))


def _socket(path: Path, _arg: str, _base: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the whole path may be too long for a socket's address
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


_BUILD: dict[str, Any] = {
    "dir": lambda path, _arg, _base: path.mkdir(parents=True, exist_ok=True),
    "file": lambda path, arg, _base: path.write_text(arg),
    "sparse": _sparse,
    "link": lambda path, arg, _base: path.symlink_to(arg),
    "hard": lambda path, arg, base: path.hardlink_to(base / arg),
    "fifo": lambda path, _arg, _base: os.mkfifo(path),
    "socket": _socket,
}


def path_of(case: dict[str, Any], base: Path, key: str = "path") -> Any:
    """Return the path of a corpus case as a tool would be given it."""
    if "path_b64" in case:
        return os.fsdecode(base64.b64decode(case["path_b64"]))
    if "path_gen" in case:
        gen = case["path_gen"]
        return gen.get("prefix", "") + gen.get("join", "").join([gen["repeat"]] * gen["n"]) + gen.get("tail", "")
    value = case[key]
    if not isinstance(value, str):
        return value
    return value.replace("{BASE}", str(base)).replace("{VAULT}", f"{base}/vault").replace("{HOME}", f"{base}/home")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The corpus fixture."""
    return build_fixture(tmp_path.resolve())


@pytest.fixture
def corpus_files(base: Path) -> VaultFiles:
    """The files service of the corpus vault."""
    return VaultFiles(base / "vault", base / "home" / ".moryflow", base / "home")


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """An empty vault beside an empty home."""
    (tmp_path / "vault").mkdir()
    (tmp_path / "home" / ".moryflow").mkdir(parents=True)
    return tmp_path.resolve() / "vault"


@pytest.fixture
def files(vault: Path) -> VaultFiles:
    """The files service of the empty vault."""
    return VaultFiles(vault, vault.parent / "home" / ".moryflow", vault.parent / "home")

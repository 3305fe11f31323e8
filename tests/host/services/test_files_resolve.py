"""How a path becomes a target."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.services.files import VaultFiles
from moryflow.services.paths import resolve_target
from moryflow_sdk import file_target

Form = Literal["NFC", "NFD"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("notes/a.md", "vault:/notes/a.md"),
        (".", "vault:/"),
        ("{BASE}/vault", "vault:/"),
        ("{BASE}/vault/notes/a.md", "vault:/notes/a.md"),
        ("link_in.md", "vault:/notes/a.md"),
        ("linkdir_in/a.md", "vault:/notes/a.md"),
        ("dangling_in", "vault:/notes/new.md"),
        ("dangling_out", "fs:{BASE}/outside/newfile.txt"),
        ("link_out.md", "fs:{BASE}/outside/secret.txt"),
        ("linkdir_out/dir/new/x.md", "fs:{BASE}/outside/dir/new/x.md"),
        ("linkdir_out/../vault/notes/a.md", "vault:/notes/a.md"),
        ("chain1", "fs:{BASE}/outside/secret.txt"),
        ("up/outside/back_in.md", "vault:/notes/a.md"),
        ("nope/../../outside/secret.txt", "fs:{BASE}/outside/secret.txt"),
        ("{BASE}/vault-evil/x.md", "fs:{BASE}/vault-evil/x.md"),
        ("../vaul/x.md", "fs:{BASE}/vaul/x.md"),
        ("{BASE}/Vault/x.md", "fs:{BASE}/Vault/x.md"),
        ("//etc/hostname", "fs:/etc/hostname"),
        ("/", "fs:/"),
        ("~", "fs:{BASE}/home"),
        ("~/docs/readme.md", "fs:{BASE}/home/docs/readme.md"),
        ("new/deep/er.md", "vault:/new/deep/er.md"),
        (".env/", "vault:/.env"),
    ],
)
def test_a_path_is_classified_by_what_it_reaches(corpus_files: VaultFiles, base: Path, path: str, text: str) -> None:
    """Links are followed, new files take their nearest parent, components are compared (D8, R5)."""
    target = corpus_files.resolve(path.replace("{BASE}", str(base)))
    assert (None, text.replace("{BASE}", str(base))) == (target.error, target.text)


@pytest.mark.parametrize(
    "name",
    ["$HOME", "${HOME}/x", "%2e%2e/x", "..%2fx", "file:///etc/passwd", "`pwd`", "~root/x", ".. /x", ".../x", "   ", "a\\..\\x"],
)
def test_a_path_is_a_plain_name(corpus_files: VaultFiles, name: str) -> None:
    """Nothing but ``~`` stands for something else (D8)."""
    target = corpus_files.resolve(name)
    assert "vault:/" + os.path.normpath(name) == target.text


@pytest.mark.parametrize(
    "path", ["", "a\0b", "x" * 300, "a/" * 3000, "notes/\ud800.md", "\udcff", "self", "loop_a/x", "/dev/zero",
             "/proc/self/fd/0", "/dev/fd/0", "/proc/self/environ", "proc_root/etc/passwd"]
)  # fmt: skip
def test_what_cannot_be_resolved_says_so(corpus_files: VaultFiles, path: str) -> None:
    """A failed resolve is an error in the target, never an exception and never a guess (R20)."""
    target = corpus_files.resolve(path)
    assert target.error and target.path is None and target.identity is None
    json.dumps(target.model_dump(mode="json")).encode()


def test_the_name_as_given_is_kept_beside_the_resolved_one(corpus_files: VaultFiles, base: Path) -> None:
    """Rules match both (R10)."""
    assert corpus_files.resolve("readme.txt").lexical == "vault:/readme.txt"
    assert corpus_files.resolve("readme.txt").text == "vault:/.env"
    assert corpus_files.resolve("notes/../notes/a.md").lexical is None
    assert f"fs:{base}/outside/back_in.md" == corpus_files.resolve("../outside/back_in.md").lexical


def test_the_identity_is_that_of_the_object_reached(corpus_files: VaultFiles, base: Path) -> None:
    """What was judged is known by device and inode (R12)."""
    status = (base / "vault" / "notes" / "a.md").stat()
    identity = corpus_files.resolve("link_in.md").identity
    assert identity and (status.st_dev, status.st_ino) == (identity.device, identity.inode)
    assert corpus_files.resolve("notes/none.md").identity is None


def test_a_vault_named_through_a_link_is_still_the_vault(base: Path) -> None:
    """Neither spelling of the vault makes its files foreign (D8)."""
    files = VaultFiles(base / "outside" / "vault_alias", base / "home" / ".moryflow", base / "home")
    for path in ("notes/a.md", f"{base}/vault/notes/a.md", f"{base}/outside/vault_alias/notes/a.md"):
        target = files.resolve(path)
        assert (target.text, target.lexical) == ("vault:/notes/a.md", None)


def test_a_base_moves_where_relative_paths_start(corpus_files: VaultFiles, base: Path) -> None:
    """The shell's ``cd`` is followed (R9)."""
    assert corpus_files.resolve("a.md", base=f"{base}/vault/notes").text == "vault:/notes/a.md"
    assert corpus_files.resolve("a.md", base="notes").text == "vault:/notes/a.md"
    assert f"fs:{base}/outside/x" == corpus_files.resolve("../outside/x", base=f"{base}/vault").text


def test_names_are_folded_only_where_the_volume_does(base: Path) -> None:
    """On a volume that does not tell case, a path has one text however it is typed (R10)."""
    folding = VaultFiles(base / "vault", base / "home" / ".moryflow", base / "home", case_sensitive=False)
    telling = VaultFiles(base / "vault", base / "home" / ".moryflow", base / "home", case_sensitive=True)
    assert folding.resolve("NOTES/A.MD").text == "vault:/notes/a.md"
    assert folding.resolve("cafe\u0301.md").text == "vault:/caf\u00e9.md"
    assert telling.resolve("NOTES/A.MD").text == "vault:/NOTES/A.MD"
    assert telling.resolve("cafe\u0301.md").text == "vault:/cafe\u0301.md"


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["..", ".", "a", "up", "~", "", "loop_a", "notes", "a.md", "root"])).map("/".join)
)
@settings(max_examples=300)
def test_any_text_resolves_to_one_place(corpus_files: VaultFiles, path: str) -> None:
    """A resolved path holds no link, and resolving it again gives the same target (D8, R20)."""
    target = corpus_files.resolve(path)
    if target.error is None:
        assert target.path is not None
        assert os.path.realpath(target.path) == target.path
        again = corpus_files.resolve(target.path)
        assert (target.text, target.identity, None) == (again.text, again.identity, again.lexical)


@pytest.mark.parametrize(("stored", "asked"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_name_is_found_however_its_accents_are_composed(files: VaultFiles, vault: Path, stored: Form, asked: Form) -> None:
    """What a model writes is the one entry that is the same text; that is what gates see and the body opens (D8, R10, R12)."""
    folder = vault / normalize(stored, "privé")
    folder.mkdir()
    (folder / normalize(stored, "café.md")).write_text("x")
    (folder / normalize(stored, "lién")).symlink_to(normalize(stored, "café.md"))
    name = normalize(asked, "privé/café.md")
    target = resolve_target(file_target(name, "edit"), lambda: files)
    there = normalize(stored, "vault:/privé/café.md")
    assert (target.text, target.lexical, target.given, files.read(target)) == (there, None, name, b"x")
    assert files.resolve(name).identity is None
    new = files.resolve(normalize(asked, "privé/né.md"), as_stored=True)
    assert (new.text, new.identity) == ("vault:/" + folder.name + "/" + normalize(asked, "né.md"), None)
    files.remove(files.resolve(normalize(asked, "privé/lién"), as_stored=True))
    assert [entry.name for entry in folder.iterdir()] == [normalize(stored, "café.md")]


def test_of_two_names_that_are_the_same_text_the_exact_one_is_meant_or_none(files: VaultFiles, vault: Path) -> None:
    """Nothing is guessed (R12)."""
    for name in ("a\u0323\u0307", "\u1ea1\u0307"):
        (vault / name).write_text(name)
    for name in ("a\u0323\u0307", "\u1ea1\u0307"):
        assert files.read(files.resolve(name, as_stored=True)) == name.encode()
    assert files.resolve("a\u0307\u0323", as_stored=True).identity is None

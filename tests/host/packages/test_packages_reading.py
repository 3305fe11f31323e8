"""What a person names, what a package says of itself, and what the host holds on to: read, never run."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.packages import InstallError
from moryflow.packages.distributions import (
    Card,
    PluginPackage,
    card_lines,
    card_of,
    consent_diff,
    package_in_wheel,
    screen,
)
from moryflow.packages.installer import Installer, constraints
from moryflow.packages.lock import Locked, Lockfile, PackageOrigin, origin_of, plugin_named
from moryflow_sdk import ConfigError


@pytest.mark.parametrize(
    ("given_text", "kind", "text"),
    [
        ("moryflow-wordcount", "index", "moryflow-wordcount"),
        ("x[y]>=1.2", "index", "x[y]>=1.2"),
        ("git+https://example.invalid/x", "git", "git+https://example.invalid/x"),
        ("https://github.com/a/b", "git", "git+https://github.com/a/b"),
        ("https://example.invalid/x.git", "git", "git+https://example.invalid/x.git"),
        ("git@example.invalid:a/b.git", "git", "git+ssh://git@example.invalid/a/b.git"),
    ],
)
def test_what_a_person_names_is_told_apart(given_text: str, kind: str, text: str) -> None:
    """A package, or an address of git, in every spelling of either (CONTRACT §1)."""
    assert origin_of(given_text) == PackageOrigin(kind, text)  # type: ignore[arg-type]


def test_an_address_of_a_file_is_its_path(tmp_path: Path) -> None:
    """``file:///…/a%20b`` is the folder, wheel or file there; one of a repository is git's (CONTRACT §1)."""
    project, wheel = tmp_path / "a b", tmp_path / "x-1.0-py3-none-any.whl"
    project.mkdir()
    (project / "pyproject.toml").write_text("", "utf-8")
    wheel.write_bytes(b"")
    assert origin_of(project.as_uri()) == PackageOrigin("folder", str(project))
    assert origin_of(project.as_uri(), editable=True) == PackageOrigin("editable", str(project))
    assert origin_of(wheel.as_uri()) == PackageOrigin("archive", str(wheel))
    assert origin_of("file:///srv/x.git") == PackageOrigin("git", "git+file:///srv/x.git")


@given(st.text(string.printable, max_size=30))
def test_no_operand_is_taken_for_an_option(text: str) -> None:
    """Whatever is typed, what reaches the installer does not begin with a dash (R26)."""
    try:
        origin = origin_of(text)
    except ConfigError:
        return
    assert not origin.text.startswith("-")


@pytest.mark.parametrize("address", ["git+ext::sh -c x", "git+http://example.invalid/x", "git+git://example.invalid/x"])
def test_git_is_spoken_to_by_safe_transports(address: str) -> None:
    """Neither a program of somebody's choice nor an unencrypted line (R15)."""
    with pytest.raises(ConfigError, match="not fetched safely"):
        origin_of(address)


def test_git_runs_without_what_a_repository_or_a_system_would_add(tmp_path: Path) -> None:
    """fsmonitor, hooks and attributes off, no system configuration; no model key is handed to a build script (R15)."""
    installer = Installer({"OPENAI_API_KEY": "sk-x", "PATH": "/usr/bin", "UV_INDEX_URL": "https://example.invalid"})
    environ = installer._environ()
    number = int(environ["GIT_CONFIG_COUNT"])
    settings = {environ[f"GIT_CONFIG_KEY_{item}"]: environ[f"GIT_CONFIG_VALUE_{item}"] for item in range(number)}
    assert settings["core.fsmonitor"] == "false" and settings["core.hooksPath"] == "/dev/null"
    assert environ["GIT_CONFIG_NOSYSTEM"] == "1" and "OPENAI_API_KEY" not in environ
    assert environ["PIP_INDEX_URL"] == "https://example.invalid"


def test_the_host_holds_on_to_all_it_runs_on() -> None:
    """Its own dependencies and theirs at the versions that are here, and the malicious releases never (R31)."""
    lines = constraints()
    names = {line.partition("==")[0] for line in lines if "==" in line}
    assert {"moryflow", "pydantic", "pydantic-core", "litellm", "click", "importlib-metadata"} <= names
    assert {"litellm!=1.82.7", "litellm!=1.82.8"} <= set(lines)


def test_a_wheel_and_what_was_installed_from_it_have_one_hash(place: Any) -> None:
    """What was shown can be compared with what is there; another byte is another hash (R18)."""
    shown = package_in_wheel(place.wheels.add("sayer", manifest={"hooks": ["tools"]}))
    changed_wheel = package_in_wheel(place.wheels.add("sayer", manifest={"hooks": ["tools"]}, source="x = 1\n"))
    assert shown.digest != changed_wheel.digest and shown.cards[0].hooks == ("tools",)
    assert shown.digest.startswith("sha256:")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "not valid TOML"),
        ("api = 2", "api = 2: it was written for another version"),
        ('name = "other"', "says name = 'other'"),
        ('services = ["nonsense"]', "unknown service 'nonsense'"),
        ("hooks = 3\n[capabilities]\nnetwork = true", "`hooks` must be a list of hook names, not 3"),
        ("hooks = []\n[capabilities]\nnetwork = true", ""),
    ],
)
def test_a_manifest_that_is_wrong_is_shown_as_such(text: str, problem: str) -> None:
    """Its problem stands on the screen; nothing raises (invariant 5)."""
    card = card_of("x", "x", "1", text.encode())
    assert problem in card.problem and bool(card.problem) == bool(problem)
    assert any("PROBLEM" in line for line in card_lines(card)) == bool(problem)


KINDS = st.lists(st.sampled_from(["tools", "event", "tool_gate", "chat_system"]), unique=True)


@given(KINDS, KINDS, st.booleans(), st.booleans())
def test_a_plugin_grew_exactly_when_it_wants_something_new(old: list[str], new: list[str], before: bool, after: bool) -> None:
    """More hooks or capabilities ask again; fewer are told and nothing more (R18)."""
    was = {"x": {"manifest": True, "hooks": old, "tools": [], "services": [], "capabilities": {"network": before}}}
    text = f"hooks = {json.dumps(new)}\n[capabilities]\nnetwork = {str(after).lower()}"
    change = consent_diff(was, [card_of("x", "x", "1", text.encode())])
    assert change.grew == (bool(set(new) - set(old)) or (after and not before))
    assert bool(change.lines) == (set(old) != set(new) or before != after)


def test_the_lock_keeps_what_it_was_told(tmp_path: Path) -> None:
    """Lines come back as they were; a plugin is found by its own name and by its package's (R18)."""
    lock = Lockfile(tmp_path)
    entry = Locked("My_Plugin", "1.0", "index", "my-plugin", "sha256:0", {"mine": {"hooks": ["tools"]}})
    lock.put(entry)
    lock.put(Locked("plugins/x.py", "", "file", "/somewhere/x.py", "sha256:1", {"x": {}}))
    assert plugin_named(lock.read(), "mine") == plugin_named(lock.read(), "my-plugin") == entry
    assert lock.path.stat().st_mode & 0o077 == 0
    lock.remove("my.plugin")
    assert list(lock.read()) == ["plugins/x.py"]
    lock.path.write_text('{"v": 2, "installed": {}}', "utf-8")
    with pytest.raises(ConfigError, match="newer Moryflow"):
        lock.read()


def test_a_library_is_no_plugin(place: Any) -> None:
    """It is refused, whoever says yes."""
    place.wheels.add("only_a_library", plugin=False)
    assert "brings no plugin" in place.run("plugin", "install", "only_a_library", "-y", code=1).stderr


def test_a_package_without_a_manifest_says_so() -> None:
    """What it does is not known, and that is what the screen says; what comes along stands there too (R18)."""
    text = screen(PluginPackage("x", "1.0", (Card("x"),)), origin="somewhere", also=[("helper", "2.0")])
    assert "It has no plugin.toml" in text and "would also be installed: helper 2.0" in text
    assert "None of this is enforced" in text


@pytest.mark.parametrize("content", [b"", b"PK nonsense", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_wheel_is_named(tmp_path: Path, content: bytes) -> None:
    """A file that only has the name of one: a sentence with its place (invariant 5)."""
    path = tmp_path / "x-1-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(InstallError, match=r"cannot be read|no metadata") as raised:
        package_in_wheel(path)
    assert raised.value.where == str(path)

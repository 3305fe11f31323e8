"""What a start keeps for the next one: one file, believed only where it fits and only the person can have written it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moryflow.base.paths import keep_start, recall_start


def test_each_part_counts_under_its_own_key(tmp_path: Path):
    keep_start(tmp_path, "installed", ["3.11", 5], {"found": []})
    keep_start(tmp_path, "lock", [1, ["x", 2]], ["a"])
    assert recall_start(tmp_path, "installed", ["3.11", 5]) == {"found": []}
    assert recall_start(tmp_path, "lock", [1, ["x", 2]]) == ["a"]
    assert recall_start(tmp_path, "lock", [1, ["x", 3]]) is None
    assert [path.name for path in tmp_path.iterdir()] == ["start.json"]


OTHER_FORMAT = json.dumps({"format": 0, "parts": {"lock": [1, 2]}})


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "[" * 100_000, OTHER_FORMAT, '{"format": 1, "parts": []}', "\udcff"]
)
def test_a_file_that_does_not_fit_is_ignored_and_replaced(tmp_path: Path, content: str):
    file = tmp_path / "start.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    file.chmod(0o600)
    assert recall_start(tmp_path, "lock", 1) is None
    keep_start(tmp_path, "lock", 1, "again")
    assert recall_start(tmp_path, "lock", 1) == "again"


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_ignored(tmp_path: Path, mode: int):
    """Written anew it is the person's alone, whatever the umask is."""
    keep_start(tmp_path, "lock", 1, "mine")
    file = tmp_path / "start.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(mode)
    assert recall_start(tmp_path, "lock", 1) is None
    keep_start(tmp_path, "lock", 2, "mine")
    assert recall_start(tmp_path, "lock", 2) == "mine"


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path):
    cache = tmp_path / "cache"
    cache.write_text("a file")
    keep_start(cache, "lock", 1, "x")
    assert recall_start(cache, "lock", 1) is None

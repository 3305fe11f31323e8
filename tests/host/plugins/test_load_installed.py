"""Installed plugins in number: found once, remembered until something changes, and a hundred broken ones survived."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moryflow.packages.distributions import Distribution
from moryflow.packages.inventory import manifest_card
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.last_seen import recall
from moryflow.plugins.preflight import PreflightStatus
from moryflow.plugins.sources import Fingerprints, Unit

GOOD = "@hookimpl\ndef tool_after(result):\n    return result.replace(output=result.output + '{} ')\n"
BROKEN = (
    "import not_there_at_all\n",
    "raise RuntimeError('broken at import')\n",
    "def x(:\n",
    "@hookimpl\ndef tool_gat(call): ...\n",
    "@hookimpl\ndef tool_after(nothing): ...\n",
    "import sys\nsys.exit(9)\n",
    "services = ['nope']\n",
    "api = 99\n",
    "@hookimpl\ndef plugin_start(ctx):\n    raise ValueError('broken at start')\n",
    "from pydantic import BaseModel\nclass Needed(BaseModel):\n    key: str\nconfig_model = Needed\n",
)


async def test_a_hundred_broken_plugins_beside_three_good_ones(bench: Any):
    """It is up, 3 work, 100 are named with file and reason (SECURITY §4, invariant 5)."""
    from moryflow_sdk import ToolCall, ToolResult

    for number in range(100):
        bench.installed(f"broken-{number:03}", BROKEN[number % len(BROKEN)])
    for name in ("good-1", "good-2", "good-3"):
        bench.installed(name, GOOD.format(name))
    scope = await bench.scope()
    result = await bench.dispatcher.transform(scope, "tool_after", ToolResult(), call=ToolCall(id="c", tool="t", args={}))
    assert result.output == "good-1 good-2 good-3 "
    broken = [item for item in scope.plugin_set.records if item.name.startswith("broken")]
    assert len(broken) == 100
    for found in broken:
        assert found.status == "failed" and found.error and Path(found.file).is_file(), found


# ---------------------------------------------------------------- the remembered scan


def _let_pass(site: Path) -> None:
    """Make an installation old: one of the last seconds may not be finished, and is not remembered."""
    os.utime(site, (1, 1))


def test_a_second_start_reads_no_metadata(bench: Any):
    """The scan is remembered: what 100 plugins add to a second start is their own import."""
    bench.installed("mine", "")
    _let_pass(bench.site)
    code = (
        "import sys; from pathlib import Path; from moryflow.plugins.entry_points import installed\n"
        "names = [found.name for found in installed(Path(sys.argv[1]))]\n"
        "print('mine' in names, 'importlib_metadata' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": str(bench.site)}
    answers = [
        subprocess.run(
            [sys.executable, "-c", code, str(bench.home / "cache")], env=environ, text=True, capture_output=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert answers == [["True", "True"], ["True", "False"]]


def test_installing_and_removing_is_noticed(bench: Any):
    bench.installed("first", "")
    bench.record("first")
    bench.installed("second", "")
    assert bench.record("second").status == "loaded"
    (folder,) = bench.site.glob("*second*.dist-info")
    shutil.rmtree(folder)
    assert not [item for item in bench.load().records if item.name == "second"]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"key": 1}'])
def test_a_broken_memory_is_read_anew(bench: Any, content: str):
    bench.installed("mine", "")
    _let_pass(bench.site)
    cache = bench.home / "cache"
    cache.mkdir()
    (cache / "start.json").write_text(content, "utf-8")
    assert bench.record("mine").status == "loaded"
    assert json.loads((cache / "start.json").read_text("utf-8"))["parts"]["installed"][1]["found"]


@pytest.mark.parametrize("name", ["gates.json", "plugins.json", "probes.json"])
def test_a_memory_that_is_nested_too_deep_is_forgotten(bench: Any, name: str):
    """One file of the cache never stops a start (invariant 5)."""
    bench.installed("mine", "")
    (bench.home / "cache").mkdir()
    (bench.home / "cache" / name).write_text("\n" + "[" * 100_000, "utf-8")
    assert bench.record("mine").status == "loaded"
    assert recall(bench.home) == {}
    assert PreflightStatus().policy(bench.home).cache.stamps == {}


def test_a_home_that_cannot_be_written_only_costs_time(bench: Any):
    bench.installed("mine", "")
    (bench.home / "cache").write_text("a file where the folder should be", "utf-8")
    assert bench.record("mine").status == "loaded"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("direct_url.json", "[" * 100_000),
        ("direct_url.json", '{"url": "http://[", "dir_info": {"editable": true}}'),
        ("direct_url.json", '{"url": 7, "dir_info": 5, "vcs_info": null}'),
        ("RECORD", f'odd.py,,\n"{"x" * 200_000}",,\n'),
        ("RECORD", "odd.py,,\na\0b,,\n"),
    ],
)
def test_metadata_that_holds_nonsense_stops_nobody(bench: Any, file: str, content: str):
    """Neither a start nor what looks at the package (invariant 5)."""
    bench.installed("odd", GOOD.format("odd"))
    (info,) = bench.site.glob("*_odd-1.0.dist-info")
    (info / file).write_text(content, "utf-8")
    assert bench.record("odd").status == "loaded"
    assert [card.name for card in Distribution(info).package().cards] == ["odd"]


def test_a_named_pipe_in_a_package_holds_nobody_up(bench: Any):
    """In place of its manifest or of one of its files (invariants 5 and 9)."""
    bench.installed("odd", GOOD.format("odd"))
    (info,) = bench.site.glob("*_odd-1.0.dist-info")
    with (info / "entry_points.txt").open("a", encoding="utf-8") as points:
        points.write("\n[moryflow.manifest]\nodd = pipes:plugin.toml\n")
    (bench.site / "pipes").mkdir()
    os.mkfifo(bench.site / "pipes" / "plugin.toml")
    record = bench.record("odd")
    assert (record.status, record.stage) == ("failed", "manifest")
    assert "it is not an ordinary file" in record.error
    candidate = Candidate("odd", "installed", "odd 1.0", "odd", manifest=str(bench.site / "pipes" / "plugin.toml"))
    assert manifest_card(candidate) is None
    os.mkfifo(bench.site / "pipes" / "more.py")
    assert Fingerprints().of(Unit("pipes", bench.site / "pipes")) == ""


@pytest.mark.parametrize(
    "text", ["[moryflow.plugins]\nno equals sign\n", "[moryflow.plugins]\n = x\n", "[moryflow.plugins]\nbad name! = x\n"]
)
def test_broken_metadata_is_named_or_left_out_and_stops_nobody(bench: Any, text: str):
    bench.installed("mine", "")
    info = bench.site / "odd-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(text, "utf-8")
    loaded = bench.load()
    assert bench.record("mine", loaded).status == "loaded"
    assert all(item.status == "failed" for item in loaded.records if item.file.startswith(str(info)))


def test_a_folder_that_is_worked_in_brings_no_plugins(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Nothing in a vault or repository sets plugins, also when the interpreter looks for modules there (R13)."""
    vault = tmp_path / "vault"
    (vault / "evil.egg-info").mkdir(parents=True)
    (vault / "evil.egg-info" / "entry_points.txt").write_text("[moryflow.plugins]\nevil = evil\n", "utf-8")
    (vault / "evil.py").write_text("raise SystemError('it ran')\n", "utf-8")
    monkeypatch.chdir(vault)
    for entry in ("", str(vault), "."):
        monkeypatch.syspath_prepend(entry)
        assert not [item for item in bench.load().records if item.name == "evil"]


# ---------------------------------------------------------------- metadata and objects that break


@pytest.mark.parametrize("said", [b"[moryflow.plugins]\nx\xe9 = mine\n", b"[moryflow.plugins]\nmine\n"])
def test_entry_points_that_cannot_be_read_are_named_as_that(bench: Any, said: bytes):
    """Not passed over, and no missing module called ``unreadable``: file, reason and what helps (invariant 5)."""
    bench.installed("mine", "")
    bench.installed("good", GOOD.format("good"))
    (file,) = bench.site.glob("*mine*/entry_points.txt")
    file.write_bytes(said)
    records = {record.status: record for record in bench.load().records}
    assert records["loaded"].name == "good"
    assert (records["failed"].stage, records["failed"].file) == ("discover", str(file))
    assert "entry points cannot be read" in records["failed"].error and "reinstall" in records["failed"].hint


@pytest.mark.parametrize("said", [f"version = {'9' * 5000}\n", f"a = {'[' * 20000}{']' * 20000}\n"])
def test_a_manifest_that_its_reader_breaks_on_costs_its_plugin(bench: Any, said: str):
    """Endless digits and endless nesting are not TOMLDecodeError; the plugin is named with its file (invariant 5)."""
    bench.installed("mine", "", manifest=said)
    record = bench.record("mine")
    assert (record.status, record.stage) == ("failed", "manifest")
    assert Path(record.file).name == "plugin.toml" and "not valid TOML" in record.error


def test_an_entry_point_to_an_object_that_ends_the_program_costs_its_plugin(bench: Any):
    """Asking an object what it is may run its code; that is not the end of the host (invariant 5)."""
    source = """
        class Ends:
            @property
            def __class__(self):
                raise SystemExit(4)

        ends = Ends()
    """
    bench.installed("mine", source, value=f"{bench.package}_mine:ends")
    bench.installed("good", GOOD.format("good"))
    assert bench.record("mine").status == "failed"
    assert bench.record("good").status == "loaded"

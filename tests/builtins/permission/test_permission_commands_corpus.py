"""``permission test`` over the shell and path examples: no bypass, few false asks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moryflow.base.builtins import BUILTINS

CORPUS = Path(__file__).parents[2] / "data" / "corpus"
ORDER = {"allow": 0, "ask": 1, "deny": 2}


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin."""
    return replace(bench, builtins=BUILTINS)


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / name).read_text("utf-8").splitlines()]


def shell_lines() -> Iterable[dict[str, Any]]:
    sets = json.loads((CORPUS / "shell_rulesets.json").read_text("utf-8"))
    for case in cases("shell.jsonl"):
        mode = case.get("mode", "agent")
        yield {
            "id": case["id"],
            "tool": "bash",
            "args": {"command": case["command"] if "command" in case else generated(case["gen"])},
            "rules": sets[case["ruleset"]]["rules"],
            "mode": mode if mode == "full_access" else "agent",
            "headless": mode == "headless",
            "vault": "/vault",
            "home": "/home/u",
            "expect": case["expect"],
        }


def generated(gen: dict[str, Any]) -> str:
    count = gen["n"]
    return (
        gen["prefix"] + gen.get("join", "").join([gen["repeat"]] * count) + gen.get("tail", "") + gen.get("close", "") * count
    )


def path_lines(base: Path) -> Iterable[dict[str, Any]]:
    def filled(text: object) -> object:
        if not isinstance(text, str):
            return text
        return text.replace("{BASE}", str(base)).replace("{VAULT}", f"{base}/vault").replace("{HOME}", f"{base}/home")

    for case in cases("paths.jsonl"):
        path = filled(case.get("path"))
        args = {
            "write": {"path": path, "content": "x"},
            "edit": {"path": path, "old_string": "a", "new_string": "b"},
            "move": {"path": path, "to": filled(case.get("to"))},
            "glob": {"pattern": path},
            "grep": {"path": path, "pattern": "x"},
        }.get(case["tool"], {"path": path})
        if case["platform"] != "windows":
            place = {"vault": f"{base}/vault", "home": f"{base}/home"}
            yield {"id": case["id"], "tool": case["tool"], "args": args, "rules": [], "expect": case["expect"], **place}


def built(base: Path) -> Path:
    """Build what the path examples speak of."""
    for item in json.loads((CORPUS / "paths_fixture.json").read_text("utf-8")):
        path, argument = base / item["path"], item.get("arg")
        path.parent.mkdir(parents=True, exist_ok=True)
        match item["type"]:
            case "dir":
                path.mkdir(exist_ok=True)
            case "file":
                path.write_text(argument, "utf-8")
            case "sparse":
                path.touch()
                os.truncate(path, argument)
            case "link":
                path.symlink_to(argument.replace("{BASE}", str(base)))
            case "hard":
                path.hardlink_to(base / argument)
            case "fifo":
                os.mkfifo(path)
            case _:
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(str(path))
    return base


def scored(bench, lines: Iterable[dict[str, Any]], known: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Judge `lines` with the command and return the ids of what went wrong, by kind of wrong."""
    file = bench.vault / "examples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    *results, summary = map(json.loads, bench.cli("permission", "test", str(file), "--json").stdout.splitlines())
    by_id = {case["id"]: case for case in known}
    found: dict[str, list[str]] = {"hard": [], "soft": [], "false ask": [], "other": []}
    for result in results:
        case, decision = by_id[result["id"]], result["decision"]
        if case["kind"] != "edge" and ORDER[decision] < ORDER[case["max"]]:
            found["hard" if decision == "allow" else "soft"].append(case["id"])
        elif case["kind"] == "benign" and decision != "allow":
            found["false ask"].append(case["id"])
        elif not result["ok"]:
            found["other"].append(case["id"])
    print(summary, found)
    assert summary["passed"] + summary["failed"] == len(results)
    return found


def test_no_shell_example_gets_more_than_it_may(bench):
    """No hard bypass, no soft one, no false ask among the examples (SECURITY §4)."""
    found = scored(bench, shell_lines(), cases("shell.jsonl"))
    assert (found["hard"], found["soft"], found["false ask"]) == ([], [], [])


def test_no_path_example_gets_more_than_it_may(bench, tmp_path):
    """No bypass and no false ask among the paths (SECURITY §4, R5, R10, R14, R20)."""
    base = built(tmp_path / "base")
    found = scored(bench, path_lines(base), cases("paths.jsonl"))
    assert (found["hard"], found["soft"], found["false ask"]) == ([], [], [])

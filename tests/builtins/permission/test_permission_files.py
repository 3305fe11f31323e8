"""Files: what the object is decides, whatever its spelling."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow.services.paths import PathResolver
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.verdict import judge_target

CORPUS = Path(__file__).parents[2] / "data" / "corpus"
ORDER = {"allow": 0, "ask": 1, "deny": 2}
WRITERS = {"write", "edit", "delete", "move"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The fixture of the path examples, built for real."""
    root = tmp_path.resolve()
    for item in json.loads((CORPUS / "paths_fixture.json").read_text("utf-8")):
        _build(root, item)
    return root


def _build(root: Path, item: dict[str, Any]) -> None:
    path, argument = root / item["path"], item.get("arg")
    path.parent.mkdir(parents=True, exist_ok=True)
    match item["type"]:
        case "dir":
            path.mkdir(parents=True, exist_ok=True)
        case "file":
            path.write_text(argument, "utf-8")
        case "sparse":
            with path.open("wb") as stream:
                stream.truncate(argument)
        case "link":
            path.symlink_to(argument.replace("{BASE}", str(root)))
        case "hard":
            path.hardlink_to(root / argument)
        case "fifo":
            __import__("os").mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))


EXTRA = CORPUS.parent / "permission" / "paths_extra.jsonl"


def _cases() -> Iterator[dict[str, Any]]:
    for line in (CORPUS / "paths.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        if case["platform"] != "windows" and isinstance(case.get("path"), str):
            yield case


@pytest.fixture
def judge(base: Path, make_policy: Callable[..., Policy]) -> Callable[..., tuple[str, str]]:
    policy = make_policy(vault=base / "vault", user_home=base / "home")
    resolver = PathResolver(base / "vault", base / "home")

    def run(path: str, domain: str = "read") -> tuple[str, str]:
        filled = path.replace("{BASE}", str(base)).replace("{VAULT}", f"{base}/vault").replace("{HOME}", f"{base}/home")
        worst = judge_target(policy, resolver.resolve(filled, domain=domain)).worst
        return worst.decision, worst.cause

    return run


@pytest.mark.parametrize("case", list(_cases()), ids=lambda case: case["id"])
def test_example_paths_get_no_more_than_they_may(case: dict[str, Any], judge: Callable[..., tuple[str, str]]) -> None:
    """Every example path is judged as it should be, by what it leads to (R5, R10, R14, R20, R21, D8, S0.33, S0.35)."""
    domain = "edit" if case["tool"] in WRITERS else "read"
    decision = max(
        (judge(path, domain)[0] for path in (case["path"], case.get("to", case["path"]))), key=lambda name: ORDER[name]
    )
    assert ORDER[decision] >= ORDER[case["max"]]
    if case["kind"] == "benign":
        assert decision == "allow"


def test_further_paths_are_decided_as_they_should_be(judge: Callable[..., tuple[str, str]]) -> None:
    """Hundreds more spellings of each kind, with the exact decision (R5, R10, R14, R20, R21, D8)."""
    wrong: list[str] = []
    for line in EXTRA.read_text("utf-8").splitlines():
        case = json.loads(line)
        decision = judge(case["path"], "edit" if case["tool"] in WRITERS else "read")[0]
        if decision != case["expect"]:
            wrong.append(f"{case['id']} {case['tool']} {case['path']!r}: {decision}, not {case['expect']}")
    assert wrong == []

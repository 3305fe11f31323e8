"""URLs: the rule that holds is the one for the place that is connected to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.verdict import judge_target
from moryflow_sdk import Target

DATA = Path(__file__).parents[2] / "data"
FILES = (DATA / "corpus" / "urls.jsonl", DATA / "permission" / "urls_extra.jsonl")
ORDER = {"allow": 0, "ask": 1, "deny": 2}


def _cases() -> Iterator[dict[str, Any]]:
    for file in FILES:
        yield from (case for case in map(json.loads, file.read_text("utf-8").splitlines()) if case.get("rules"))


@pytest.mark.parametrize("case", list(_cases()), ids=lambda case: case["id"])
def test_a_rule_covers_the_place_it_names_and_no_other(case: dict[str, Any], make_policy: Callable[..., Policy]) -> None:
    """What only looks like an allowed address is not covered by its rule; another spelling of it is (R16)."""
    target = Target(domain="web_fetch", kind="url", text=f"url:{case['url']}", given=case["url"])
    decision = judge_target(make_policy(case["rules"]), target).worst.decision
    assert ORDER[decision] >= ORDER[case["max"]]
    assert case["expect"] != "allow" or decision == "allow"

"""Thirty conversations: ten that must be blocked, ten that must be warned, ten that must pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "data" / "memory_bank" / "conversations.jsonl"
CONVERSATIONS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def outcome(node):
    """Return what became of a call: blocked, warned or passed."""
    if node["status"] == "denied":
        return "blocked" if node["code"] == "memory_bank" else f"denied: {node['code']}"
    reminded = "[memory bank] this was a" in node["output"]
    return "warned" if reminded else "passed" if node["status"] == "ok" else f"error: {node.get('code')}"


def test_there_are_ten_of_each():
    """The table is what it says (S3.28)."""
    assert [sum(item["expect"] == kind for item in CONVERSATIONS) for kind in ("blocked", "warned", "passed")] == [10, 10, 10]
    assert len({item["id"] for item in CONVERSATIONS}) == 30


@pytest.mark.parametrize("item", CONVERSATIONS, ids=lambda item: item["id"])
async def test_the_outcome_is_the_right_one(project, item):
    """Judged by what was read, the risk and the mode (S3.24, S3.26, S3.27, S3.28, S3.29, S3.37, D28, D30)."""
    for name in item.get("remove", ()):
        path = project.vault / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    project.allow("read", "edit", "task", bank={"guardMode": item["guard"]})
    answers = [answer for turn in item["turns"] for answer in turn[1:]]
    async with project.conversation(*answers, mode=item.get("mode")) as talk:
        for prompt, *_ in item["turns"]:
            await talk.say(prompt)
        assert talk.result.end_reason == "completed" and outcome(talk.last) == item["expect"]

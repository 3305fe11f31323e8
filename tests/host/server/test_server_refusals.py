"""What is refused changes nothing (CONTRACT 4)."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from .conftest import Server


@pytest.mark.parametrize(
    ("method", "below", "body"),
    [
        ("POST", "/prompt", {"text": "hello", "agent": "plan", "model": "nowhere"}),
        ("POST", "/prompt", {"text": "hello", "agent": "plan", "images": [{"data": "?"}]}),
        ("POST", "/prompt", {"text": "hello", "agent": "plan", "max_steps": 0}),
        ("PATCH", "", {"mode": "full_access", "confirm": True, "agent": "plan", "model": "nowhere"}),
        ("PATCH", "", {"mode": "full_access", "confirm": True, "agent": "nobody"}),
    ],
)
def test_half_of_a_request_is_not_done(shared: Server, method: str, below: str, body: Any) -> None:
    """Neither the agent, nor, worse, the mode is changed when something else in the request cannot be."""
    session = shared.session("One.")
    before = shared.get(f"/sessions/{session}")
    refused = shared.ask(method, f"/sessions/{session}{below}", body)
    assert (refused.status, refused.json["code"]) == (422, "config"), refused.data
    assert shared.get(f"/sessions/{session}") == {**before, "seq": ANY}

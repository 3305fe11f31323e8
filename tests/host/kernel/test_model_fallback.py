"""``models.fallback``: another model goes on when the service of the chosen one fails (issue F)."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow.testing import IsolatedHost

OTHER = """
from moryflow_sdk import ModelInfo, hookimpl
from moryflow_sdk.support.scripted import ScriptedModel

def model(name, said, window, tools):
    info = ModelInfo(id=f"o/{name}", name=name, provider="o", context_window=window, tools=tools)
    made = ScriptedModel(said, info=info)
    made.name = f"other-{name}"
    return made

OFFERED = [
    model("small", ["from small"], 10, True),
    model("plain", ["from plain"], 99000, False),
    model("good", ["from good", "again"], 99000, True),
]

@hookimpl
def models():
    return OFFERED
"""


def failing(code: str) -> dict[str, Any]:
    return {"error": {"code": code}}


def host_with(moryflow: IsolatedHost, *names: str) -> IsolatedHost:
    moryflow.plugin(OTHER, "other")
    moryflow.configure({"models": {"fallback": list(names)}})
    return moryflow


@pytest.mark.parametrize("code", ["rate_limit", "overloaded", "unreachable"])
def test_the_first_model_that_can_take_it_goes_on_and_says_so(moryflow: IsolatedHost, code: str) -> None:
    """One whose window is too small, or that has no tools, is passed over; the rest of the turn stays with it."""
    host = host_with(moryflow, "o/small", "o/plain", "o/good")
    turn = host.begin("go " * 40, [failing(code)] * 5)
    while not turn.done():
        host.advance(60)
        try:
            assert turn.result(0.2).text == "from good"
        except TimeoutError:
            continue
    notice = host.until("session.notice")
    assert "going on with o/good" in str(dict(notice.data))


@pytest.mark.parametrize("code", ["auth", "bad_request", "context", "content_filter"])
def test_what_is_wrong_with_the_request_is_not_sent_to_another_service(moryflow: IsolatedHost, code: str) -> None:
    """Only failures of the service count."""
    host = host_with(moryflow, "o/good")
    result = host.run("go", [failing(code)] * 3)
    assert result.end_reason in ("model_error", "prompt_too_long") and result.text != "from good"


def test_nothing_is_tried_when_part_of_an_answer_arrived_or_nothing_is_named(moryflow: IsolatedHost) -> None:
    """An answer that began is not replaced by another model's."""
    host = host_with(moryflow)
    turn = host.begin("go", [failing("rate_limit")] * 5)
    while not turn.done():
        host.advance(60)
        try:
            assert turn.result(0.2).end_reason == "model_error"
        except TimeoutError:
            continue

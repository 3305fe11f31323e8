"""``moryflow run`` against a server over real loopback HTTP: what a person sees when it throttles or refuses."""

from __future__ import annotations

import json
from typing import Any

from moryflow.testing.replies import LoopbackServer, failure, text


def test_a_throttled_call_is_tried_again_and_the_person_sees_when(cli: Any) -> None:
    """The wait that the server asks for is honoured and shown, also off a terminal (S4.7, S4.17, D55)."""
    with LoopbackServer(failure(429, "slow down", retry_after="0.2"), text("Here I am.")) as server:
        cli.environ |= {"OPENAI_BASE_URL": server.url}
        done = cli("run", "-m", "openai/m", "hi")
        assert len(server.requests) == 2
    assert (done.returncode, done.stdout.strip()) == (0, "Here I am.")
    assert "try 2 in 0.2 s" in done.stderr and "slow down" in done.stderr


def test_a_retry_is_an_event_with_its_attempt_and_time(cli: Any) -> None:
    """A client that reads stream-json can show the same (S4.17, D55)."""
    with LoopbackServer(failure(503, "busy", retry_after="0.1"), text("ok")) as server:
        cli.environ |= {"OPENAI_BASE_URL": server.url}
        done = cli("run", "-m", "openai/m", "hi", "--output", "stream-json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (retry,) = (event for event in events if event["type"] == "session.status" and event["status"] == "retry")
    assert retry["attempt"] == 2 and "busy" in retry["reason"] and retry["at"]


def test_a_refused_request_says_what_to_do_next(cli: Any) -> None:
    """A provider's 400 is a sentence, the next command and exit code 7, not a traceback (issue 2, bad input)."""
    with LoopbackServer(otherwise=failure(400, "tools are not supported by this model")) as server:
        cli.environ |= {"OPENAI_BASE_URL": server.url}
        done = cli("run", "-m", "openai/m", "hi")
    assert done.returncode == 7 and "Traceback" not in done.stderr
    assert "tools are not supported" in done.stderr and "next: choose a model that calls tools with -m" in done.stderr

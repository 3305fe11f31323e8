"""``--effort`` and ``/effort``: how long a model reasons, from a prompt on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer


@pytest.fixture
def model(cli: Any) -> Iterator[LoopbackServer]:
    with closing(LoopbackServer(otherwise=replies.text("the answer"))) as server:
        cli.environ = {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-loopback-test",
            "MORYFLOW_MODEL": "openai/test-model",
        }
        yield server


def efforts(model: LoopbackServer) -> list[Any]:
    return [request.body.get("reasoning_effort") for request in model.requests]


def test_an_effort_holds_for_the_session_until_another_is_chosen(cli: Any, model: LoopbackServer) -> None:
    """Also in a later process and in a fork; the default ends it (S4.6)."""
    assert cli("run", "--effort", "high", "one").returncode == 0
    assert cli("run", "-c", "two").returncode == 0
    assert cli("session", "fork").returncode == 0
    assert cli("run", "-c", "three").returncode == 0
    assert cli("run", "-c", "--effort", "default", "four").returncode == 0
    assert cli("run", "-c", "five").returncode == 0
    assert efforts(model) == ["high", "high", "high", None, None]
    wrong = cli("run", "--effort", "huge", "six")
    assert wrong.returncode == 2 and "'xhigh'" in wrong.stderr and len(model.requests) == 5


def test_a_conversation_changes_it_with_a_slash_command(cli: Any, model: LoopbackServer) -> None:
    """A word that is none changes nothing (S4.6)."""
    done = cli("chat", stdin="one\n/effort low\ntwo\n/effort much\nthree\n/effort\n")
    assert efforts(model) == [None, "low", "low"]
    assert "unknown effort 'much'" in done.stderr and done.stderr.rstrip().endswith("effort: low")


def test_agents_and_models_have_one_of_their_own(cli: Any, model: LoopbackServer) -> None:
    """The session's goes first, then the agent's, then the model's; files of other systems say effort (S4.6)."""
    cli.config(models={"providers": {"openai": {"models": {"test-model": {"reasoningEffort": "minimal"}}}}})
    folder = cli.home / "agents"
    folder.mkdir(exist_ok=True)
    (folder / "own.md").write_text("---\nid: own\nmodelSettings: {reasoningEffort: max}\n---\nWork.\n", encoding="utf-8")
    (folder / "other.md").write_text("---\nid: other\nmode: all\neffort: low\n---\nWork.\n", encoding="utf-8")
    for words in ((), ("--agent", "own"), ("--agent", "other"), ("--agent", "own", "--effort", "none")):
        done = cli("run", *words, "go")
        assert done.returncode == 0, done.stderr
    assert efforts(model) == ["minimal", "max", "low", "none"]

"""``GET /metrics``: Prometheus text, with counters over all sessions of the store."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import ASKS, MORYFLOW, Server

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[^"\\\n]*",?)+)\})? ([0-9.eE+]+)')


def metrics(server: Server) -> dict[str, float]:
    """Return each sample by its name and labels; a line that is no Prometheus text is an error."""
    reply = server.ask("GET", "/metrics")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in reply.data.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert kinds.setdefault(name, kind) == kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert re.sub("_(bucket|sum|count)$", "", match[1]) in kinds, "a sample stands below its type"
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_a_question_s_waiting_time_and_the_tokens_are_counted(server: Server) -> None:
    """A histogram of answered questions, and tokens by who asked for them (S2.20; D, telemetry)."""
    before = metrics(server)
    assert before["moryflow_turns_running"] == 0 and before["moryflow_question_wait_seconds_count"] == 0
    session = server.session(ASKS, "Done.", "Again.")
    with server.stream(f"/sessions/{session}/events") as stream:
        stream.until("open")
        server.post(f"/sessions/{session}/prompt", {"text": "Go"}, 202)
        asked = stream.until("permission.asked")
        assert metrics(server)["moryflow_approvals_pending"] == 1
        server.post(f"/approvals/{asked['approval_id']}", {"reply": "once", "hash": asked["hash"]})
        stream.until("session.status", status="idle")
    found = metrics(server)
    buckets = [value for name, value in found.items() if name.startswith("moryflow_question_wait_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == found["moryflow_question_wait_seconds_count"] == 1
    assert found["moryflow_question_wait_seconds_sum"] > 0 and found["moryflow_approvals_pending"] == 0
    assert found['moryflow_tokens_total{kind="input",source="agent"}'] == 20
    assert metrics(server) == found, "nothing is counted twice"


def test_a_counter_knows_sub_agents_summaries_and_other_processes(start: Callable[..., Server], home: Path) -> None:
    """Counted from the store's events since the start of the server, whoever wrote them (D, telemetry)."""
    first = start()
    task = {"calls": [{"name": "task", "arguments": {"agent": "explore", "prompt": "look", "description": "d"}}]}
    long = "word " * 4000
    session = first.session(task, "a child's answer", "Done.", *[long] * 5, "## Goal\nWords.", *[long] * 3)
    (home / "config.jsonc").write_text(
        '{"agents": {"runtime": {"permission": {"rules": [{"domain": "task", "pattern": "*", "decision": "allow"}]}}}}'
    )
    (home / "config.jsonc").chmod(0o600)
    for _ in range(6):
        first.whole_turn(session)
    first.post(f"/sessions/{session}/compact")
    found = metrics(first)
    sources = {name.partition('source="')[2].rstrip('"}') for name in found if name.startswith("moryflow_tokens_total")}
    assert {"agent", "sub-agent", "summary"} <= sources
    agents = 'moryflow_tokens_total{kind="input",source="agent"}'
    words = [*MORYFLOW, "run", "-q", "--vault", str(first.vault), "-r", session, "Go on"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert metrics(first)[agents] > found[agents]
    assert first.end() == 0
    assert agents not in metrics(start()), "what was before a server is not counted by it"


@pytest.mark.parametrize("seconds", [0, 1, 1.001, 100_000])
async def test_each_wait_falls_into_its_bucket(seconds: float) -> None:
    """A bucket holds what is at most its limit; the last one holds everything."""
    from datetime import UTC, datetime, timedelta

    from moryflow.base.events import written
    from moryflow.server.metrics import Counters
    from moryflow.store import ApprovalRow

    begun = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"created": written(begun), "replied_at": written(begun + timedelta(seconds=seconds))}

    class Asked:
        async def approval(self, id: str) -> ApprovalRow:
            return ApprovalRow(id, "s", "c", "t", "policy", {}, **times)

    counters = Counters(Asked(), "")  # type: ignore[arg-type]
    await counters._wait("a")
    samples = {labels[0][1]: value for suffix, labels, value in counters._waiting_time().samples if suffix == "_bucket"}
    assert all(bool(value) == (limit == "+Inf" or seconds <= float(limit)) for limit, value in samples.items())

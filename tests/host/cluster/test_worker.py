"""Workers take turns, hand them over, and nothing that was asked is lost or done twice."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable

import pytest
from cluster_rig import ClusterRig
from moryflow.store.postgres.session_lock import PostgresSessionLock


async def test_a_worker_takes_a_prompt_and_says_how_it_ended(cluster: ClusterRig):
    """A prompt that a server stores is run by a worker, and its result is there for every server (D87)."""
    cluster.worker()
    session, turn = await cluster.ask("do it now mark1")
    state, result = await cluster.result(turn)
    assert (state, result["end_reason"], result["text"]) == ("done", "completed", "done")
    assert cluster.effects() == [("mark1", 1), ("mark1", 2), ("mark1", 3)]
    assert [run.id for run in await cluster.store.runs(session) if run.purpose == "main"] == [turn]


async def test_prompts_of_a_session_run_one_after_another(cluster: ClusterRig):
    """Two workers never work in one session at once, and keep the order of its prompts (D87)."""
    cluster.worker()
    cluster.worker()
    session, first = await cluster.ask("first a")
    turns = [first, *[(await cluster.ask(text, session=session))[1] for text in ("second b", "third c")]]
    for turn in turns:
        assert (await cluster.result(turn))[1]["end_reason"] == "completed"
    assert cluster.effects() == [(mark, step) for mark in "abc" for step in (1, 2, 3)]


async def test_a_prompt_that_cannot_run_says_why(cluster: ClusterRig):
    """An unknown effort ends the prompt with the error that `run` would print, and the next one runs."""
    cluster.worker()
    _, turn = await cluster.ask("no", effort="endless")
    state, error = await cluster.result(turn)
    assert state == "failed" and "effort" in error["message"]
    _, after = await cluster.ask("yes m")
    assert (await cluster.result(after))[0] == "done"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_turn_goes_on_after_its_worker_is_gone(make_cluster: Callable[..., ClusterRig], how: signal.Signals):
    """A killed or paused worker is replaced within its lease and two seconds; one that wakes does no harm (R41, D87)."""
    cluster = make_cluster(pause=0.3)
    first = cluster.worker()
    _, turn = await cluster.ask("go m", model="steps:8")

    async def begun() -> bool:
        return len(cluster.effects()) >= 2

    await cluster.until(begun)
    first.send_signal(how)
    if how == signal.SIGKILL:
        first.wait()
    cluster.worker()
    assert (await cluster.result(turn))[1]["end_reason"] == "completed"
    if how == signal.SIGSTOP:
        first.send_signal(signal.SIGCONT)
        await asyncio.sleep(1)
    steps = [step for _, step in cluster.effects()]
    # The call that ran when its worker was stopped may have had its effect without a result; none ran twice.
    assert len(steps) == len(set(steps))
    nodes = await cluster.store.nodes((await cluster.store.sessions(1))[0].id)
    results = [node.payload for node in nodes if node.kind == "tool"]
    assert len({result["call_id"] for result in results}) == len(results)


async def test_a_tool_that_declares_it_runs_again_under_the_same_key(make_cluster: Callable[..., ClusterRig]):
    """`retry_safe`: a call that was cut off runs again with its own id; without it, the model is told (D87)."""
    cluster = make_cluster(pause=1.5)
    first = cluster.worker()
    session, turn = await cluster.ask("go m", model="again:1")

    async def begun() -> bool:
        return bool(cluster.effects())

    await cluster.until(begun)
    first.kill()
    first.wait()
    cluster.worker()
    assert (await cluster.result(turn))[1]["end_reason"] == "completed"
    assert len(cluster.effects()) == 2 and len(set(cluster.effects())) == 1
    assert [node.payload["status"] for node in await cluster.store.nodes(session) if node.kind == "tool"] == ["ok"]


async def test_a_turn_that_goes_on_with_other_plugins_says_so(make_cluster: Callable[..., ClusterRig]):
    """A rolling upgrade: the rest of a turn runs with what its worker has, and the session names both sets (D87)."""
    cluster = make_cluster(pause=0.5)
    first = cluster.worker()
    session, turn = await cluster.ask("go m", model="steps:4")

    async def begun() -> bool:
        return bool(cluster.effects())

    await cluster.until(begun)
    first.kill()
    first.wait()
    plugin = cluster.home / "plugins" / "steps.py"
    plugin.write_text(plugin.read_text() + "\n# version 2\n")
    cluster.worker()
    assert (await cluster.result(turn))[1]["end_reason"] == "completed"
    said = [event.data["text"] for event in await cluster.store.events(session, types=("session.notice",))]
    assert any("goes on with other plugins" in text for text in said)


async def test_an_answer_wakes_whichever_worker_is_free(cluster: ClusterRig):
    """A question ends the work; nobody holds a worker meanwhile, and the answer may come from a shell (D87)."""
    cluster.worker()
    session, turn = await cluster.ask("ask m", model="asks:1")

    async def asked() -> str | None:
        rows = await cluster.store.approvals(session=session, state="pending")
        held = cluster.store.seems_held(session)
        return rows[0].id if rows and not held else None

    question = await cluster.until(asked)
    assert cluster.effects() == []
    assert cluster.command("approval", "reply", question, "once").returncode == 0
    assert (await cluster.result(turn))[1]["end_reason"] == "completed"
    assert cluster.effects() == [("m", 1)]


async def test_an_answer_that_comes_while_the_holder_goes_idle_is_not_lost(cluster: ClusterRig):
    """Going idle compares what was asked: the race of an answer with the end of the work has no loser (D87)."""
    session = (await cluster.store.create(vault=str(cluster.vault), agent="build", mode="agent", model="steps:1")).id
    _, turn = await cluster.ask("m", session=session)
    hold = await cluster.store.hold(session)
    assert isinstance(hold, PostgresSessionLock)
    asked, prompt = await cluster.inbox.next(session)
    assert prompt is not None and prompt.turn == turn
    await cluster.inbox.end(session, turn, "done", {})
    await cluster.ask("again m", session=session)  # between the look and the going idle
    assert not await cluster.inbox.settle(session, hold.epoch, asked, "idle")
    asked, prompt = await cluster.inbox.next(session)
    assert prompt is not None and prompt.body["prompt"]["text"] == "again m"
    hold.release()


async def test_a_worker_told_to_end_hands_over_between_two_steps(make_cluster: Callable[..., ClusterRig]):
    """SIGTERM: the step that runs ends, nothing is interrupted, and another worker goes on with the same turn."""
    cluster = make_cluster(pause=0.2)
    first = cluster.worker()
    session, turn = await cluster.ask("go m", model="steps:6")

    async def begun() -> bool:
        return len(cluster.effects()) >= 2

    await cluster.until(begun)
    cluster.worker()
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    assert (await cluster.result(turn))[1]["end_reason"] == "completed"
    assert cluster.effects() == [("m", step) for step in range(1, 7)]
    results = [node.payload["status"] for node in await cluster.store.nodes(session) if node.kind == "tool"]
    assert results == ["ok"] * 6


async def test_a_stop_reaches_the_worker(make_cluster: Callable[..., ClusterRig]):
    """Whoever asks a session to stop need not know which worker runs it."""
    cluster = make_cluster(pause=0.5)
    cluster.worker()
    session, turn = await cluster.ask("go m", model="steps:50")

    async def begun() -> bool:
        return bool(cluster.effects())

    await cluster.until(begun)
    assert await cluster.inbox.ask_to_stop(session)
    assert (await cluster.result(turn))[1]["end_reason"] == "stopped"


async def test_a_turn_that_waits_for_an_answer_can_be_stopped(cluster: ClusterRig):
    """Nobody works in it then: a worker ends it as stopped, and its question is no longer open."""
    cluster.worker()
    session, turn = await cluster.ask("ask m", model="asks:1")

    async def asked() -> bool:
        return bool(await cluster.store.approvals(session=session, state="pending")) and not cluster.store.seems_held(session)

    await cluster.until(asked)
    assert await cluster.inbox.ask_to_stop(session)
    assert (await cluster.result(turn))[1]["end_reason"] == "stopped"
    assert await cluster.store.approvals(session=session, state="pending") == []
    assert cluster.effects() == []


async def test_a_session_waits_for_a_worker_of_its_queue(cluster: ClusterRig):
    """A worker listens to the queues of the workspaces that it has."""
    cluster.worker("--queue", "here")
    session = (await cluster.store.create(vault=str(cluster.vault), agent="build", mode="agent", model="steps:1")).id
    await cluster.inbox.set_queue(session, "there")
    _, turn = await cluster.ask("go m", session=session)
    _, other = await cluster.ask("go elsewhere", model="steps:1")
    await asyncio.sleep(2)
    assert await cluster.inbox.ends([turn, other]) == {}
    assert json.loads(cluster.command("worker", "status", "--json").stdout)["queues"]["there"]["waiting"] == 1
    cluster.worker("--queue", "there", "--queue", "default")
    assert (await cluster.result(turn))[0] == (await cluster.result(other))[0] == "done"


async def test_a_user_with_many_prompts_does_not_starve_another(make_cluster: Callable[..., ClusterRig]):
    """Who has many prompts waiting comes after who has few (D87)."""
    cluster = make_cluster(pause=0.1)
    cluster.worker("--concurrency", "1")
    _, warm = await cluster.ask("warm w", model="steps:1")
    await cluster.result(warm)
    for number in range(20):
        await cluster.ask(f"many a{number}", model="steps:1", owner="ada")
    _, turn = await cluster.ask("one b", model="steps:1", owner="bob")
    await cluster.result(turn)
    assert len([mark for mark, _ in cluster.effects() if mark.startswith("a")]) < 10


async def test_workers_keep_to_the_limit_of_a_provider_together(cluster: ClusterRig):
    """Requests and tokens a minute are rows in the database: two workers do not ask twice as much (D87)."""
    assert "at most 60 requests" in cluster.command("worker", "limit", "steps", "--requests", "60").stdout
    assert [await cluster.inbox.take("steps") for _ in range(60)] == [0.0] * 60
    assert 0 < await cluster.inbox.take("steps") <= 1
    await cluster.inbox.set_limit("steps", None, 600)
    assert await cluster.inbox.take("steps") == 0
    await cluster.inbox.spend("steps", 700)
    assert 9 < await cluster.inbox.take("steps") < 12
    assert "at most 600 tokens a minute" in cluster.command("worker", "status").stdout
    await cluster.inbox.set_limit("steps", 60, None)
    for _ in range(60):
        await cluster.inbox.take("steps")
    cluster.worker()
    began = time.monotonic()
    _, turn = await cluster.ask("go m", model="steps:2")
    assert (await cluster.result(turn))[0] == "done"
    assert time.monotonic() - began > 2  # three answers, of which each waits for its second
    assert await cluster.inbox.take("another") == 0


async def test_status_names_the_workers_and_drain_ends_them(cluster: ClusterRig):
    """`worker status` shows who works, and `worker drain` ends them from anywhere."""
    worker = cluster.worker("--concurrency", "3")

    async def there() -> list[object]:
        return list(await cluster.inbox.workers())

    await cluster.until(there)
    said = cluster.command("worker", "status").stdout
    assert "0 of 3" in said and "default" in said
    assert cluster.command("worker", "drain").stdout == "1 worker will end within ten seconds\n"
    assert worker.wait(20) == 0
    assert await cluster.inbox.workers() == []


async def test_a_schedule_begins_a_session_once_at_its_time(cluster: ClusterRig):
    """Of two workers one begins what is due (D87)."""
    cluster.worker()
    cluster.worker()
    added = cluster.command("schedule", "add", "* * * * *", "tick m", "-m", "steps:1", "--json")
    id = json.loads(added.stdout)["id"]
    with cluster.store._database.connect() as raw:  # type: ignore[attr-defined]  # time is moved, not waited for
        raw.execute("UPDATE schedules SET next = now() - interval '1 hour'")

    async def ran() -> bool:
        return bool(cluster.effects())

    await cluster.until(ran)
    await asyncio.sleep(1)
    assert cluster.effects() == [("m", 1)]
    assert len(await cluster.store.sessions()) == 1
    assert id in cluster.command("schedule", "list").stdout
    assert cluster.command("schedule", "remove", id).returncode == 0
    assert cluster.command("schedule", "list").stdout == "there is no schedule\n"


def test_a_wrong_time_and_a_store_without_workers_are_explained(cluster: ClusterRig, tmp_path):
    """Without a cluster the lines for cron and systemd are printed; a wrong time is named."""
    wrong = cluster.command("schedule", "add", "whenever", "go")
    assert wrong.returncode == 2 and "as cron writes it" in wrong.stderr
    cluster.home = tmp_path / "other"
    alone = cluster.command("schedule", "add", "0 7 * * *", "good morning")
    assert alone.returncode == 2 and "crontab -e" in alone.stderr and "run 'good morning'" in alone.stderr
    refused = cluster.command("worker")
    assert refused.returncode == 2 and "store.url" in refused.stderr


async def test_a_worker_outlives_an_outage_of_the_database(tmp_path):
    """It goes round until the database is back, however long that takes, and then takes what was asked meanwhile (D87)."""
    from postgres import postgres_server

    with postgres_server() as own:
        cluster = ClusterRig(tmp_path / "home", tmp_path / "vault", own.url)
        try:
            worker = cluster.worker()
            _, turn = await cluster.ask("before m", model="steps:1")
            await cluster.result(turn)
            own.stop(at_once=True)
            await asyncio.sleep(40)  # longer than psycopg's pool waits
            assert worker.poll() is None, cluster.logs()
            own.start()
            _, turn = await cluster.ask("after n", model="steps:1")
            assert (await cluster.result(turn))[0] == "done"
        finally:
            cluster.close()

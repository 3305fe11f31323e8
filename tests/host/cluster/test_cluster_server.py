"""Servers before workers: the same API, whichever process runs the turn."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_rig import MORYFLOW, ClusterRig
from moryflow_sdk.client import Client, ClientError, connect


@contextmanager
def server(cluster: ClusterRig, home: str = "") -> Iterator[dict[str, str]]:
    """A server; its first line."""
    environment = {**cluster.environment, **({"MORYFLOW_HOME": home} if home else {}), "MORYFLOW_STORE": cluster.url}
    command = [*MORYFLOW, "serve", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=cluster.vault, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


async def client_of(said: dict[str, str]) -> Client:
    return await connect(said["url"], Path(said["token_file"]).read_text().strip())


async def test_a_prompt_to_a_server_runs_in_a_worker_and_streams_back(cluster: ClusterRig):
    """`serve` with such a store enqueues; a client sees the events and the result as if the turn ran there (D87)."""
    cluster.worker()
    with server(cluster) as said:
        client = await client_of(said)
        session = client.session_of((await client.new_session(model="steps:2"))["id"])
        events = [event async for event in session.stream("go m")]
        turn = next(event.turn for event in events if event.turn)
        assert (await client.turn_result(session.id, turn))["end_reason"] == "completed"
    kinds = [event.type for event in events]
    assert kinds.count("tool.result") == 2 and kinds[-1] == "session.status"
    assert cluster.effects() == [("m", 1), ("m", 2)]


async def test_a_question_reaches_a_client_of_another_server(cluster: ClusterRig, tmp_path: Path):
    """Any number of servers: a prompt through one, its question answered through another."""
    cluster.worker()
    with server(cluster) as first, server(cluster, str(tmp_path / "second")) as second:
        one, other = await client_of(first), await client_of(second)
        session = one.session_of((await one.new_session(model="asks:1"))["id"])
        kinds: list[str] = []
        async for event in session.stream("go m"):
            kinds.append(event.type)
            if event.type == "permission.asked":
                await other.reply(str(event.data["approval_id"]), reply="once", hash=str(event.data["hash"]))
    assert kinds.count("tool.result") == 1 and "permission.replied" in kinds
    assert cluster.effects() == [("m", 1)]


async def test_a_busy_session_refuses_a_prompt_that_does_not_line_up(cluster: ClusterRig):
    """As on one machine: 409 busy, unless it is to be queued; the same key is the same turn."""
    with server(cluster) as said:
        client = await client_of(said)
        session = (await client.new_session(model="steps:1"))["id"]
        first = (await client.prompt(session, "go m", key="k"))["turn"]
        assert (await client.prompt(session, "go m", key="k"))["turn"] == first
        with pytest.raises(ClientError, match="working on another prompt"):
            await client.prompt(session, "and n")
        second = (await client.prompt(session, "and n", queue=True))["turn"]
        cluster.worker()
        for turn in (first, second):
            assert (await client.turn_result(session, turn))["end_reason"] == "completed"
    assert cluster.effects() == [("m", 1), ("n", 1)]


async def test_run_attach_is_a_client_of_the_cluster(cluster: ClusterRig):
    """`run --attach URL` needs neither the database nor a worker of its own."""
    cluster.worker()
    with server(cluster):
        said = cluster.command("run", "--attach", "-m", "steps:1", "go m")
    assert (said.returncode, said.stdout.strip()) == (0, "done"), said.stderr
    assert cluster.effects() == [("m", 1)]


async def test_a_user_reads_and_changes_only_their_own_sessions(cluster: ClusterRig):
    """One token per user; another's session looks as if it were not there, and the rest is the administrator's (D87)."""
    ada, bob = (cluster.command("serve", "tokens", "add", name).stdout.strip() for name in ("ada", "bob"))
    cluster.worker()
    with server(cluster) as said:
        admin = await client_of(said)
        hers, his = await connect(said["url"], ada), await connect(said["url"], bob)
        session = (await hers.new_session(model="asks:1"))["id"]
        turn = (await hers.prompt(session, "go m"))["turn"]

        async def asked() -> dict[str, str] | None:
            return next(iter(await hers.approvals()), None)

        question = await cluster.until(asked)
        assert [row["id"] for row in await hers.sessions()] == [session]
        assert await his.sessions() == await his.approvals() == await his.search("go") == []
        assert [row["id"] for row in await admin.sessions()] == [session]
        for refused in (
            his.session(session), his.prompt(session, "mine now"), his.approval(question["id"]), his.remove_session(session),
            his.reply(question["id"], reply="once", hash=question["request"]["hash"]), his.turn_result(session, turn),
        ):  # fmt: skip
            with pytest.raises(ClientError, match="there is no"):
                await refused
        for refused in (his.config(), his.stats(), his.new_code(), his.metrics()):
            with pytest.raises(ClientError, match="administrator"):
                await refused
        await hers.reply(question["id"], reply="once", hash=question["request"]["hash"])
        assert (await hers.turn_result(session, turn))["end_reason"] == "completed"
        copy = (await hers.fork(session))["id"]
        assert {row["id"] for row in await hers.sessions()} == {session, copy}
        assert "moryflow_workers 1" in str(await admin.metrics())
        assert cluster.command("serve", "tokens", "revoke", "bob").returncode == 0
    with server(cluster) as said, pytest.raises(ClientError, match="token"):
        await (await connect(said["url"], bob)).sessions()
    assert "ada" in cluster.command("serve", "tokens", "list").stdout


async def test_an_answer_is_read_while_a_worker_writes_it(cluster: ClusterRig):
    """As on one machine: its pieces come before the step ends, in order and each once, and none after it (D87)."""
    cluster.worker()
    with server(cluster) as said:
        client = await client_of(said)
        session = client.session_of((await client.new_session(model="types:4"))["id"])
        events = [event async for event in session.stream("go m")]
    kinds = [event.type for event in events]
    pieces = [str(event.data["text"]) for event in events if event.type == "text.delta"]
    assert len(pieces) >= 3 and "".join(pieces) == "".join(f"{number} é𝄞 " for number in range(4))
    whole = kinds.index("step.finish")
    assert {"message.start", "reasoning.delta", "message.end"} <= set(kinds[:whole])
    assert not {"message.start", "text.delta"} & set(kinds[whole:])


async def test_a_folder_has_workers_of_its_own(cluster: ClusterRig):
    """`folders.NAME.queue`: only a worker that listens to the queue takes its sessions (D87)."""
    file = cluster.home / "config.jsonc"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "folders": {str(cluster.vault): {"queue": "notes"}}}))
    cluster.worker()
    with server(cluster) as said:
        client = await client_of(said)
        session = (await client.new_session(model="steps:1"))["id"]
        turn = (await client.prompt(session, "go m"))["turn"]
        await cluster.until(cluster.inbox.workers)
        assert list(await cluster.inbox.depth()) == ["notes"] and cluster.effects() == []
        cluster.worker("--queue", "notes")
        assert (await client.turn_result(session, turn))["end_reason"] == "completed"
    assert cluster.effects() == [("m", 1)]


async def test_a_volume_is_where_each_worker_has_it(cluster: ClusterRig, tmp_path: Path):
    """`volume:NAME`: two workers have it at different paths, and the session goes on in either; its queue is its own (D87)."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"calls": [{"name": "write", "arguments": {"path": "a.md", "content": "x"}}]}, "Done."]))
    cluster.worker()  # has no such volume
    with server(cluster) as said:
        client = await client_of(said)
        session = (await client.new_session(vault="volume:notes/daily", model=f"script:{script}"))["id"]
        for name in ("first", "second"):
            place = tmp_path / name
            (place / "daily").mkdir(parents=True)
            worker = cluster.worker("--config", json.dumps({"folders": {str(place): {"volume": "notes"}}}))
            turn = (await client.prompt(session, "write"))["turn"]
            assert (await client.turn_result(session, turn))["end_reason"] == "completed", cluster.logs()
            worker.terminate()
            worker.wait(30)
        assert (await client.session(session))["vault"] == "volume:notes/daily"
    assert all((tmp_path / name / "daily" / "a.md").exists() for name in ("first", "second"))


@pytest.fixture
def repository(cluster: ClusterRig) -> list[str]:
    """The cluster's vault as a git repository with the tag `v1`; the beginning of a git command in it."""
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-C", str(cluster.vault)]
    for words in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "Begin"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    return git


@pytest.mark.parametrize("volume", [False, True])
async def test_a_session_works_in_a_worktree_of_a_commit(
    cluster: ClusterRig, tmp_path: Path, repository: list[str], volume: bool
):
    """`worktree:REPO@REF`: the first worker makes it, inside the repository; a commit that is not there ends the turn (D87)."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"calls": [{"name": "write", "arguments": {"path": "a.md", "content": "x"}}]}, "Done."]))
    name = "volume:shop" if volume else str(cluster.vault)
    cluster.worker("--config", json.dumps({"folders": {str(cluster.vault): {"volume": "shop"}}} if volume else {}))
    with server(cluster) as said:
        client = await client_of(said)
        ids = [
            (await client.new_session(vault=f"worktree:{name}@{ref}", model=f"script:{script}"))["id"] for ref in ("v1", "v2")
        ]
        turns = [(await client.prompt(id, "write"))["turn"] for id in ids]
        assert (await client.turn_result(ids[0], turns[0]))["end_reason"] == "completed", cluster.logs()
        with pytest.raises(ClientError, match="there is no commit 'v2'"):
            await client.turn_result(ids[1], turns[1])
        assert (await client.session(ids[0]))["vault"] == f"{name}/.worktrees/{ids[0][:8]}"
        here = cluster.vault / ".worktrees" / ids[0][:8]
        assert [*here.glob("*.md")] == [here / "a.md"]
        status = await asyncio.to_thread(subprocess.check_output, [*repository, "status", "--porcelain"])
        assert status == b""
        listed = json.loads(cluster.command("session", "worktree", "list", "--json").stdout)
        assert [Path(one["folder"]) for one in listed] == [here]
        merged = cluster.command("session", "worktree", "merge", ids[0][:8])
        assert merged.returncode == 0, merged.stderr
        assert (cluster.vault / "a.md").exists() and (await client.session(ids[0]))["vault"] == name

"""`moryflow doctor --cluster`: what is missing of a cluster, and the command that helps."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import psycopg
from cluster_rig import ClusterRig


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    """What was found, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for item in json.loads(done.stdout)["findings"]:
        found.setdefault(item["name"], []).append(item)
    return found


def look(cluster: ClusterRig, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    done = cluster.command("doctor", "--cluster", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return findings(done)


async def test_doctor_finds_nothing_wrong_with_a_cluster_that_works(cluster: ClusterRig):
    """One line each for database, tables, queue, workers, prompts and clock (issue D, operations)."""
    worker = cluster.worker("--queue", "default", "--queue", "notes")
    await cluster.result((await cluster.ask("go m", model="steps:1"))[1])
    found = look(cluster)
    names = {"extras", "database", "clock", "tables", "queue", "sessions", "worker", "prompts", "outputs"}
    assert found.keys() == names and all(item["state"] == "ok" for items in found.values() for item in items)
    assert "PostgreSQL 1" in found["database"][0]["text"]
    assert "default, notes" in found["worker"][0]["text"] and f":{worker.pid}:" in found["worker"][0]["text"]
    assert found["clock"][0]["text"].startswith("this machine's is +0.0") or "-0.0" in found["clock"][0]["text"]


async def test_doctor_names_prompts_that_no_worker_takes(cluster: ClusterRig):
    """Without a worker of its queue nothing runs; the finding has the command that starts one (issue D, operations)."""
    session, _ = await cluster.ask("go m")
    await cluster.inbox.set_queue(session, "notes")
    cluster.worker()
    await cluster.until(cluster.inbox.workers)
    found = look(cluster, 3)
    assert [item["state"] for item in found["prompts"]] == ["bad"]
    assert found["prompts"][0]["text"].startswith("1 waiting in the queue notes")
    assert found["prompts"][0]["next_step"] == "moryflow worker --queue notes"


async def test_doctor_names_what_the_first_worker_will_make_and_leases_that_ran_out(cluster: ClusterRig):
    """A worker was killed and none is left: its session waits, and doctor says for what (issue D, operations)."""
    session, _ = await cluster.ask("go m")
    with psycopg.connect(cluster.url, autocommit=True) as db:
        db.execute("UPDATE sessions SET until = clock_timestamp() - interval '1 s', worker = 'gone' WHERE id = %s", (session,))
    found = look(cluster, 3)
    for name in ("queue", "sessions", "worker"):
        assert [(item["state"], item["next_step"]) for item in found[name]] == [("warning", "moryflow worker")], name
    assert "1 at work whose lease ran out" in found["sessions"][0]["text"]


def test_doctor_changes_nothing_in_a_database(postgres, cluster: ClusterRig):
    """It looks at an empty database and at one of a newer version, and makes or migrates no table."""
    with psycopg.connect(cluster.url, autocommit=True) as db:
        db.execute("UPDATE moryflow SET version = 900")
        newer = look(cluster, 3)["tables"][0]
        assert newer["state"] == "bad" and "pip install -U" in newer["next_step"]
    empty = postgres.schema_url("doctor_of_nothing")
    (cluster.home / "config.jsonc").write_text(json.dumps({"store": {"url": empty}}))
    assert look(cluster)["tables"][0]["text"] == "not made yet"
    with psycopg.connect(empty) as db:
        assert db.execute("SELECT to_regclass('moryflow')").fetchone() == (None,)


def test_doctor_explains_a_file_an_absent_server_and_absent_outputs(cluster: ClusterRig):
    """Each with the command that helps, and never with the password (issue D, operations)."""
    config = cluster.home / "config.jsonc"
    config.write_text(
        json.dumps({"store": {"url": "postgresql://ada:geheim@127.0.0.1:1/notes", "outputs": "file:///no/where"}})
    )
    done = cluster.command("doctor", "--cluster")
    assert done.returncode == 3 and "geheim" not in done.stdout + done.stderr
    assert "BAD   database: postgresql://127.0.0.1/notes: the database cannot be reached" in done.stdout
    assert "BAD   outputs: file:///no/where: " in done.stdout and "next: moryflow config explain store.outputs" in done.stdout
    config.write_text("{}")
    found = look(cluster, 3)
    assert found.keys() == {"store"} and "a file of this machine" in found["store"][0]["text"]
    assert found["store"][0]["next_step"].startswith("moryflow config set store.url postgresql://")

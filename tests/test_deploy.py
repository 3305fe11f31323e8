"""docs/deploy: the commands of its pages are executed, its files are checked, its figures are computed again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_rig import MORYFLOW, ClusterRig
from moryflow.store import Commit, NewNode, StaleEpoch, Store, open_store
from postgres import PostgresServer

sys.path.insert(0, str(Path(__file__).parent / "packaging"))
sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
import cluster_model
from cli_reference import parse

DEPLOY = Path(__file__).resolve().parents[1] / "docs" / "deploy"
# What the compose specification has for a service, as far as the file uses it.
SERVICE = {
    "build", "command", "depends_on", "deploy", "environment", "healthcheck", "hostname", "image", "init", "ports", "restart",
    "security_opt", "stop_grace_period", "user", "volumes", "working_dir",
}  # fmt: skip
HEALTH = ["python", "-c", "import asyncio, moryflow_sdk.client as c; asyncio.run(c.connect())"]


def shell_blocks(page: str) -> list[str]:
    """The commands of a page, block by block."""
    return re.findall(r"^```sh\n(.*?)^```$", (DEPLOY / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


class Place:
    """A database called `moryflow` with a home that uses it, and the variables of PostgreSQL set to its server."""

    def __init__(self, server: PostgresServer, root: Path) -> None:
        self.server = server
        self.url = self.url_of("moryflow")
        programs = os.pathsep.join([str(server.programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.variables = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres", "PATH": programs}
        self.run("createdb moryflow", root)
        self.cluster = ClusterRig(root / "home", root / "vault", self.url)

    def url_of(self, database: str) -> str:
        return self.server.url.rpartition("/")[0] + f"/{database}"

    def run(self, commands: str, folder: Path | None = None) -> str:
        """Run commands as somebody types them; the first that fails ends them."""
        environment = self.variables if folder else {**self.cluster.environment, **self.variables}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], env=environment, cwd=folder or self.cluster.vault,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def place(postgres: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    found = Place(postgres, tmp_path)
    yield found
    found.cluster.close()
    names = "moryflow moryflow_restored control"
    found.run(f"for name in {names}; do dropdb --if-exists --force $name; done")


async def late_commit(place: Place, lock: Any, session: str, database: str) -> None:
    """Let other processes take the session over in a restored database, then the holder of before write to it."""
    other = open_store(place.cluster.home, url=place.url_of(database))
    for _ in range(3):
        (await other.hold(session)).release()
    own = place.cluster.store._database  # type: ignore[attr-defined]
    own._url = place.url_of(database)
    while not own._free.empty():
        own._free.get().raw.close()
    try:
        await lock.commit(Commit(nodes=[NewNode("user", {"text": "from before"})]))
    finally:
        own._url = place.url
        while not own._free.empty():
            own._free.get().raw.close()
        other.close()


async def texts(store: Store, session: str) -> list[str]:
    return [node.payload.get("text", "") for node in await store.nodes(session)]


async def test_a_backup_is_restored_and_holders_of_before_do_not_write(place: Place):
    """The page's commands, in their order, on a real server; beside it a restore without them (issue D, operations)."""
    cluster = place.cluster
    cluster.worker()
    session, turn = await cluster.ask("go m", model="steps:1")
    await cluster.result(turn)
    # The numbers of transactions of a server that has run for long.
    place.run("psql -q moryflow -c \"UPDATE events SET tx = '99999999'\"")
    backup, restore, after = shell_blocks("index.md")[-3:]
    assert int(place.run(backup)) > 15
    for _ in range(2):
        (await cluster.store.hold(session)).release()
    lock = await cluster.store.hold(session)
    place.run(restore)
    assert session in place.run(after)
    with pytest.raises(StaleEpoch, match="taken over"):
        await late_commit(place, lock, session, "moryflow_restored")
    restored = open_store(cluster.home, url=place.url_of("moryflow_restored"))
    try:
        assert await texts(restored, session) == await texts(cluster.store, session)
        assert [event.type for event in await restored.events(session, 0)].count("tool.result") == 1
    finally:
        restored.close()
    cluster.home.joinpath("config.jsonc").write_text("{}")
    again = place.run(f"MORYFLOW_STORE=postgresql:///moryflow_restored moryflow session show {session}")
    assert "done" in again

    place.run("createdb control; pg_restore --no-owner --dbname control moryflow.dump")
    place.run("psql -q control -c 'UPDATE sessions SET until = NULL'")
    await late_commit(place, lock, session, "control")
    control = open_store(cluster.home, url=place.url_of("control"))
    try:
        assert "from before" in await texts(control, session)
        # The numbers of transactions begin anew in another server; opening the store sees to it.
        assert [event.type for event in await control.events(session, 0)].count("tool.result") == 1
    finally:
        control.close()
    lock.release()


def test_sessions_move_into_a_cluster(place: Place):
    """`session export` and `session import` with two stores, as the page has it (issue D, 1)."""
    cluster = place.cluster
    (cluster.home / "config.jsonc").write_text("{}")
    (cluster.vault / "script.json").write_text('["Hello."]')
    place.run("moryflow run -q -m script:script.json 'Hello'")
    (move,) = [block for block in shell_blocks("index.md") if "session import" in block]
    place.run(move.replace("postgresql://moryflow@db.example.org/moryflow", "postgresql:///moryflow"))
    listed = "moryflow session list --json"
    assert place.run(f"MORYFLOW_STORE=postgresql:///moryflow {listed}").count('"id"') == place.run(listed).count('"id"') == 1


def test_every_command_of_the_pages_is_one():
    """What is not executed is at least understood by click."""
    blocks = [block for page in ("index.md", "scale.md") for block in shell_blocks(page)]
    lines = [line for block in blocks for line in block.splitlines()]
    commands = [line[line.index("moryflow ") :] for line in lines if re.match(r"(\w+=\S+ )?moryflow ", line)]
    assert len(commands) > 6
    for command in commands:
        parse(command.partition("  #")[0])


def test_the_compose_file_is_well_formed():
    """Services, volumes and commands fit together; the secrets come from the environment (issue D, operations)."""
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    services = document["services"]
    assert document.keys() - {"name", "x-moryflow"} == {"services", "volumes"}
    assert services.keys() == {"postgres", "serve", "worker"} and services["worker"]["deploy"]["replicas"] == 2
    used = {volume.partition(":")[0] for service in services.values() for volume in service["volumes"]}
    assert used == document["volumes"].keys()
    for name, service in services.items():
        assert service.keys() <= SERVICE, name
        assert service.get("depends_on", {}).keys() <= services.keys()
        secret = [value for key, value in service["environment"].items() if "PASSWORD" in key or "KEY" in key]
        assert secret and all(re.fullmatch(r"\$\{\w+:\?.+\}", value) for value in secret)
    for name in ("serve", "worker"):
        assert services[name]["stop_grace_period"] == "15s" and services[name]["user"].partition(":")[0] != "0"
        parse(" ".join(services[name]["command"]))
    assert services["serve"]["ports"] == ["127.0.0.1:8427:8427"]
    assert services["serve"]["healthcheck"]["test"] == ["CMD", *HEALTH]


def test_the_kubernetes_file_is_well_formed():
    """Selectors, volumes, secrets and commands fit together; nothing runs as root (issue D, operations)."""
    text = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
    documents: list[Any] = list(yaml.safe_load_all(text))
    known = {"Service": "v1", "PersistentVolumeClaim": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1"}
    assert all(document["apiVersion"] == known[document["kind"]] for document in documents)
    named = {(document["kind"], document["metadata"]["name"]) for document in documents}
    sets = [document for document in documents if "template" in document["spec"]]
    assert len(named) == len(documents) and len(sets) == 3
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in sets]
    assert all(each["spec"]["selector"] in labels for each in documents if each["kind"] == "Service")
    for each in sets:
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
        assert pod["securityContext"]["runAsNonRoot"] and not container["securityContext"]["allowPrivilegeEscalation"]
        assert pod["terminationGracePeriodSeconds"] >= 15
        own = {volume["metadata"]["name"] for volume in each["spec"].get("volumeClaimTemplates", ())}
        claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod.get("volumes", ())}
        assert {mount["name"] for mount in container["volumeMounts"]} == own | claims.keys()
        assert {("PersistentVolumeClaim", claim) for claim in claims.values()} <= named
        for variable in container["env"]:
            secret = variable.get("valueFrom", {}).get("secretKeyRef")
            assert bool(secret) == bool(re.search("PASSWORD|KEY", variable["name"]))
            assert secret is None or f"--from-literal={secret['key']}=" in text
        if "command" in container:
            parse(" ".join(container["command"]))
        elif each["kind"] == "Deployment":
            pytest.fail("a server or a worker without its command")
    assert [c["readinessProbe"]["exec"]["command"] for s in sets for c in s["spec"]["template"]["spec"]["containers"]
            if c["name"] == "serve"] == [HEALTH]  # fmt: skip


def test_the_health_check_tells_a_server_that_answers(tmp_path: Path):
    """It asks GET /health with the server's token, and fails without a server."""
    home = tmp_path / "home"
    environment = {**os.environ, "MORYFLOW_HOME": str(home)}
    check = [sys.executable, *HEALTH[1:]]
    command = [*MORYFLOW, "serve", "--port", "0", "--json"]
    assert subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 1
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            subprocess.run(check, env=environment, check=True)
        finally:
            server.terminate()


def test_the_image_is_of_a_user_who_is_not_root():
    """Its home and folders belong to that user alone, else no allow rule would be taken from there."""
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    assert lines[1].startswith("FROM python:3.1") and "USER moryflow" in lines
    assert lines.index("USER moryflow") < lines.index("RUN install -d -m 700 /home/moryflow/.moryflow")


def test_the_page_has_the_figures_of_the_model():
    """At how many sessions each resource ends is what the simulation gives (issue D, 3)."""
    page = (DEPLOY / "scale.md").read_text("utf-8")
    tuned = cluster_model.ASSUMED._replace(concurrency=100, connections=2000)
    usual, tuned_ends = cluster_model.ends(), cluster_model.ends(given=tuned)
    for name in usual:
        assert f"| {name} | " in page and f"| {usual[name]:,} | {tuned_ends[name]:,} |" in page, (name, usual, tuned_ends)


def test_commits_that_come_together_share_a_write():
    """The simulation of the disk: alone a commit waits for one write, in a crowd for at most two."""
    assert max(cluster_model.flush_waits(1, 1.0, 500)) < 2.0 and min(cluster_model.flush_waits(1, 1.0, 500)) >= 1.0 - 1e-9
    crowd = cluster_model.flush_waits(50_000, 1.0)
    assert max(crowd) <= 2.0 + 1e-6 and sum(crowd) / len(crowd) > 1.4

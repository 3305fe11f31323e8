"""A PostgreSQL server of the tests' own, in a temporary folder, on loopback."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "no PostgreSQL here: apt-get install postgresql, and pip install 'psycopg[binary]', run these tests"


def programs() -> Path | None:
    """The folder of initdb and postgres, if there is one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    here = shutil.which("initdb")
    return Path(here).resolve().parent if here else None


class PostgresServer:
    """A server that can be stopped, killed and started again.

    :ivar url: the address of its database, for a superuser without a password.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        # PostgreSQL does not run as root.
        self._as = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        if self._as:
            shutil.chown(self.folder, "postgres", "postgres")
        command = [
            self.programs / "initdb",
            "-D",
            self.folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run([*command, "--locale=C.UTF-8"], check=True, capture_output=True, cwd="/", **self._as)

    def start(self, *settings: str) -> None:
        """Start it and wait until it answers. It may be killed at any moment, but the machine may not: no fsync."""
        given = [
            "fsync=off",
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            *settings,
        ]
        options = [part for setting in given for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *options], stdout=log, stderr=log, cwd="/", **self._as
            )
        ready = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, *, at_once: bool = False) -> None:
        """Stop it as `pg_ctl stop -m fast` does; `at_once`: as a crash does."""
        if self._process is not None:
            self._process.send_signal(3 if at_once else 2)  # SIGQUIT: immediate, SIGINT: fast
            self._process.wait(60)
            self._process = None

    def schema_url(self, name: str) -> str:
        """The address of an own schema, which is created if it is missing."""
        import psycopg

        schema = re.sub(r"[^a-z0-9]+", "_", name.lower())[-60:]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        return f"{self.url}?options=-csearch_path%3D{schema}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, which ends with the block."""
    found = programs()
    assert found is not None, MISSING
    folder = Path(tempfile.mkdtemp(prefix="moryflow-postgres-"))
    server = PostgresServer(folder, found)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop(at_once=True)
        shutil.rmtree(folder, ignore_errors=True)

"""Outputs are read on every machine, whichever made them."""

from __future__ import annotations

import random
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from moryflow.store import Commit, Store, open_store
from moryflow.store.postgres.outputs import MAX_IN_TABLE
from moryflow_sdk import Artifact


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real S3 on loopback (seaweedfs); its port."""
    folder = tmp_path_factory.mktemp("s3")
    ports = random.sample(range(12_000, 22_000), 4)  # with those 10,000 above, below what the kernel hands out
    flags = ["-master.port", "-volume.port", "-filer.port", "-s3.port"]
    settings = "-s3 -ip=127.0.0.1 -master.volumeSizeLimitMB=64 -volume.max=8 -master.telemetry=false"
    command = ["weed", "server", f"-dir={folder}", *settings.split()]
    command += [f"{flag}={port}" for flag, port in zip(flags, ports, strict=True)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while True:
            request = urllib.request.Request(f"http://127.0.0.1:{ports[3]}/outputs", method="PUT")
            with suppress(OSError), urllib.request.urlopen(request, timeout=5):
                break
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.2)
        yield ports[3]
    finally:
        process.kill()
        process.wait()


async def stored(store: Store, folder: Path, size: int) -> Artifact:
    file = folder / "output.txt"
    file.write_bytes(bytes(range(256)) * (size // 256))
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    row = Artifact(
        id="o1",
        session=hold.session.id,
        call_id="c",
        tool="bash",
        path=str(file),
        size=size,
        sha256="",
        created="2026",
        expires=None,
    )
    await store.keep_output(row)
    await hold.commit(Commit(artifacts=[row]))
    hold.release()
    file.unlink()
    return row


async def test_a_small_output_is_in_the_database(store: Store, tmp_path: Path):
    """A machine that has not the file reads it from there, in parts (D87)."""
    row = await stored(store, tmp_path, 1024)
    assert await store.output(row, 256, 3) == b"\x00\x01\x02"
    assert await store.output(row, 1020, 100) == b"\xfc\xfd\xfe\xff"
    await store.update_artifact(row.id, state="expired")
    assert await store.output(row, 0, 10) is None


@pytest.mark.slow
@pytest.mark.parametrize("where", ["s3", "file"])
async def test_a_large_output_is_in_an_object_store(
    url: str, home: Path, tmp_path: Path, where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    """By URL: S3 as a real server speaks it, or a folder that machines share (D87)."""
    outputs = f"file://{tmp_path}/shared"
    if where == "s3":
        outputs = "s3://outputs/of/moryflow"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{request.getfixturevalue('s3')}")
        for name, value in {
            "ALLOW_HTTP": "true",
            "ACCESS_KEY_ID": "k",
            "SECRET_ACCESS_KEY": "s",
            "REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
    store, other = (open_store(home, url=url, outputs=outputs) for _ in range(2))
    row = await stored(store, tmp_path, 2 * MAX_IN_TABLE)
    assert await other.output(row, MAX_IN_TABLE, 3) == b"\x00\x01\x02"
    assert len(await other.output(row, 10, 10**9) or b"") == 2 * MAX_IN_TABLE - 10
    await other.update_artifact(row.id, state="expired")
    assert await store.output(row, 0, 10) is None
    store.close()
    other.close()


async def test_without_an_object_store_a_large_output_stays_on_its_machine(store: Store, tmp_path: Path):
    """Nothing pretends to have it."""
    assert await store.output(await stored(store, tmp_path, 2 * MAX_IN_TABLE), 0, 10) is None

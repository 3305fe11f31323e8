"""However a host ends, its helper process, the servers and what they have started end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import Servers, settings_of

HOST = str(Path(__file__).with_name("ending_host.py"))
SECONDS = 90.0
"""On a machine that is four times as slow; here it takes two."""
WAYS = (
    "kill -9", "kill -9 in a call", "kill -9 of both", "exit",
    *(pytest.param(way, marks=pytest.mark.slow) for way in ("terminate", "error", "in order")),
)  # fmt: skip

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outlives_the_host(servers: Servers, tmp_path: Path, way: str) -> None:
    """Neither when it is killed, in a call or between two, nor when its helper is killed too."""
    started = tmp_path / "started"
    servers.review({"family": settings_of("family", str(started))})
    started.unlink()
    how = "in a call" if way.endswith("in a call") else way
    command = [sys.executable, HOST, str(servers.home), str(servers.vault), how]
    environment = {**os.environ, "MORYFLOW_HOME": str(servers.home)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as host:
        assert host.stdin is not None and host.stdout is not None and host.stdout.readline() == "hi\n"
        helpers = _children(host.pid) if way.startswith("kill") else []
        family = [int(pid) for pid in started.read_text().split()]
        assert len(family) == 3 and all(map(_lives, family))
        *children, server = family
        while how == "in a call" and not Path(f"{started}.waiting").exists():
            time.sleep(0.01)
        if way == "kill -9 of both":
            family = [server]  # nobody is left who knows of its children; the kernel ends the server itself
            os.kill(helpers[0], signal.SIGSTOP)
        if way == "terminate":
            host.terminate()
        elif way.startswith("kill"):
            host.kill()
        else:
            host.stdin.write("end\n")
            host.stdin.flush()
        if way == "kill -9 of both":
            os.kill(helpers[0], signal.SIGKILL)
        host.wait(SECONDS)
    ending = time.monotonic() + SECONDS
    while any(map(_lives, [*helpers, *family])) and time.monotonic() < ending:
        time.sleep(0.05)
    left = [pid for pid in [*helpers, *family] if _lives(pid)]
    for pid in filter(_lives, {*left, *children}):
        os.kill(pid, signal.SIGKILL)
    assert left == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(pid: int, command: str = "") -> list[int]:
    found = [
        int(place.parent.name)
        for place in Path("/proc").glob("[0-9]*/stat")
        if (text := _text(place))
        and int(text.rpartition(")")[2].split()[1]) == pid
        and command in _text(place.with_name("cmdline"))
    ]
    assert found
    return found


def _text(place: Path) -> str:
    try:
        return place.read_text()
    except OSError:
        return ""

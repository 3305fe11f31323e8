"""How the process ends, whatever still runs in it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

LEAVING = """
    import atexit, os, sys, threading, time
    from moryflow_sdk import hookimpl

    class Last:
        def __del__(self, write=os.write):
            write(2, b"taken down\\n")

    last = Last()
    atexit.register(lambda: sys.stderr.write("goodbye\\n"))

    @hookimpl
    def event(event):
        if event.type == "turn.start":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""

CLINGING = """
    import atexit, threading, time
    from moryflow_sdk import hookimpl

    @hookimpl
    def event(event):
        if event.type == "turn.start":
            HOLD
"""


def test_nothing_is_taken_down_under_a_thread_that_still_runs(cli: Any) -> None:
    """A clean-up runs and is heard, also when the process is left at once (S4.19).

    Without a key a turn ends while OpenSSL is being set up in a thread, and a quarter of such ends were a crash.
    """
    cli.plugin("leaving", LEAVING)
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "goodbye\n")


HOLDS = [
    "atexit.register(time.sleep, 600)",
    "threading.Thread(target=time.sleep, args=(600,), daemon=False).start()",
]


def test_a_plugin_cannot_hold_up_the_end_for_ever(cli: Any, tmp_path: Path) -> None:
    """A clean-up that hangs is left behind with a sentence; the answer and the exit code are the turn's (invariant 9).

    Likewise a thread. Both at once, for each takes the five seconds.
    """
    model = cli.script("fine")

    def held(number: int) -> Any:
        one = replace(cli, home=shutil.copytree(cli.home, tmp_path / f"home{number}"))
        one.plugin("clinging", CLINGING.replace("HOLD", HOLDS[number]))
        return one("run", "-m", model, "hi")

    with ThreadPoolExecutor(len(HOLDS)) as pool:
        ended = list(pool.map(held, range(len(HOLDS))))
    for hold, done in zip(HOLDS, ended, strict=True):
        assert (done.returncode, done.stdout) == (0, "fine\n"), hold
        assert "did not end within 5 s; Moryflow exits without it" in done.stderr, hold

"""Run work on a thread that nothing has to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def on_daemon_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` on a thread called `name`; neither the loop nor the end of the program waits for it, even if it hangs."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # callers that wait must get the error, whatever it is
            done.set_exception(error)
        except BaseException as error:  # wrapped, because a future with such an exception would end the loop
            done.set_exception(RuntimeError(f"it raised {type(error).__name__}"))

    threading.Thread(target=run, name=name, daemon=True).start()
    return done

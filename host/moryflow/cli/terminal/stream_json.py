"""``--output stream-json``: events as JSON Lines, answers to questions on standard input."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Event, MoryflowError

from moryflow.approvals import Answers, reply_in
from moryflow.base.events import now

from . import as_json
from .streams import stdout

if TYPE_CHECKING:
    from moryflow.runtime.turn_result import TurnResult


def write_line(document: object) -> None:
    stdout().write(as_json(document, indent=None) + "\n")
    stdout().flush()


class Lines:
    """Writes events as they come. When nobody can read them any more, the turn stops; what it did so far is kept.

    :param first: the line before all others. If it cannot be written, the turn stops once its prompt is stored.
    """

    def __init__(self, stop: Callable[[], None], first: object) -> None:
        self._stop = stop
        self._failure: OSError | None = None
        self._write(first)

    def __call__(self, event: Event) -> None:
        if self._failure is None:
            self._write(event.as_json())
        if self._failure is not None:
            self._stop()

    def _write(self, document: object) -> None:
        try:
            write_line(document)
        except OSError as error:
            self._failure = error

    def finish(self, result: TurnResult) -> None:
        """Write the last line.

        :raises OSError: this line or an earlier one could not be written.
        """
        if self._failure is not None:
            raise self._failure
        write_line(result.as_json())


def answer_from_stdin(answers: Answers) -> None:
    """Take ``{"type": "permission.reply", "approval_id": …, "reply": …}`` lines from standard input.

    When standard input has ended, questions are denied, because nobody can be asked; nothing waits for ever.
    """
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[Any]] = set()

    def start(document: object) -> None:
        task = loop.create_task(_reply(answers, document))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for line in sys.stdin:
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                document = None
            document = {} if document is None else document
            if not loop.is_closed():
                loop.call_soon_threadsafe(start, document)
        if not loop.is_closed():
            loop.call_soon_threadsafe(start, None)

    threading.Thread(target=read, name="moryflow-stdin", daemon=True).start()


async def _reply(answers: Answers, document: object) -> None:
    if document is None:
        await answers.nobody_left()
        return
    try:
        if not isinstance(document, dict) or document.get("type") != "permission.reply":
            raise MoryflowError(
                "a line on standard input is not a permission.reply", next_step='{"type": "permission.reply", …}'
            )
        approval, message = (str(document.get(name, "")) for name in ("approval_id", "message"))
        await answers.reply(approval, reply_in(document), message=message, by="client")
    except MoryflowError as error:
        details = {"code": error.code, "message": error.message, "where": "", "next": error.next_step}
        write_line({"v": 1, "type": "error", "ts": now(), **details})

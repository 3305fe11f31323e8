"""Terminals for the pages that a person follows: one in which keys are typed, and one that goes on beside it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

WAIT = 30.0
"""Seconds in which a second terminal must have shown what the page says."""


VARYING = (
    (re.compile(r"(?<=\ds) \(\d+:\d\d:\d\d\)"), ""),  # pytest's second way to say how long it took, after a minute
    (re.compile(r"(\b\d+(\.\d+)?|…) ?(ms|µs|us|s|min|seconds?)\b"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?)?"), "<date>"),
    (re.compile(r"(?<![0-9a-zA-Z])[0-9a-f]{8,64}(?![0-9a-zA-Z])"), "<id>"),
    (re.compile(r"(?<=/site-packages/)(moryflow\w*/\S+\.py):\d+"), r"\1"),
    (re.compile(r"\b\d+(\.\d+)?%"), "<share>"),
    (re.compile(r"__g\d+\b"), "__g"),
    (re.compile(r"\b\d+(\.\d+)?( (tokens|bytes|[KM]B)\b)"), r"<count>\2"),
    (re.compile(r"\b\d{3,}\b"), "<count>"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"(-{3,}|─{3,}|={3,})"), "<line>"),
)
"""What differs from run to run and from place to place, and the blanks of columns: a page shows what one run printed."""


def masked(text: str) -> str:
    """Return `text` with a mark in place of times, dates, ids, sizes, and numbers of three digits and more."""
    for pattern, mark in VARYING:
        text = pattern.sub(mark, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def same(expected: str, actual: str) -> bool:
    """Whether `actual` is `expected` but for what differs from run to run.

    A line ``[... WORDS]`` stands for any lines that the page leaves out, and ``…`` for anything.
    """
    return re.fullmatch(rf"\s*{_pattern(masked(expected))}\s*", masked(actual), re.DOTALL) is not None


def _pattern(expected: str) -> str:
    text = re.sub(r"(^|\n)\[\.\.\. [^\n]*\](?=\n|$)", "…", expected)
    return ".*?".join(re.escape(part.strip()) for part in text.split("…"))


def typed(command: str, keys: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Run `command` at a terminal of its own in which `keys` are typed at its first question; return what it showed."""
    ours, theirs = pty.openpty()
    environ = {**environ, "TERM": "dumb", "COLUMNS": "200"}
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    while piece := _read(ours):
        shown += piece
        if keys and shown.rstrip().endswith((b">", b"?", b"(Pdb)")):
            os.write(ours, f"{keys}\n".encode())
            keys = ""
    process.wait(WAIT)
    os.close(ours)
    return shown.decode("utf-8").replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end was closed: the command has ended
        return b""


class Terminal:
    """A command that goes on beside the page."""

    def __init__(self, command: str, folder: Path, environ: Mapping[str, str], clean: Callable[[str], str] = str) -> None:
        self._clean = clean
        self._shown = Path(tempfile.mkstemp(dir=folder.parent)[1])
        self._seen = 0
        with self._shown.open("wb") as file:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def shows(self, expected: str) -> None:
        """Wait until what has come since the last look is as expected."""
        ending = time.monotonic() + WAIT
        pattern = re.compile(rf"\s*{_pattern(masked(expected))}", re.DOTALL)
        while (found := pattern.match(text := self._text()[self._seen :])) is None:
            assert time.monotonic() < ending and self._process.poll() is None, f"shown:\n{expected}\nprinted:\n{text}"
            time.sleep(0.05)
        self._seen += found.end()

    def _text(self) -> str:
        return masked(self._clean(self._shown.read_text(encoding="utf-8")))

    def close(self) -> None:
        """End the command as Ctrl-C does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(WAIT)

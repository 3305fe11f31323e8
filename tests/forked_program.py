"""A program ``moryflow`` for shells: it has the process that :mod:`forked_command` keeps do the work, with its own streams.

It starts in a tenth of the time. At a terminal, and where a variable counts for the interpreter itself, it is the real one.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import sys
import tempfile
import threading
from pathlib import Path

from forked_command import AT_START, NUMBER, forking

_PROGRAM = """#!{python} -IS
import json, os, signal, socket, struct, sys

counts = [name for name in os.environ if name.startswith({at_start!r}) and name != "LC_CTYPE"]  # Python sets that one itself
if counts or any(os.isatty(stream) for stream in range(3)):
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
number = struct.Struct({number!r})
request = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
data = json.dumps(request).encode("utf-8", "surrogateescape")
with socket.socket(socket.AF_UNIX) as told:
    told.connect({place!r})
    socket.send_fds(told, [number.pack(len(data))], range(3))
    told.sendall(data)
    (pid,) = number.unpack(told.recv(number.size))
    for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda one, frame: os.kill(pid, one))
    (code,) = number.unpack(told.recv(number.size))
os._exit(code if code >= 0 else 128 - code)
"""


@functools.cache
def folder() -> Path:
    """Return a folder with the program, for ``PATH``; it works as long as this process lives."""
    made = Path(tempfile.mkdtemp(prefix="forked-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(made / "socket"))
    listening.listen()
    threading.Thread(target=_hand_over, args=(listening,), daemon=True).start()
    real = str(Path(sys.executable).with_name("moryflow"))
    said = {
        "python": sys.executable,
        "real": real,
        "place": str(made / "socket"),
        "number": NUMBER.format,
        "at_start": AT_START,
    }
    program = made / "bin" / "moryflow"
    program.parent.mkdir()
    program.write_text(_PROGRAM.format(**said), encoding="utf-8")
    program.chmod(0o700)
    return program.parent


def _hand_over(listening: socket.socket) -> None:
    """Give what each program sends, and its connection, to the process that is forked."""
    while True:
        connection, _ = listening.accept()
        with connection:
            size, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
            if len(streams) == 3:
                socket.send_fds(forking(()), [size], [*streams, connection.fileno()])
            for stream in streams:
                os.close(stream)

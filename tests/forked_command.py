"""Run ``moryflow`` in a process that is forked from one which has imported it.

It is a process of its own, with its own folder, environment and streams, and ends as any other; what it does not do is
import some 300 modules once more, which is most of the time of a short command. Tests start thousands of them. What is about
the start itself, about terminals, closed streams or another interpreter starts a process from nothing.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_COMMAND = [sys.executable, "-m", "moryflow"]
AT_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "SSL_")
"""Variables that count when an interpreter starts."""
_MODULES = (
    "cli.commands.run", "cli.commands.serve", "cli.commands.tool", "cli.open_host", "runtime.host", "runtime.session",
    "server.app", "server.listener", "store.sqlite.store",
)  # fmt: skip
NUMBER = struct.Struct("i")


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    text: bool = False,
    check: bool = False,
    capture_output: bool = True,
    timeout: float | None = None,
    **source: Any,
) -> subprocess.CompletedProcess[Any]:
    """Do what :func:`subprocess.run` does, with what `command` prints captured.

    :param source: ``stdin=subprocess.DEVNULL`` or ``input``, as there; whatever else it takes means a start from nothing.
    """
    data = source.pop("input", None)
    stdin = source.pop("stdin", subprocess.DEVNULL)
    if stdin != subprocess.DEVNULL or source or not _can_be_forked(command, env):
        how: dict[str, Any] = {"stdin": stdin} if data is None else {"input": data}
        return subprocess.run(
            command, cwd=cwd, env=env, text=text, check=check, capture_output=True, timeout=timeout, **how, **source
        )
    typed = data.encode() if isinstance(data, str) else data
    code, out, err = _run(command, cwd, env, typed, timeout)
    printed: Any = (out.decode(), err.decode()) if text else (out, err)
    done = subprocess.CompletedProcess(command, code, *printed)
    if check:
        done.check_returncode()
    return done


def _at_start(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in env.items() if name.startswith(AT_START)))


def _can_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether an interpreter of ours is meant that starts as this one did, or with less."""
    return [*command[:3]] == _COMMAND and {*_at_start(env)} <= {*_at_start(os.environ)}


class Running:
    """A command that goes on: what tests need of :class:`subprocess.Popen`, of a process that is forked.

    :param streams: closed here once the process has them.
    """

    def __init__(self, command: Sequence[str], streams: Sequence[int], *, cwd: Path, env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        reading, self._told = socket.socketpair()
        given: dict[str, Any] = {"arguments": [*map(os.fsdecode, command[3:])], "cwd": str(cwd), "env": dict(env)}
        given |= {"path": str(cwd), "files": resource.getrlimit(resource.RLIMIT_NOFILE)}
        request = json.dumps(given).encode("utf-8", "surrogateescape")
        socket.send_fds(forking(_at_start(env)), [NUMBER.pack(len(request))], [*streams, reading.fileno()])
        for descriptor in streams:
            os.close(descriptor)
        reading.close()
        self._told.sendall(request)
        (self.pid,) = NUMBER.unpack(self._told.recv(NUMBER.size))

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        :raises TimeoutError: it has not ended.
        """
        if self.returncode is None:
            self._told.settimeout(timeout)
            [code] = NUMBER.unpack(self._told.recv(NUMBER.size))
            self._told.close()
            self.returncode = int(code)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, ``None`` while it runs."""
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    command: Sequence[str], streams: Sequence[int], *, cwd: Path, env: Mapping[str, str]
) -> Running | subprocess.Popen[bytes]:
    """Begin `command`; one that is not ours alone starts from nothing.

    :param streams: descriptors of its input, its output and its errors, which are the command's alone from now on.
    """
    if _can_be_forked(command, env):
        return Running(command, streams, cwd=cwd, env=env)
    stdin, stdout, stderr = streams
    try:
        return subprocess.Popen(command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    finally:
        for descriptor in streams:
            os.close(descriptor)


def _run(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], typed: bytes | None, timeout: float | None
) -> tuple[int, bytes, bytes]:
    pipes = [os.pipe() for _ in range(3)]
    ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
    process = Running(command, [pipes[0][0], pipes[1][1], pipes[2][1]], cwd=cwd, env=env)
    found: dict[int, bytes] = {}
    workers = [threading.Thread(target=_collect, args=(place, found)) for place in ours[1:]]
    workers.append(threading.Thread(target=_type, args=(ours[0], typed)))
    for worker in workers:
        worker.start()
    try:
        code = process.wait(timeout)
    except TimeoutError:
        process.kill()
        raise subprocess.TimeoutExpired(command, timeout or 0) from None
    for worker in workers:
        worker.join()
    return code, found[ours[1]], found[ours[2]]


def _collect(descriptor: int, found: dict[int, bytes]) -> None:
    with os.fdopen(descriptor, "rb") as stream:
        found[descriptor] = stream.read()


def _type(descriptor: int, typed: bytes | None) -> None:
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(typed or b"")
    except BrokenPipeError:
        pass


@functools.cache
def forking(variables: tuple[tuple[str, str], ...]) -> socket.socket:
    """Start the process that is forked, with `variables`; it ends when this one does."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.environ["PATH"], **dict(variables)},
        )
    return ours


# ------------------------------------------------------------------------------------------------
# In the other process
# ------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return it in the process that is to run it, ``None`` when no more will come."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        size, descriptors, _, _ = socket.recv_fds(requests, NUMBER.size, 4)
        if not size:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _begun(NUMBER.unpack(size)[0], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _begun(size: int, descriptors: list[int]) -> dict[str, Any]:
    """Return the request in a process whose parent waits for it and tells how it ended."""
    client = socket.socket(fileno=descriptors[3])
    with client.makefile("rb") as stream:
        request = json.loads(stream.read(size).decode("utf-8", "surrogateescape"))
    if pid := os.fork():
        for descriptor in (0, 1, 2, *descriptors[:3]):
            os.close(descriptor)
        client.sendall(NUMBER.pack(pid))
        client.sendall(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    client.close()
    for place, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, place)
        os.close(descriptor)
    for place, (name, mode, buffering) in enumerate((("stdin", "r", -1), ("stdout", "w", -1), ("stderr", "w", 1))):
        like = getattr(sys, name)
        stream = open(place, mode, buffering, like.encoding, like.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return request


def _main() -> None:
    import gc
    import runpy

    for name in _MODULES:
        import_module(f"moryflow.{name}")
    for name in import_module("moryflow.base.builtins").BUILTINS:
        import_module(name)
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        os.chdir(request["cwd"])
        if "files" in request:
            resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
        os.environ.clear()
        os.environ.update(request["env"])
        if "path" in request:  # what ``python -m`` does, and a program does not
            sys.path.insert(0, request["path"])
        sys.argv = ["moryflow", *request["arguments"]]
        runpy.run_module("moryflow", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()

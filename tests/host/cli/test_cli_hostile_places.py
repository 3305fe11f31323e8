"""A file system without locks, a home that cannot be written, too few descriptors: a sentence each, and what to do."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
static int number(void) { const char *e = getenv("NO_LOCKS"); return e ? atoi(e) : 0; }
int flock(int fd, int op) { errno = number(); return -1; }
#define BODY(name) int name(int fd, int cmd, ...) { \\
    va_list a; va_start(a, cmd); void *p = va_arg(a, void *); va_end(a); \\
    if (cmd == F_SETLK || cmd == F_SETLKW || cmd == F_GETLK) { errno = number(); return -1; } \\
    static int (*real)(int, int, ...); if (!real) real = dlsym(RTLD_NEXT, #name); return real(fd, cmd, p); }
BODY(fcntl)
BODY(fcntl64)
"""
COMMANDS = [
    "session list", "session show", "session export", "session fork", "run -c -m {model} hi", "run -m {model} hi", "doctor",
    "tool run ls", "trace", "chat -m {model}",
]  # fmt: skip


def commands(cli: Any) -> list[list[str]]:
    """Return the command lines that this program knows, with a model of ours."""
    model = cli.script("one", "two")
    cli("run", "-m", model, "first")
    return [command.format(model=model).split() for command in COMMANDS]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with which every lock fails as on a file system that has none."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux to make system calls fail")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "no_locks.c").write_text(NO_LOCKS)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(folder / "no_locks.so"), str(folder / "no_locks.c"), "-ldl"], check=True
    )
    return folder / "no_locks.so"


def ran(cli: Any, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moryflow", *arguments]
    env = {**cli.env, **environ}
    return subprocess.run(command, env=env, cwd=cli.vault, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("command", ["session list", "run -m {model} hi", "doctor"])
@pytest.mark.parametrize("new", [False, True], ids=["used before", "new"])
def test_a_file_system_without_locks_has_its_sentence(cli: Any, shim: Path, number: int, command: str, new: bool) -> None:
    """It is not 'locked', and no disk to check: what is missing is said, and where to go (SECURITY §3)."""
    model = cli.script("one")
    if not new:
        cli("run", "-m", model, "first")
    done = ran(cli, *command.format(model=model).split(), LD_PRELOAD=str(shim), NO_LOCKS=str(number))
    said = done.stdout + done.stderr
    assert done.returncode == (3 if command == "doctor" else 1), said
    assert "has no locks" in said and "next: set MORYFLOW_HOME to a folder on a disk of this machine" in said
    assert "Traceback" not in said and "another program has kept" not in said


LIMITED = "import os, resource, sys; n = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)); "
LIMITED += "os.execv(sys.executable, [sys.executable, '-m', 'moryflow', *sys.argv[2:]])"


def with_files(cli: Any, files: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that may open so many files at a time."""
    command = [sys.executable, "-c", LIMITED, str(files), *arguments]
    return subprocess.run(command, env=cli.env, cwd=cli.vault, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("files", [5, 12, 31])
def test_too_few_files_have_their_sentence_for_every_command(cli: Any, files: int) -> None:
    """Anything may fail then, each time in another way: so nothing is begun (SECURITY §3)."""
    for arguments in (["session", "list"], ["run", "hi"], ["doctor"], ["tool", "run", "ls"], ["chat"], ["config", "check"]):
        done = with_files(cli, files, arguments)
        said = f"moryflow: the limit of open files is {files} here; Moryflow needs at least 32\n  next: ulimit -n 1024\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said), arguments
    assert not (cli.home / "sessions.db").exists()


def test_the_least_number_of_files_is_enough(cli: Any) -> None:
    """What is let through works (SECURITY §3)."""
    for arguments in commands(cli):
        done = with_files(cli, 32, arguments)
        assert "Too many open files" not in done.stdout + done.stderr, arguments
        assert "Traceback" not in done.stderr, arguments


async def test_files_that_run_out_on_the_way_have_their_sentence(tmp_path: Path) -> None:
    """SQLite tells only that it cannot open; which of our own limits that is, is found out (SECURITY §3)."""
    from moryflow.store import StoreError, open_store

    open_store(tmp_path).close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
        with pytest.raises(StoreError) as caught:
            open_store(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)
    assert caught.value.code == "many_files" and caught.value.next_step.startswith("ulimit -n 1024")


def test_a_home_that_cannot_be_written_is_read_and_said(cli: Any) -> None:
    """What only reads works; what would write says so, with exit code 1 (SECURITY §3)."""
    every = commands(cli)
    mount = f'mount --bind {cli.home} {cli.home} && mount -o remount,bind,ro {cli.home} && exec "$@"'
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces to mount a folder read-only")
    for arguments in every:
        command = [*inside, sys.executable, "-m", "moryflow", *arguments]
        done = subprocess.run(command, env=cli.env, cwd=cli.vault, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        said = done.stdout + done.stderr
        assert "Traceback" not in said, arguments
        if arguments[0] in ("run", "chat") or arguments == ["tool", "run", "ls"] or arguments == ["session", "fork"]:
            assert done.returncode in (1, 2) and "next: " in said, arguments
            assert "cannot be written" in said or arguments[0] == "chat" or done.returncode == 2, said
        elif arguments == ["doctor"]:
            assert done.returncode == 3 and f"{cli.home} cannot be written" in said
        elif arguments[:2] in (["session", "list"], ["session", "show"], ["session", "export"]):
            assert done.returncode == 0, said


def test_a_server_whose_token_cannot_be_written_says_why(cli: Any) -> None:
    """With the system's own reason, which decides what to do, and not always a wrong mode (SECURITY §3)."""
    token = cli.home / "server" / "token"
    token.mkdir(parents=True)
    got = ran(cli, "serve", "--port", "0")
    assert got.returncode == 1, got.stdout
    assert f"{token}: the token of the server cannot be written: Is a directory" in got.stderr
    assert [path.name for path in token.parent.iterdir() if path.name.startswith("token")] == ["token"]

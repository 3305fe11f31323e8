"""What holds for every test."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from moryflow_sdk.support import own_files

sys.path.insert(0, str(Path(__file__).parent))  # for what test files of several folders share

# Options for this run, such as the number of processes, are not for the runs of pytest that some tests start.
os.environ.pop("PYTEST_ADDOPTS", None)

# The suite may be started by an agent's tool, and then changes no configuration; its own programs shall.
os.environ.pop("MORYFLOW_CALL", None)
os.environ.pop("MORYFLOW_STORE", None)

# A script that starts the suite in the background has Ctrl-C ignored, also by every program that a test starts and ends so,
# and nohup the end of the terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Programs that tests start (git, uv, a shell) look into the home of whoever runs them and write there; they get another.
os.environ["HOME"] = tempfile.mkdtemp(prefix="moryflow-tests-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

# The same examples at each run, so that a run says something of what was changed; `--hypothesis-profile=explore` tries others.
# A slow machine, or a fixture that examples share, is not a mistake.
settings.register_profile("moryflow", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
settings.register_profile("explore", settings.get_profile("moryflow"), derandomize=False)
settings.load_profile("moryflow")

SLOW = (
    "tests/builtins/external_tools/test_external_tools_programs.py",
    "tests/builtins/local_model/test_local_model_install.py",
    "tests/builtins/mcp/test_mcp_login.py",
    "tests/builtins/mcp/test_mcp_prompts.py",
    "tests/builtins/mcp/test_mcp_web.py",
    "tests/builtins/permission/test_permission_commands_lint.py",
    "tests/builtins/permission/test_shell_sandbox_set.py",
    "tests/builtins/snapshots/test_undo_swapped.py",
    "tests/builtins/snapshots/test_undo_whole.py",
    "tests/host/acp/test_acp_files.py",
    "tests/host/cli/test_cli_bad_",
    "tests/host/cli/test_cli_config.py",
    "tests/host/cli/test_cli_consent.py",
    "tests/host/cli/test_cli_contributed.py",
    "tests/host/cli/test_cli_family.py",
    "tests/host/cli/test_cli_labels.py",
    "tests/host/cli/test_cli_mistakes.py",
    "tests/host/cli/test_cli_services.py",
    "tests/host/cli/test_cli_session.py",
    "tests/host/cli/test_cli_stopping.py",
    "tests/host/cli/test_cli_terminal.py",
    "tests/host/cluster/",
    "tests/host/packages/",
    "tests/host/plugins/reload/test_reload_broken_saves.py",
    "tests/host/server/test_attached_chat.py",
    "tests/host/server/test_page",
    "tests/host/server/test_server_strangers.py",
    "tests/sdk/conformance/",
    "tests/test_command_examples.py",
    "tests/test_documents.py",
    "tests/test_packaging.py",
    "tests/test_site.py",
    "tests/user_examples/",
)
"""Where the time goes: whole commands and installations, by the hundred."""

TIMES = 8
SMALLEST = 0.005
"""Processor seconds below which nothing can be told."""


def pytest_configure(config: pytest.Config) -> None:
    """Leave what is slow to the CI, unless it is asked for by a path or by ``-m``.

    A worker of pytest-xdist asks its controller: what stands in PYTEST_ADDOPTS does not reach it.
    """
    if told := getattr(config, "workerinput", None):
        config.option.markexpr = told["markexpr"]
    elif config.args_source is config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "not slow"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker what is to be run."""
    node.workerinput["markexpr"] = node.config.option.markexpr


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")


@pytest.fixture
def expect_linear_growth() -> Callable[[Callable[[int], Callable[[], object]], int], None]:
    """Hold work to its size: ``expect_linear_growth(make, size)``, where ``make(size)`` prepares it and returns what does it.

    Eight times the size may take thrice eight times the work; by its square it would take eight times eight. Processor time
    counts, not the clock on the wall, so that a slow or busy machine changes nothing.
    """

    def check(make: Callable[[int], Callable[[], object]], size: int) -> None:
        small, large = (min(_worked(make(size * times)) for _ in range(2)) for times in (1, TIMES))
        assert large <= max(small, SMALLEST) * TIMES * 3, f"{TIMES} times the size took {large / small:.0f} times the work"

    return check


@pytest.fixture(scope="module")
def shared_group() -> Iterator[None]:
    """The tester's own group has others in it, as it may not have where every user has a private one and umask 002."""
    before = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_files, "_is_private_group", lambda group, user: False)
        yield
    os.umask(before)


@pytest.fixture
def sleeping() -> Callable[[str], list[str]]:
    """Find the processes that ``sleep`` as long as a text says: ``sleeping("6001")`` returns their states.

    Those that have ended and were not reaped have no command line any more, and are not found.
    """

    def find(seconds: str) -> list[str]:
        found: list[str] = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if (place / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                    found.append((place / "stat").read_text().rpartition(")")[2].split()[0])
            except OSError:
                continue
        return found

    return find


def _worked(work: Callable[[], object]) -> float:
    """Return the processor time of `work`, without the collector's: that grows with all that the process holds."""
    gc.disable()
    try:
        begun = time.thread_time()
        work()
        return time.thread_time() - begun
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server of this process's own (:class:`postgres.PostgresServer`); without one the test is skipped."""
    from postgres import MISSING, postgres_server, programs

    if programs() is None or not importlib.util.find_spec("psycopg"):
        pytest.skip(MISSING)
    with postgres_server() as server:
        yield server

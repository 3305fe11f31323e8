"""The processes of a call are found by their mark, and only those are ended."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest
from moryflow_sdk.support.processes import CALL_MARK, end_marked, marked_environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="marks are read in /proc")


@pytest.fixture
def start():
    """Starts a command with a mark, and ends what a test left."""
    begun = []

    def start(mark, *command):
        process = subprocess.Popen(command or ("sleep", "60"), env=marked_environment(mark), stdout=subprocess.PIPE)
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_only_what_carries_the_mark_is_ended(start):
    """A call's processes are ended and counted, those of another call and of nobody go on (S0.36)."""
    mark, other = secrets.token_hex(8), secrets.token_hex(8)
    ours, theirs = [start(mark), start(mark)], start(other)
    assert end_marked((mark,)) == {mark: 2}
    assert all(process.wait() < 0 for process in ours) and theirs.poll() is None


def test_a_program_that_was_just_being_started_is_waited_for(start):
    """It carries its mark from its exec on, and the host may have been killed before that (S0.36)."""
    mark = secrets.token_hex(8)
    process = start(secrets.token_hex(8), "sh", "-c", f"sleep 0.1; exec env {CALL_MARK}={mark} sleep 60")
    assert end_marked((mark,), settle=1.5) == {mark: 1} and process.wait() == -9


def test_the_processes_of_a_call_do_not_end_their_own_host(start, monkeypatch):
    """A host that runs inside the very call that it is to clean up after lets it be (S0.36)."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(CALL_MARK, mark)
    process = start(mark)
    assert end_marked((mark,)) == {} and process.poll() is None


def test_processes_of_other_users_are_let_be(start, monkeypatch):
    """A mark in the environment of somebody else's process is no reason to end it (S0.36)."""
    mark = secrets.token_hex(8)
    process = start(mark)
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    assert end_marked((mark,)) == {} and process.poll() is None


def test_where_marks_cannot_be_read_it_says_so(monkeypatch):
    """Without ``/proc`` nothing is ended and nothing is claimed (S0.36)."""
    monkeypatch.setattr("moryflow_sdk.support.processes._PROC", Path("/nowhere"))
    assert end_marked(("a",)) is None

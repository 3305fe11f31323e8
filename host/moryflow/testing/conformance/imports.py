"""Checks: importing the plugin does nothing that a person has not asked for yet. Watched in a process of its own."""

from __future__ import annotations

from .subject import ImportReport, Subject

BUDGET = 0.3
"""Seconds of computing that import, registration and start may take together."""


def _report(subject: Subject) -> ImportReport:
    if subject.report.error:
        subject.need()
        subject.fail(f"it does not load in a process of its own: {subject.report.error}", "import it with python3 -c first")
    return subject.report


def test_it_uses_no_network_when_imported(plugin_subject: Subject) -> None:
    """`moryflow --help` of every user would wait for it."""
    for seen in _report(plugin_subject).network:
        plugin_subject.fail(f"it uses the network while it is imported: {seen}", "do it in the hook or tool that needs it")


def test_it_writes_nothing_when_imported(plugin_subject: Subject) -> None:
    """Only ``turn.data_dir`` is its own, and only from a hook on."""
    for seen in _report(plugin_subject).writes:
        plugin_subject.fail(f"it writes while it is imported: {seen}", "write below turn.data_dir, in a hook")


def test_it_starts_no_program_when_imported(plugin_subject: Subject) -> None:
    """Nobody has agreed to it yet."""
    for seen in _report(plugin_subject).programs:
        plugin_subject.fail(f"it starts a program while it is imported: {seen}", "start it in the tool that needs it")


def test_it_prints_nothing_when_imported(plugin_subject: Subject) -> None:
    """Standard output carries the answer, and in some commands a protocol."""
    printed = _report(plugin_subject).printed.strip()
    if printed:
        plugin_subject.fail(f"it prints while it is loaded: {printed[:200]!r}", "use turn.log, or ctx.log")


def test_it_leaves_what_is_everyones_alone(plugin_subject: Subject) -> None:
    """Environment, current folder, signal handlers and streams are as they were once it is unloaded."""
    for seen in _report(plugin_subject).changed:
        what = f"it changes {seen} for the whole process and leaves that behind"
        plugin_subject.fail(what, "undo it in the function that plugin_start returns, or do without")


def test_it_leaves_no_thread_behind(plugin_subject: Subject) -> None:
    """What it starts, its disposer ends: plugins are loaded and unloaded many times in one process."""
    for seen in _report(plugin_subject).threads:
        plugin_subject.fail(f"thread {seen} goes on after it was unloaded", "end it in the function that plugin_start returns")


def test_it_loads_within_its_budget(plugin_subject: Subject) -> None:
    """Every start of every command pays for it."""
    spent = _report(plugin_subject).cpu
    if spent > BUDGET:
        to_do = "import heavy libraries inside the functions that use them"
        plugin_subject.fail(f"loading takes {spent:.1f} s of computing", to_do)

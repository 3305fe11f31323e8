"""``moryflow audit``: filters, JSON, following, and logs that are big or damaged."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from moryflow_builtins.audit import Wanted, append, file_of, files, select

NOW = datetime.now(UTC)


def record(number, *, ago=timedelta(), decision="allow", **more):
    stamp = (NOW - ago).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    first = {"eventId": f"e{number}", "sessionId": "s", "mode": "agent", "decision": decision, "permissionDomain": "read"}
    return {**first, "targets": [f"vault:/{number}.md"], "rulePattern": None, "timestamp": stamp, "type": "decision", **more}


def write(home, session, *records):
    for item in records:
        append(file_of(home, session), json.dumps(item, separators=(",", ":")).encode() + b"\n")


def numbers(records):
    return [item["eventId"] for item in records]


def test_the_command_shows_decisions_oldest_first(bench):
    """As text and as JSON, on standard output alone (S0.74)."""
    write(
        bench.home, "s1", record(1, ago=timedelta(minutes=2), tool="read", by="rule"), record(2, decision="deny", tool="bash")
    )
    text = bench.cli("audit")
    assert text.returncode == 0 and [line.split()[2] for line in text.stdout.splitlines()] == ["allow", "deny"]
    shown = json.loads(bench.cli("audit", "--json").stdout)
    assert numbers(shown) == ["e1", "e2"] and shown[0]["targets"] == ["vault:/1.md"]


def test_filters_go_together(bench):
    """--denied, --since and --session (S0.74)."""
    write(bench.home, "s1", record(1, ago=timedelta(days=2), decision="deny"), record(2, decision="stop"), record(3))
    write(bench.home, "s2", record(4, decision="deny"))
    denied = json.loads(bench.cli("audit", "--denied", "--since", "1d", "--session", "s1", "--json").stdout)
    assert numbers(denied) == ["e2"]


def test_an_empty_log_is_not_an_error(bench):
    """Nothing recorded yet is said, and is [] as JSON."""
    assert "no decisions are recorded" in bench.cli("audit").stdout
    assert json.loads(bench.cli("audit", "--json").stdout) == []


def test_a_time_that_is_none_is_a_usage_error(bench):
    """Exit code 2, and what would be right."""
    done = bench.cli("audit", "--since", "yesterdayish")
    assert done.returncode == 2 and "30m, 2h, 7d" in done.stderr and "Traceback" not in done.stderr


def test_control_sequences_in_targets_are_made_visible(bench):
    """A file name cannot drive the terminal (R3)."""
    write(bench.home, "s1", record(1, targets=["vault:/\u001b[31mred\u202e"]))
    shown = bench.cli("audit").stdout
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b" in shown


def test_tail_shows_the_newest(bench):
    """As JSON Lines (S0.74)."""
    write(bench.home, "s1", *(record(n, ago=timedelta(minutes=9 - n)) for n in range(5)))
    assert [json.loads(line)["eventId"] for line in bench.cli("audit", "tail", "-n", "2", "--json").stdout.splitlines()] == [
        "e3",
        "e4",
    ]


def test_a_record_in_two_files_counts_once(tmp_path):
    """Parent and child hold the same event (D66)."""
    both = record(1)
    write(tmp_path, "parent", both)
    write(tmp_path, "child", both, record(2))
    assert sorted(numbers(select(files(tmp_path), Wanted()))) == ["e1", "e2"]
    assert numbers(select(files(tmp_path, "parent"), Wanted())) == ["e1"]


def test_the_newest_are_taken_across_files(tmp_path):
    """A limit is of all files together, newest first, shown oldest first."""
    for session in range(4):
        write(tmp_path, f"s{session}", *(record(f"{session}.{n}", ago=timedelta(minutes=n * 4 + session)) for n in (2, 1, 0)))
    assert numbers(select(files(tmp_path), Wanted(limit=5))) == ["e0.1", "e3.0", "e2.0", "e1.0", "e0.0"]


def test_the_beginning_of_an_id_is_enough(tmp_path):
    """--session takes a prefix."""
    write(tmp_path, "abcdef", record(1))
    write(tmp_path, "abxyz", record(2))
    assert [file.name[:6] for file in files(tmp_path, "abc")] == ["abcdef"]
    assert len(files(tmp_path, "ab")) == 2


def test_since_is_exact(tmp_path):
    """What is a moment too old is left out."""
    write(tmp_path, "s", record(1, ago=timedelta(minutes=31)), record(2, ago=timedelta(minutes=29)))
    assert numbers(select(files(tmp_path), Wanted(since=NOW - timedelta(minutes=30)))) == ["e2"]


def test_damaged_lines_are_left_out(tmp_path):
    """A log that was torn is still read (SECURITY §3)."""
    write(tmp_path, "s", record(1))
    with file_of(tmp_path, "s").open("ab") as log:
        log.write(b'\xff\xfe garbage\n{"eventId":"half","tar')
    write(tmp_path, "s", record(2))
    assert numbers(select(files(tmp_path), Wanted())) == ["e1", "e2"]

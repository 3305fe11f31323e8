"""``moryflow trace export``: any stored session, to a collector, a file or standard output."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from moryflow.cli import main
from moryflow.cli.commands import trace

from .conftest import flat, read


class Printed(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Printed]


@pytest.fixture
def moryflow(rig, monkeypatch) -> Command:
    """The command line in this process, in a folder with one session."""
    monkeypatch.chdir(rig.vault)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)

    def run(*words: str) -> Printed:
        out, err = io.StringIO(), io.StringIO()
        with Path(os.devnull).open(encoding="utf-8") as nothing, redirect_stdout(out), redirect_stderr(err):
            monkeypatch.setattr("sys.stdin", nothing)
            code = main(list(words))
        return Printed(code, out.getvalue(), err.getvalue())

    assert run("run", "-q", "-m", rig.script(rig.call("read", path="a"), "done"), "go").code == 0
    return run


def test_a_file_gets_a_line_of_otlp_for_each_batch(moryflow, rig, monkeypatch) -> None:
    """The format of a file is that of collectors: JSON Lines; the file is whole and private (D, telemetry)."""
    monkeypatch.setattr(trace, "BATCH", 3)
    done = moryflow("trace", "export", "--otlp", "spans.jsonl", "--hooks", "--json")
    lines = (rig.vault / "spans.jsonl").read_text().splitlines()
    spans = [span for line in lines for span in flat(read(line))]
    assert done.json == {"spans": len(spans), "to": "spans.jsonl"} and len(lines) == -(-len(spans) // 3)
    assert (rig.vault / "spans.jsonl").stat().st_mode & 0o777 == 0o600


def test_standard_output_and_a_collector_get_the_same(moryflow, collector) -> None:
    """`-` is standard output; a URL is a collector; the same session gives the same spans (D, telemetry)."""
    out = moryflow("trace", "export", "--otlp", "-")
    sent = moryflow("trace", "export", "--otlp", collector.url)
    assert (out.code, sent.code) == (0, 0) and "spans written to" in sent.err and sent.out == ""
    assert json.loads(out.out) == json.loads(collector.bodies[0])


def test_the_environment_or_the_setting_names_the_collector(moryflow, collector, monkeypatch) -> None:
    """Without any, the command says what to give, with exit code 2 (CONTRACT 1)."""
    nowhere = moryflow("trace", "export")
    assert nowhere.code == 2 and "--otlp" in nowhere.err
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    assert moryflow("trace", "export").code == 0 and len(collector.bodies) == 1


def test_a_collector_that_is_not_there_is_an_error(moryflow) -> None:
    """Exit code 1, the address and the next step (CONTRACT 1)."""
    failed = moryflow("trace", "export", "--otlp", "http://127.0.0.1:9")
    assert failed.code == 1 and "http://127.0.0.1:9/v1/traces" in failed.err and "next:" in failed.err


def test_trace_still_shows_a_session(moryflow) -> None:
    """The verb changed nothing for `moryflow trace [SESSION]`, with flags on either side (CONTRACT 1)."""
    session = moryflow("session", "list", "--json").json[0]["id"]
    shown = [moryflow("trace", *words).json["session"] for words in (["--json"], [session, "--json"], ["--json", session])]
    assert shown == [session] * 3
    assert moryflow("trace", "nothing").code != 0 and moryflow("trace", session, "more").code == 2
    help_text = moryflow("trace", "--help").out
    assert "moryflow trace [OPTIONS] [SESSION]" in help_text and "export" in help_text
    assert "moryflow trace export [OPTIONS] [SESSION]" in moryflow("trace", "export", "--help").out

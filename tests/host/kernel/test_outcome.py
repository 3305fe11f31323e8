"""How a turn ends: the exit code and the sentence for an answer that is not whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer, chunk, stream

ENDS = {
    "whole": (replies.text("fine"), "stop", 0, ""),
    "length": (stream(chunk(content="half"), chunk("length")), "length", 5, "cut at its length limit"),
    "filtered": (stream(chunk(content="half"), chunk("content_filter")), "content_filter", 7, "filtered"),
    "refused": (stream(chunk(refusal="I will not."), chunk("stop")), "refusal", 7, "refused"),
    "empty": (stream(chunk(content=""), chunk("stop")), "empty", 7, "empty"),
    "only blanks": (stream(chunk(content=" \n"), chunk("stop")), "empty", 7, "empty"),
    "only thoughts": (stream(chunk(reasoning_content="hm"), chunk("stop")), "empty", 7, "empty"),
}


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
@pytest.mark.parametrize("name", ENDS)
def test_an_answer_that_is_not_whole_is_told_and_has_an_exit_code(name, output, tmp_path):
    """``finish`` in the result, a sentence on standard error, and the exit code of the contract (S4.6)."""
    reply, finish, code, sentence = ENDS[name]
    with LoopbackServer(reply) as server:
        environ = {**os.environ, "MORYFLOW_HOME": str(tmp_path / "home"), "OPENAI_BASE_URL": server.url}
        line = [sys.executable, "-m", "moryflow", "run", "-m", "openai/m", "--vault", str(tmp_path), "--output", output, "go"]
        done = subprocess.run(line, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if output == "text":
        assert (sentence in done.stderr) if sentence else not done.stderr
    else:
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result["finish"], result["exit_code"], result["end_reason"]) == (finish, code, "completed")

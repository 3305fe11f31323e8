"""The three example hooks (S0.101), each as configuration and as a plugin: both do the same."""

from __future__ import annotations

import json
from pathlib import Path

import json5
import pytest

HOOKS = Path(__file__).resolve().parents[2] / "user_examples" / "hooks"


@pytest.fixture(params=["jsonc", "py"])
def install(request, moryflow):
    """Install the example of a name, in one of its two forms."""

    def put(name: str) -> None:
        file = HOOKS / f"{name}.{request.param}"
        if request.param == "py":
            moryflow.plugin(file)
        else:
            moryflow.configure(json5.loads(file.read_text(encoding="utf-8")))

    return put


def test_change_temperature(moryflow, install):
    """A hook changes a model parameter and leaves the others (S0.101, S0.102)."""
    install("change_temperature")
    moryflow.run("hi", ["hello"])
    params = moryflow.model.requests[0].params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.2, None, None)


def test_append_system_prompt(moryflow, install):
    """A hook adds to the system prompt (S0.101, S0.102)."""
    install("append_system_prompt")
    moryflow.run("hi", ["hello"])
    system = moryflow.model.requests[0].messages[0]
    assert system.role == "system"
    assert system.text.startswith("You are") and "\n\nYou must reply in short bullet points.\n\n" in system.text


def test_format_output(moryflow, install):
    """What a tool returned is processed and arrives at the model (S0.101, S0.102)."""
    install("format_output")
    (moryflow.vault / "a.md").write_text("one\n", encoding="utf-8")
    calls = [{"name": "read", "arguments": json.dumps({"path": path})} for path in ("a.md", "none.md")]
    moryflow.run("hi", [{"calls": calls}, "done"])
    good, bad = (message.text for message in moryflow.model.requests[1].messages[-2:])
    assert good == "```\none\n```"
    assert "```" not in bad

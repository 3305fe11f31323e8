"""What an editor is shown of stored calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from moryflow.acp.updates import UpdateMapper


def replayed(result: dict[str, Any], name: str = "bash") -> dict[str, Any]:
    """Return the update about a call that was stored with this result."""
    session: Any = SimpleNamespace(id="s", row=SimpleNamespace(vault="/v"))
    mapper = UpdateMapper(session, print, lambda tool: "bash" if tool == "bash" else "tool")
    call = {"id": "c", "name": name, "arguments": '{"description": "Look", "command": "ls a"}'}
    path: Any = [
        SimpleNamespace(id="n1", kind="assistant", payload={"calls": [call]}),
        SimpleNamespace(id="n2", kind="tool", payload={"call_id": "c", "status": "ok", **result}),
    ]
    [update] = list(mapper.replay(path))
    return dict(update)


@pytest.mark.parametrize(
    ("result", "title"),
    [
        ({"tool": "bash", "title": "exit code 0"}, "bash ls a"),
        ({"tool": "bash", "title": "exit code 3"}, "bash ls a (exit code 3)"),
        ({"tool": "bash"}, "bash ls a"),
        ({"title": "exit code 3"}, "exit code 3"),
    ],
)
def test_a_stored_command_keeps_its_name(result: dict[str, Any], title: str) -> None:
    """With how it failed; an imported result may not say of which tool it is (E.3)."""
    assert replayed(result)["title"] == title


def test_another_tool_is_titled_as_it_says() -> None:
    """`read notes.md (3 lines)` says more than the arguments (E.3)."""
    assert replayed({"tool": "look", "title": "look a (3 lines)"}, "look")["title"] == "look a (3 lines)"

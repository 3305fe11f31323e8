"""How a tool's function asks for its context."""

from __future__ import annotations

import pytest
from moryflow_sdk import ToolContext, Turn, tool


@pytest.mark.parametrize("annotation", [Turn, ToolContext, "Turn", "ToolContext"])
def test_the_context_is_no_argument_of_the_model(annotation):
    """A tool may call it turn, as hooks do; what it receives is the same (CONTRACT 3)."""

    def it(path: str, turn) -> str:
        """Do it."""
        return path

    it.__annotations__["turn"] = annotation
    made = tool(domain="read")(it)
    assert made.context_parameter == "turn"
    assert list(made.parameters["properties"]) == ["path"]

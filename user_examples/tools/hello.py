"""A tool of your own in one file.

Copy it to ``~/.moryflow/tools/`` and switch external tools on (``agents.runtime.tools.external.enabled``). A tool that
names no domain is asked about as ``tool:hello`` until a rule allows it.
"""

from __future__ import annotations

from typing import Annotated

from moryflow_sdk import tool


@tool
def hello(name: Annotated[str, "Who to greet"]) -> str:
    """Say hello to a name."""
    return f"Hello {name}"


tools = [hello]

"""A tool of your own in one file.

Copy it to ``~/.moryflow/tools/`` and allow it: ``moryflow tool allow hello``. Then ``moryflow tool run hello --name you``.
"""

from __future__ import annotations

from typing import Annotated

from moryflow_sdk import tool


@tool
def hello(name: Annotated[str, "Who to greet"]) -> str:
    """Say hello to a name."""
    return f"Hello {name}"


tools = [hello]

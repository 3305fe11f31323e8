"""A tool of your own in one file.

Copy it to ``~/.moryflow/tools/`` and switch external tools on: ``moryflow config set
agents.runtime.tools.external.enabled true``. The first call asks, and shows this file; ``moryflow tool run hello --name you``.
"""

from __future__ import annotations

from typing import Annotated

from moryflow_sdk import tool


@tool
def hello(name: Annotated[str, "Who to greet"]) -> str:
    """Say hello to a name."""
    return f"Hello {name}"


tools = [hello]

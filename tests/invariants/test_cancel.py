"""A stopped turn starts nothing any more (invariants 1 and 6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

WAITS = """
    import time
    from pathlib import Path

    PLACE = Path({place!r})

    @tool(domain="read", parallel_safe={parallel})
    def hold(name: str) -> str:
        "Wait until the file `go` is there."
        (PLACE / name).touch()
        while not (PLACE / "go").exists():
            time.sleep(0.01)
        return name

    @hookimpl
    def tools():
        return [hold]
"""


@pytest.mark.parametrize("parallel", [True, False], ids=["side by side", "one by one"])
async def test_a_call_that_waits_for_another_does_not_run_after_the_turn_was_stopped(rig, parallel: bool) -> None:
    """Neither a body behind another in the plugin's thread nor the next call of the step; each has one result."""
    place: Path = rig.vault.parent / "ran"
    place.mkdir()
    rig.allow_all()
    rig.plugin("waits", WAITS.format(place=str(place), parallel=parallel))
    calls = [{"name": "hold", "arguments": {"name": name}} for name in ("first", "second")]
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script({"calls": calls}, {"text": "done"}))
        turn = asyncio.create_task(session.prompt("go"))
        while not (place / "first").exists():  # noqa: ASYNC110 (a thread makes the file)
            await asyncio.sleep(0.01)
        session.cancel()
        result = await turn
        (place / "go").touch()
        await asyncio.sleep(0.3)
        path = await host.store.path(session.id)
    assert result.end_reason == "stopped"
    assert sorted(path.name for path in place.iterdir()) == ["first", "go"]
    results = [node.payload["call_id"] for node in path if node.kind == "tool"]
    assert len(results) == len(set(results)) == 2

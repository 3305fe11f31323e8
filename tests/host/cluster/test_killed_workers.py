"""Nothing acknowledged is lost and nothing is done twice, however workers end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_rig import ClusterRig

from .kill_harness import run


@pytest.mark.slow
async def test_killed_and_paused_workers_lose_nothing_and_double_nothing(make_cluster: Callable[..., ClusterRig]):
    """The short form of the kill harness: side effects are counted outside (D87, R41)."""
    found = await run(make_cluster(pause=0.2), kills=25, workers=3)
    assert found.kills + found.pauses >= 25 and found.turns >= 20
    assert (found.lost, found.doubled, found.unanswered, found.open) == (0, 0, 0, 0)

"""A session that is plainly short costs nothing; one that may matter is measured."""

from __future__ import annotations

import pytest
from compaction_paths import path_of, says, user
from moryflow.compaction.deferred import Deferred
from moryflow.kernel.compacting import NoCompaction


class Counted(NoCompaction):
    asked = 0

    async def before_step(self) -> None:
        self.asked += 1


@pytest.mark.parametrize(
    ("items", "window", "asked"),
    [
        ([user("hello"), says("hi")], 128_000, 0),
        ([user("hello")], None, 1),
        ([user("hello")], 8000, 1),
        ([user("hello")] * 20_000, 128_000, 1),
        ([user("look", images=[{"media_type": "image/png", "data": ""}])], 128_000, 1),
        ([user("hello"), says("hi", usage={"input": 90_000, "output": 1})], 128_000, 1),
    ],
)
async def test_only_a_plainly_short_session_is_not_measured(items, window, asked):
    """Unknown or small windows, images, large counts and long paths are measured at every step (S0.12)."""
    real = Counted()
    path = path_of(*items)
    await Deferred(lambda: path, window, lambda: real).before_step()
    assert real.asked == asked

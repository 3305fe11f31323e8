"""A session that is plainly short costs nothing; one that may matter is measured."""

from __future__ import annotations

import pytest
from compaction_paths import path_of, says, user
from moryflow.compaction import LazyCompaction
from moryflow.config.schema import UNKNOWN_WINDOW
from moryflow.kernel.turn_context import Compaction


class Counted(Compaction):
    asked = 0

    async def before_step(self) -> None:
        self.asked += 1


class Sent:
    """What is sent besides the messages, in characters."""

    def __init__(self, characters: int = 0) -> None:
        self.characters = characters

    async def overhead(self, size) -> float:
        return self.characters


@pytest.mark.parametrize(
    ("items", "window", "asked"),
    [
        ([user("hello"), says("hi")], 128_000, 0),
        ([user("hello")], None, 1),
        ([user("hello")] * 3_999, UNKNOWN_WINDOW, 0),
        ([user("hello")] * 4_000, UNKNOWN_WINDOW, 1),
        ([user("hello")], 8000, 1),
        ([user("hello")] * 20_000, 128_000, 1),
        ([user("look", images=[{"media_type": "image/png", "data": ""}])], 128_000, 1),
        ([user("hello"), says("hi", usage={"input": 90_000, "output": 1})], 128_000, 1),
    ],
)
async def test_only_a_plainly_short_session_is_not_measured(items, window, asked):
    """Small windows, limits of a person, images, large counts and long paths are measured at every step (S0.12)."""
    real = Counted()
    path = path_of(*items)
    await LazyCompaction(lambda: path, window, Sent(), lambda: real).before_step()
    assert real.asked == asked


@pytest.mark.parametrize(("characters", "asked"), [(15_999, 0), (16_000, 1)])
async def test_large_prompts_and_tools_are_measured(characters, asked):
    """What is sent besides the messages may be most of the window, a token for each character (S0.2, S1.21)."""
    real = Counted()
    await LazyCompaction(lambda: path_of(user("hello")), 32_000, Sent(characters), lambda: real).before_step()
    assert real.asked == asked


async def test_a_session_that_grows_is_measured_once_it_matters():
    """What was weighed before is not weighed again, and a path that became another is weighed anew (S0.12)."""
    real, path = Counted(), path_of(user("hello"))
    compaction = LazyCompaction(lambda: path, 128_000, Sent(), lambda: real)
    await compaction.before_step()
    path = path_of()
    await compaction.before_step()
    path = path_of(*[user("hello")] * 15_999)
    await compaction.before_step()
    assert real.asked == 0
    path += path_of(user("hello"), user("hello"))
    await compaction.before_step()
    assert real.asked == 1

"""How large a view is, and what counts as too long."""

from __future__ import annotations

import pytest
from compaction_paths import calls, compaction, path_of, result, says, user
from moryflow.compaction.measure import IMAGE_TOKENS, Meter, chars, last_counted, limit_of, request_tokens, usable
from moryflow.config.schema import CompactionSettings
from moryflow.store.messages import ContextBuilder
from moryflow_sdk import Image, Message

DEFAULTS = CompactionSettings()


def size(path, overhead=0.0):
    return request_tokens(path, ContextBuilder().build(path), Meter(), overhead)


def test_the_default_estimate_is_a_quarter_of_the_characters():
    """Exactly characters / 4, calls included (S0.17)."""
    assert chars("x" * 4001) == 4001 / 4
    assert size(path_of(user("a" * 40), calls("c", path="b"), result("c", "d" * 8))) == (40 + len('read{"path": "b"}') + 8) / 4


def test_images_count():
    """Images count in the size, by their area where it is known (D60)."""
    small = Image(media_type="image/png", data="", width=75, height=100)
    unknown = Image(media_type="image/png", data="")
    assert Meter().message(Message(role="user", images=(small, unknown))) == 10 + IMAGE_TOKENS


def test_the_providers_own_count_comes_first():
    """Usage of the last answer, plus an estimate for what came after it (S0.12, S4.12)."""
    path = path_of(user("a" * 400), says("b" * 400, usage={"input": 5000, "output": 70}), user("c" * 400))
    assert size(path, 300) == 5000 + 70 + 100


@pytest.mark.parametrize("item", [compaction("n0"), ("prune", {"nodes": {}}), ("marker", {"void": "n9"})])
def test_a_count_from_before_the_view_changed_does_not_count(item):
    """After a compaction, a prune or its undoing, the old usage says nothing (S0.12)."""
    path = path_of(user("a" * 400), says("b", usage={"input": 50_000, "output": 1}), item, user("c"))
    assert last_counted(path) is None and size(path) < 1000


def test_a_provider_that_did_not_count_is_not_believed():
    """A usage far below any estimate is left aside (S0.12)."""
    path = path_of(user("a" * 40_000), says("b", usage={"input": 10, "output": 1}))
    assert size(path) == 40_001 / 4


def test_the_share_of_the_window():
    """Strictly more than 0.8 of what the answer leaves: min(4096, a fifth of the window) (S0.13, S0.14)."""
    assert usable(10_000) == 8000 and usable(128_000) == 128_000 - 4096 and usable(10_000, 500) == 9500
    limit = limit_of(10_000, DEFAULTS)
    assert not limit.is_exceeded_by(6400) and limit.is_exceeded_by(6400.25)


@pytest.mark.parametrize("window", [None, 0, -5])
def test_an_unknown_window_has_a_character_limit(window):
    """A window that is unknown, zero or nonsense: 120,000 characters, configurable (S0.15)."""
    assert limit_of(window, DEFAULTS).tokens * 4 == 120_000
    assert limit_of(window, CompactionSettings(fallback_char_limit=4000)).tokens == 1000


def test_other_policies_are_chosen_by_name():
    """`buffer`: at least window - buffer; `reserve`: more than window - reserve (D13, S4.12)."""
    buffer = limit_of(100_000, CompactionSettings(policy="buffer"))
    reserve = limit_of(100_000, CompactionSettings(policy="reserve"))
    assert not buffer.is_exceeded_by(79_999) and buffer.is_exceeded_by(80_000)
    assert not reserve.is_exceeded_by(100_000 - 16_384) and reserve.is_exceeded_by(100_000 - 16_383)
    assert limit_of(8000, CompactionSettings(policy="buffer")).tokens == 4000


async def test_the_window_is_the_persons_then_the_providers(bench):
    """`customContext` decides, except for a managed provider (S0.16, D61)."""
    from moryflow_sdk import ModelInfo
    from moryflow_sdk.support.settings import ProviderSettings, with_limits

    info = ModelInfo(id="a/b", name="b", provider="a", context_window=8000)
    own = {"models": {"b": {"customContext": 4000, "contextWindow": 6000}}}
    assert with_limits(info, ProviderSettings.model_validate(own)).context_window == 4000
    managed = with_limits(info, ProviderSettings.model_validate({**own, "managed": True}))
    assert (managed.context_window, managed.managed) == (6000, True)

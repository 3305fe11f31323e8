"""What counts as too long, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from moryflow.config.schema import CompactionSettings

SHARE = 0.8
OUTPUT_BUDGET, OUTPUT_SHARE = 4096, 0.2


@dataclass(frozen=True)
class Limit:
    """A size that must not be exceeded.

    :ivar inclusive: whether exactly `tokens` is already too long.
    :ivar most: what a request may have at most, so that the window has room for the answer; as `tokens` where none is known.
    """

    tokens: float
    inclusive: bool = False
    most: float = 0.0

    def exceeded(self, tokens: float) -> bool:
        """Whether a view of `tokens` is too long."""
        return tokens >= self.tokens if self.inclusive else tokens > self.tokens


def usable(window: int, output_budget: int | None = None) -> float:
    """Return what is left of the window beside the answer."""
    return window - (min(OUTPUT_BUDGET, window * OUTPUT_SHARE) if output_budget is None else min(output_budget, window))


def _share(window: int, settings: CompactionSettings) -> Limit:
    return Limit(SHARE * usable(window, settings.output_budget))


def _buffer(window: int, settings: CompactionSettings) -> Limit:
    return Limit(_below(window, settings.buffer), inclusive=True)


def _reserve(window: int, settings: CompactionSettings) -> Limit:
    return Limit(_below(window, settings.reserve))


def _below(window: int, distance: int) -> float:
    """Return `window` less `distance`, but never less than half of a small window."""
    return max(window - distance, window / 2)


POLICIES: Mapping[str, Callable[[int, CompactionSettings], Limit]] = {"share": _share, "buffer": _buffer, "reserve": _reserve}


def limit_of(window: int | None, settings: CompactionSettings) -> Limit:
    """Return the limit for a context window; for an unknown one the character limit, as tokens."""
    if not window or window < 0:
        tokens = settings.fallback_char_limit / 4
        return Limit(tokens, most=tokens)
    limit = POLICIES[settings.policy](window, settings)
    return replace(limit, most=min(window, max(usable(window, settings.output_budget), limit.tokens)))

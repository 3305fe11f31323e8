"""Choose a model, call it, try again when that can help."""

from __future__ import annotations

import asyncio
import difflib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from moryflow_sdk import ConfigError, ModelError, ModelEvent, ModelInfo, ModelProvider, ModelRequest, Status

TRIES = 5
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
UNREACHABLE_TRIES = 2
"""A server that refuses the connection rarely appears within seconds; a person should not wait for it."""

Waiting = Callable[[int, float, str], Awaitable[None]]
"""Told before a wait: the next attempt's number, seconds until then, and why."""


class Models:
    """The providers of one generation, asked in order until one knows the model."""

    def __init__(self, providers: Sequence[ModelProvider], environ: Mapping[str, str]) -> None:
        self._providers = tuple(providers)
        self._environ = environ

    def choose(self, *wishes: str | None) -> tuple[ModelProvider, ModelInfo]:
        """Return provider and model for the first of `wishes` that is set, else by the keys found.

        :raises ConfigError: nobody knows the model, or there is no model at all.
        """
        wish = next((wish for wish in wishes if wish), None)
        name = wish or self._default()
        if name is None:
            raise ConfigError(
                "no model: no key was found and the local model is not installed",
                next_step="one of: `moryflow model install` (a small local model, no key); "
                "`export OPENAI_API_KEY=…` (or another provider's key); `moryflow run -m MODEL …` (see `moryflow model list`)",
            )
        for provider in self._providers:
            info = provider.find(name)
            if info is not None:
                return provider, info
        raise ConfigError(f"unknown model {name!r}{self._nearly(name)}", next_step="moryflow model list")

    def _default(self) -> str | None:
        found = (provider.default(self._environ) for provider in self._providers)
        return next((name for name in found if name), None)

    def _nearly(self, name: str) -> str:
        known = [prefix for provider in self._providers for prefix in (provider.name, *getattr(provider, "prefixes", ()))]
        near = difflib.get_close_matches(name.split("/")[0], known, n=1)
        if not near or near[0] == name.split("/")[0]:
            return ""
        rest = name.partition("/")[2]
        return f"; did you mean {near[0] + ('/' + rest if rest else '')!r}?"


async def stream(provider: ModelProvider, request: ModelRequest, waiting: Waiting) -> AsyncIterator[ModelEvent]:
    """Yield the answer. A call that failed is tried again, with growing pauses, also when it broke off in the middle.

    :param waiting: awaited before each further try; what was yielded before it is replaced by what follows.
    :raises ModelError: it failed for good; what was yielded since the last try is all there is.
    """
    attempt = 0
    is_reachable = False
    while True:
        attempt += 1
        try:
            async for event in provider.stream(request):
                is_reachable = is_reachable or not isinstance(event, Status)
                yield event
            return
        except ModelError as error:
            limit = UNREACHABLE_TRIES if error.code == "unreachable" and not is_reachable else TRIES
            if not error.retryable or attempt >= limit:
                raise
            pause = wait_before(attempt, error.retry_after)
            await waiting(attempt + 1, pause, error.message)
        await asyncio.sleep(pause)


def wait_before(attempt: int, retry_after: float | None) -> float:
    """Return seconds to wait after failed attempt number `attempt`: doubling, with jitter, or what the provider asked."""
    if retry_after is not None:
        return min(max(retry_after, 0.0), 120.0)
    pause = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT)
    return pause * random.uniform(0.85, 1.15)

"""The probe: code not seen before, by content hash, goes first through a child process with limits.

It is a fault detector, not a sandbox: an endless loop, ``os._exit`` or a crash costs the probe and not the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .policy import SECONDS, Gatekeeper, Item
from .verdicts import ProbeVerdict

__all__ = ["SECONDS", "Gatekeeper", "ProbeVerdict", "cached", "probe", "probe_all"]


async def probe(
    item: Item, *, home: Path, config: Mapping[str, Any] | None = None, seconds: float = SECONDS, again: bool = False
) -> ProbeVerdict:
    """Return the verdict on a plugin that was found, or on a file with tools: what is known, else what the probe says.

    :param config: the person's settings as one object.
    :param again: probe it also if a verdict is known.
    """
    keeper = Gatekeeper(home)
    known = None if again else keeper.cached(item)
    if known is not None:
        return known
    verdict = await asyncio.wrap_future(keeper.ask(item, config or {}, seconds=seconds))
    keeper.cache.save()
    return verdict


def probe_all(items: Sequence[Item], *, home: Path, config: Mapping[str, Any], seconds: float = SECONDS) -> list[ProbeVerdict]:
    """Probe all of `items` again, as many at a time as the probe takes, for code that runs on a thread."""
    keeper = Gatekeeper(home)
    asked = [keeper.ask(item, config, seconds=seconds) for item in items]
    verdicts = [future.result() for future in asked]
    keeper.cache.save()
    return verdicts


def cached(item: Item, *, home: Path) -> ProbeVerdict | None:
    """Return the verdict on an item as it is now, ``None`` when it was not probed."""
    return Gatekeeper(home).cached(item)

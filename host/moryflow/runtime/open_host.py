"""Open a host: read the configuration, load the plugins, put them together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moryflow.base.builtins import BUILTINS
from moryflow.base.paths import home_folder

from .generation import WAIT, GenerationBuilder, in_development
from .host import Host


async def open_host(
    home: Path | str | None = None,
    *,
    config: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    safe_mode: bool | None = None,
    plugins: Sequence[str] | None = None,
    strict: bool | None = None,
    profile: str | None = None,
    builtins: Sequence[str] = BUILTINS,
    probe: bool = True,
    wait: float = WAIT,
    development: Sequence[Path] = (),
) -> Host:
    """Load configuration and plugins and return a host.

    :param home: Moryflow's own folder; ``MORYFLOW_HOME``, else ``~/.moryflow``.
    :param config: an inline layer: JSON text or a path.
    :param plugins: names of third-party plugins to load; empty means built-ins only; ``None`` means all.
    :param probe: try out third-party code that was not seen before in a process of its own first.
    :param wait: seconds to wait for that; what takes longer joins at a later turn.
    :param development: plugins that lie elsewhere and are being written: files, packages, projects.
    :raises ConfigError: the inline configuration is wrong. Nothing in the user's files raises.
    """
    env = os.environ if environ is None else environ
    builder = GenerationBuilder(
        home=home_folder(home, env),
        environ=env,
        inline=config,
        flags=flags,
        safe_mode=safe_mode,
        only=None if plugins is None else frozenset(plugins),
        builtins=builtins,
        probe=probe,
        wait=wait,
        strict=strict,
        development=in_development(development, env),
        profile=profile,
    )
    return await _opened(builder)


async def _opened(builder: GenerationBuilder) -> Host:
    """Load the first generation and put the host together."""
    config, plugin_set = await builder.load()
    profile = builder.profile or config.get("profile") or "local"
    return Host(builder, config, plugin_set, profile=profile, strict=builder.is_strict(config))

"""One generation: the configuration and the plugins as they are at one moment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow.base.builtins import AMONG_USER, FINAL_TOOL_AFTER, RESERVED
from moryflow.config import Config, load_config
from moryflow.hooks.plugin_set import LoadFailure, PluginSet
from moryflow.packages import put_back
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.plugins.discovery import Candidate, PluginSettings, discover
from moryflow.plugins.importer import LoadedCode
from moryflow.plugins.last_seen import recall, remember
from moryflow.plugins.lifecycle import PlainContext, WatchRegistry
from moryflow.plugins.load import NOTHING
from moryflow.plugins.preflight import PreflightStatus

if TYPE_CHECKING:
    from moryflow.config.schema import Known
    from moryflow.plugins.preflight.policy import AdmissionPolicy

DEVELOPMENT = "MORYFLOW_DEVELOPMENT"
"""Variable that names plugins which lie elsewhere and are being written, as ``PATH`` does; ``moryflow dev`` sets it."""
WAIT = 2.5
"""Seconds that a start waits for the probe of code it has not seen before; what takes longer joins at a later turn."""
STRICT_WAIT = 60.0
"""The same under ``--strict``, where nothing is left out that was asked for."""


@dataclass(frozen=True, eq=False)
class GenerationBuilder:
    """What a generation is made from; the same for all generations of a host.

    :param safe_mode: the flag; ``None`` leaves it to the configuration, which knows the environment too. Likewise `only`,
        the third-party plugins to load, and `profile`.
    :param probe: try out code that was not seen before in a process of its own, and wait for consent where it is due.
    :param wait: seconds to wait for that.
    :param strict: the flag; ``None`` leaves it to the configuration.
    :param development: plugins that lie elsewhere and are being written.
    :param watch_registry: takes what plugins want watched.
    :param code: the files that plugins have imported for the person.
    """

    home: Path
    environ: Mapping[str, str]
    inline: str | None
    flags: Mapping[str, Any] | None
    safe_mode: bool | None
    only: frozenset[str] | None
    builtins: Sequence[str]
    probe: bool = True
    wait: float = WAIT
    strict: bool | None = None
    development: tuple[Path, ...] = ()
    preflight: PreflightStatus = field(default_factory=PreflightStatus)
    watch_registry: WatchRegistry = field(default_factory=WatchRegistry)
    profile: str | None = None
    code: LoadedCode = field(default_factory=LoadedCode)

    async def load(
        self, previous: PluginSet | None = None, *, last: Config | None = None, wait: float | None = None
    ) -> tuple[Config, PluginSet]:
        """Read configuration and plugins; what is unchanged is taken over from `previous`.

        :param last: the settings until now, which hold on while the user's file is torn.
        :param wait: seconds to wait for the probe this time, if other than usual.
        :raises ConfigError: the inline configuration is wrong. Nothing in the user's files raises.
        """
        config = load_config(self.home, inline=self.inline, environ=self.environ, flags=self.flags)
        config = last.after(config) if last is not None else config
        config.keep(self.home)
        settings = wanted_plugins(config, safe_mode=self.safe_mode, only=self.only)
        put_back(self.home)
        found = list(discover(self.home, self.builtins, self.development))
        if wait is None:
            wait = max(self.wait, STRICT_WAIT) if previous is None and self.is_strict(config) else self.wait
        policy = await self._policy(found, settings, config, wait) if self.probe else None
        build = _Build(self, found, settings, config, policy, previous)
        plugin_set = await build.made()
        worse = worse_than(previous, plugin_set)
        if worse:
            better = await build.made(worse)
            await dispose(plugin_set)
            plugin_set = better
        remember(plugin_set)
        return config, plugin_set

    def is_strict(self, config: Config) -> bool:
        """Whether a plugin that fails is an error."""
        return bool(config.get("strict") if self.strict is None else self.strict)

    def profile_of(self, config: Config) -> str:
        """Return the profile: the flag's, else the configuration's."""
        return self.profile or config.get("profile") or "local"

    async def _policy(
        self, found: Sequence[Candidate], settings: PluginSettings, config: Config, wait: float
    ) -> AdmissionPolicy | None:
        """Return who says what may be imported, after the probe of what is new; built-in plugins need nobody.

        What loaded the last time comes first, and what failed then comes last; within these, what was not done at a glance.
        Otherwise the person's own files come first: they are few, and what was just written is what is looked for.
        """
        wanted = [candidate for candidate in found if _wanted(candidate, settings)]
        items: list[Candidate | Path] = [candidate for candidate in wanted if candidate.tier == "user"]
        if config.get("agents.runtime.tools.external.enabled") and not settings.safe_mode:
            items += sorted(path for path in (self.home / "tools").glob("*.py") if not path.name.startswith(("_", ".")))
        items += (candidate for candidate in wanted if candidate.tier != "user")
        if not items:
            return None
        policy = self.preflight.policy(self.home)
        unknown = policy.unknown(items)
        if unknown:
            quick_first = promising_first(sorted(unknown, key=policy.is_slow), self.home)
            await policy.examine(quick_first, config.section(""), wait=wait)
        policy.cache.save()
        return policy


class _Build(NamedTuple):
    """What one generation is built from; it may take two attempts."""

    builder: GenerationBuilder
    found: Sequence[Candidate]
    settings: PluginSettings
    config: Config
    policy: AdmissionPolicy | None
    previous: PluginSet | None

    async def made(self, held_back: Mapping[str, LoadFailure] = NOTHING) -> PluginSet:
        """Return a started set; of the plugins in `held_back` the version before goes on."""
        builder = self.builder
        plugin_set = load_plugin_set(
            home=builder.home,
            builtins=builder.builtins,
            settings=self.settings,
            config=self.config,
            final_after=FINAL_TOOL_AFTER,
            among_user=AMONG_USER,
            previous=self.previous,
            admission=self.policy,
            found=self.found,
            held_back=held_back,
        )
        context = PlainContext(
            builder.home,
            builder.environ,
            profile=builder.profile_of(self.config),
            safe_mode=self.settings.safe_mode,
            code=builder.code,
            admission=self.policy,
            watch_registry=builder.watch_registry,
        )
        builder.code.prune()
        return await start(plugin_set, context.of, reserved=RESERVED, previous=self.previous)


def worse_than(previous: PluginSet | None, now: PluginSet) -> dict[str, LoadFailure]:
    """Return the plugins whose new code was imported but does not start or contribute, where the code before did."""
    before = {record.name: record for record in previous.records} if previous else {}
    found: dict[str, LoadFailure] = {}
    for record in now.records:
        known = before.get(record.name)
        if known is None or known.status != "loaded" or record.tier == "builtin" or record.kept:
            continue
        if known.error and not known.kept:
            continue
        if record.stage in ("start", "contribute") and record.error and record.hash != known.hash:
            stage: Any = record.stage
            found[record.name] = LoadFailure(stage, record.error, file=record.file, line=record.line, hint=record.hint)
    return found


def promising_first(items: Sequence[Candidate | Path], home: Path) -> list[Candidate | Path]:
    """Return `items` with what loaded the last time first and what failed then last, in any version and at any place."""
    last = {(known.record.tier, known.record.name): known.record.status for known in recall(home).values()}
    rank = {"loaded": 0, "failed": 2}

    def of(item: Candidate | Path) -> int:
        return rank.get(last.get((item.tier, item.name), ""), 1) if isinstance(item, Candidate) else 1

    return sorted(items, key=of)


def _wanted(candidate: Candidate, settings: PluginSettings) -> bool:
    asked_for = settings.only is None or candidate.name in settings.only
    return candidate.tier != "builtin" and not settings.safe_mode and asked_for and candidate.name not in settings.disabled


def in_development(given: Sequence[Path], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the plugins that are being written: those given, and those of :data:`DEVELOPMENT`."""
    named = (Path(entry) for entry in environ.get(DEVELOPMENT, "").split(os.pathsep) if Path(entry).is_absolute())
    return tuple(dict.fromkeys((*given, *named)))


def wanted_plugins(config: Config, *, safe_mode: bool | None = None, only: frozenset[str] | None = None) -> PluginSettings:
    """Return which plugins a person wants loaded: what a flag says, else the configuration, which knows the environment."""
    named = config.get("onlyPlugins")
    return PluginSettings(
        disabled=frozenset(config.get("disabledPlugins") or ()),
        only=frozenset(named) if only is None and named is not None else only,
        safe_mode=bool(config.get("safeMode")) if safe_mode is None else safe_mode,
    )


def settings_of_plugins(plugin_set: PluginSet) -> tuple[Known, ...]:
    """Return path and model of every loaded plugin that declares its settings."""
    declared = ((plugin, type(plugin.config)) for plugin in plugin_set.plugins.values())
    return tuple(
        (getattr(plugin.object, "config_path", "") or f"plugins.{plugin.name}", model)
        for plugin, model in declared
        if hasattr(model, "model_fields")
    )

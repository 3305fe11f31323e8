"""One generation: the configuration and the plugins as they are at one moment."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from moryflow.base.builtins import AMONG_USER, FINAL_TOOL_AFTER, RESERVED
from moryflow.config import Config, load_config
from moryflow.hooks.plugin_set import LoadFailure, LoadRecord, PluginSet
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.plugins.consent import Consents
from moryflow.plugins.discovery import Candidate, PluginSettings, discover
from moryflow.plugins.importer import LoadedCode
from moryflow.plugins.last_seen import recall, remember
from moryflow.plugins.lifecycle import PlainContext, WatchRegistry
from moryflow.plugins.load import NOTHING
from moryflow.plugins.preflight import PreflightStatus

if TYPE_CHECKING:
    from moryflow.plugins.preflight.policy import AdmissionPolicy

# Environment variable with the paths of plugins under development, separated as in `PATH`; `moryflow dev` sets it.
DEVELOPMENT = "MORYFLOW_DEVELOPMENT"
# Seconds that a start waits for the probe of new code; a plugin that takes longer joins at a later turn.
WAIT = 4.0
# The same under `--strict`, where a plugin that the user asked for must not be missing.
STRICT_WAIT = 60.0


@dataclass(frozen=True, eq=False)
class GenerationBuilder:
    """Builds the generations of one host, all from the same inputs.

    :param safe_mode: the flag; ``None`` leaves it to the configuration, which includes the environment. The same holds for
        `only`, the third-party plugins to load, and for `profile`.
    :param probe: try new code in a separate process first, and do not load code that still needs the user's consent.
    :param wait: seconds to wait for the probe.
    :param strict: the flag; ``None`` leaves it to the configuration.
    :param development: plugins under development, which may be outside Moryflow's folder.
    :param watch_registry: receives the files that plugins want watched.
    :param code: the files that plugins have imported for the user.
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
        """Read the configuration and load the plugins; plugins that did not change are taken over from `previous`.

        A plugin whose new code fails to start or contribute keeps running with its previous code.

        :param last: the settings until now; they stay in force while the user's file cannot be parsed.
        :param wait: seconds to wait for the probe this time; by default the builder's own `wait`.
        :raises ConfigError: the inline configuration is wrong. Nothing in the user's files raises.
        """
        config = load_config(self.home, inline=self.inline, environ=self.environ, flags=self.flags, last=last)
        config.keep(self.home)
        settings = wanted_plugins(config, safe_mode=self.safe_mode, only=self.only)
        found = list(discover(self.home, self.builtins, self.development))
        if wait is None:
            wait = max(self.wait, STRICT_WAIT) if previous is None and self.is_strict(config) else self.wait
        policy = await self._policy(found, settings, config, wait) if self.probe else None
        start_plugins = partial(self._start_plugins, found, settings, config, policy)
        plugin_set, held_back = await start_plugins(previous), dict[str, LoadFailure]()
        while previous and (worse := worse_than(previous, plugin_set, held_back)):
            held_back |= worse | failed_new(previous, plugin_set)
            better = await start_plugins(with_previous(plugin_set, previous, worse), held_back)
            await dispose(plugin_set)
            plugin_set = better
        remember(plugin_set)
        return config, plugin_set

    def is_strict(self, config: Config) -> bool:
        """Whether a plugin that fails to load is an error."""
        return bool(config.get("strict") if self.strict is None else self.strict)

    def profile_of(self, config: Config) -> str:
        """Return the profile: the flag's, else the configuration's."""
        return self.profile or config.get("profile") or "local"

    async def _policy(
        self, found: Sequence[Candidate], settings: PluginSettings, config: Config, wait: float
    ) -> AdmissionPolicy | None:
        """Return the policy that admits code, after new code was probed; ``None`` if all code is built in.

        Plugins that loaded last time are probed first and those that failed last.
        The user's own files precede packages: they are few, and the user who just wrote one is waiting for it.
        """
        wanted = [candidate for candidate in found if _is_wanted(candidate, settings)]
        items: list[Candidate | Path] = [candidate for candidate in wanted if candidate.tier == "user"]
        switch = config.get("agents.runtime.tools.external.enabled")
        if switch is not False and not settings.safe_mode:
            consents = Consents(self.home)
            files = sorted(path for path in (self.home / "tools").glob("*.py") if not path.name.startswith(("_", ".")))
            items += (path for path in files if switch or consents.of_content(path) == "allowed")
        items += (candidate for candidate in wanted if candidate.tier != "user")
        if not items:
            return None
        policy = self.preflight.policy(self.home)
        unknown = policy.unknown(items)
        if unknown:
            ordered = promising_first(unknown, self.home)
            await policy.examine(ordered, config.section(""), wait=wait)
        policy.cache.save()
        return policy

    async def _start_plugins(
        self,
        found: Sequence[Candidate],
        settings: PluginSettings,
        config: Config,
        policy: AdmissionPolicy | None,
        previous: PluginSet | None,
        held_back: Mapping[str, LoadFailure] = NOTHING,
    ) -> PluginSet:
        """Return a started set of plugins; the plugins in `held_back` keep their previous version."""
        config = config.without(*PROGRAMS) if settings.safe_mode else config
        plugin_set = load_plugin_set(
            home=self.home,
            builtins=self.builtins,
            settings=settings,
            config=config,
            final_after=FINAL_TOOL_AFTER,
            among_user=AMONG_USER,
            previous=previous,
            admission=policy,
            found=found,
            held_back=held_back,
        )
        context = PlainContext(
            self.home,
            self.environ,
            profile=self.profile_of(config),
            safe_mode=settings.safe_mode,
            code=self.code,
            admission=policy,
            watch_registry=self.watch_registry,
        )
        self.code.prune()
        return await start(plugin_set, context.of, reserved=RESERVED, previous=previous)


# Settings that name code of the user's, which built-in plugins run by themselves; safe mode runs none of it.
PROGRAMS = (("agents", "runtime", "claudeHooks"), ("agents", "runtime", "checkers"), ("agents", "runtime", "llmPlugins"))


def worse_than(previous: PluginSet, now: PluginSet, tried: Container[str]) -> dict[str, LoadFailure]:
    """Return the plugins, except those in `tried`, whose new code was imported but fails to start, or contributes less because
    of an error. A mere remark on what it contributes does not count."""
    before = {record.name: record for record in previous.records}
    found: dict[str, LoadFailure] = {}
    for record in now.records:
        known = before.get(record.name)
        if known is None or known.status != "loaded" or record.tier == "builtin" or record.kept or record.name in tried:
            continue
        fails = record.status == "failed" and record.stage == "start"
        less = record.refused > known.refused or not {*record.failed_hooks} <= {*known.failed_hooks}
        if (fails or less) and record.hash != known.hash:
            found[record.name] = _failure_of(record)
    return found


def failed_new(previous: PluginSet, now: PluginSet) -> dict[str, LoadFailure]:
    """Return the plugins without a previous version that failed to start: a set built from `now` must not try them again."""
    return {
        record.name: _failure_of(record)
        for record in now.records
        if record.status == "failed" and record.stage == "start" and record.name not in previous.plugins
    }


def _failure_of(record: LoadRecord) -> LoadFailure:
    stage: Any = record.stage
    error = "; ".join(note.partition("; next: ")[0] for note in record.notes) or record.error
    return LoadFailure(stage, error, file=record.file, line=record.line, hint=record.hint)


def with_previous(now: PluginSet, previous: PluginSet, names: Container[str]) -> PluginSet:
    """Return `now` with the plugins in `names` as in `previous`: a set built from it starts no plugin a second time."""
    plugins = {**now.plugins, **{name: plugin for name, plugin in previous.plugins.items() if name in names}}
    records = (record for record in now.records if record.name not in names)
    old = (record for record in previous.records if record.name in names)
    return replace(now, plugins=MappingProxyType(plugins), records=(*records, *old))


def promising_first(items: Sequence[Candidate | Path], home: Path) -> list[Candidate | Path]:
    """Return `items`, those that loaded last time first and those that failed last; version and place do not matter."""
    last = {(known.record.tier, known.record.name): known.record.status for known in recall(home).values()}
    rank = {"loaded": 0, "failed": 2}

    def of(item: Candidate | Path) -> int:
        return rank.get(last.get((item.tier, item.name), ""), 1) if isinstance(item, Candidate) else 1

    return sorted(items, key=of)


def _is_wanted(candidate: Candidate, settings: PluginSettings) -> bool:
    asked_for = settings.only is None or candidate.name in settings.only
    return candidate.tier != "builtin" and not settings.safe_mode and asked_for and candidate.name not in settings.disabled


def in_development(given: Sequence[Path], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the plugins under development: those given, and those of :data:`DEVELOPMENT`."""
    named = (Path(entry) for entry in environ.get(DEVELOPMENT, "").split(os.pathsep) if Path(entry).is_absolute())
    return tuple(dict.fromkeys((*given, *named)))


def wanted_plugins(config: Config, *, safe_mode: bool | None = None, only: frozenset[str] | None = None) -> PluginSettings:
    """Return which plugins the user wants loaded: by the flags, else by the configuration, which includes the environment."""
    named = config.get("onlyPlugins")
    return PluginSettings(
        disabled=frozenset(config.get("disabledPlugins") or ()),
        only=frozenset(named) if only is None and named is not None else only,
        safe_mode=bool(config.get("safeMode")) if safe_mode is None else safe_mode,
    )

"""The host of one process: open it, then use the configuration, plugins, store and sessions that it holds."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Agent, ConfigError, ModelInfo, ModelProvider, MoryflowError

from moryflow.agents import DEFAULT_AGENT
from moryflow.approvals.questions import ApprovalDesk
from moryflow.base.builtins import BUILTINS
from moryflow.base.events import Bus
from moryflow.base.paths import home_folder, is_workspace, readable_vault
from moryflow.compaction import Memory
from moryflow.config import Config
from moryflow.hooks.dispatcher import Dispatcher
from moryflow.hooks.plugin_set import PluginSet
from moryflow.kernel.outcome import RunOptions
from moryflow.kernel.turn_context import Throttle, TurnContext, TurnDependencies
from moryflow.plugins import dispose
from moryflow.plugins.consent import Consents, items
from moryflow.plugins.entry_points import editable_code, linked_settings
from moryflow.plugins.file_states import FilesSeen, files_seen
from moryflow.services import SERVICES, effect_of, plugin_view, tool_view
from moryflow.store import SessionLock, SessionRow, Store, open_store
from moryflow.telemetry import BackgroundExport

from .generation import DEVELOPMENT, WAIT, GenerationBuilder, in_development
from .selection import Models, agent_of, base_prompt, mode_of, named_agent, refuse_failed
from .session import Session
from .session_lease import blank_session, read_only_scope, states_of
from .turn_task import DirectResult, GenerationRefs

if TYPE_CHECKING:
    from moryflow.hooks.plugin_set import RegisteredTool
    from moryflow.kernel.turn_context import ParentTurn

    from .ports import SessionPort


class Host:
    """Owns what lives as long as the process. Use :func:`moryflow.open_host`, and close it."""

    def __init__(self, builder: GenerationBuilder, seen: FilesSeen, config: Config, plugin_set: PluginSet) -> None:
        self._builder = builder
        self.seen = seen
        """The files right before the current generation was loaded from them."""
        self.home = builder.home
        self.environ = builder.environ
        self.config = config
        self.plugin_set = plugin_set
        self.profile, self.strict = builder.profile_of(config), builder.is_strict(config)
        self.bus = Bus()
        self._telemetry = BackgroundExport(lambda: self.store, lambda: self.config.section("telemetry"), self.environ)
        self.bus.subscribe(self._telemetry)
        self.services = dict(SERVICES)
        """The services that plugins may use, by name. A front end replaces one with its own here, before the first turn."""
        self.approvals = ApprovalDesk(lambda: self.store)
        self.compaction = Memory()
        self._dispatcher = Dispatcher()
        self._sessions: list[Session] = []
        self._used = False
        self._refreshing = asyncio.Lock()
        self.leases = GenerationRefs()
        self.watch_registry, self.preflight, self.development = builder.watch_registry, builder.preflight, builder.development
        self.throttle: Throttle | None = None
        self.elsewhere = False
        """Whether workers run the turns, so that a session's workspace need not be on this machine."""
        self.before_turn: Callable[[], Awaitable[None]] | None = None
        self.code_files = items(self.home)

    @cached_property
    def store(self) -> Store:
        """The session store, opened when first needed."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        url = os.environ.get("MORYFLOW_STORE") or self.config.get("store.url") or ""
        lease, outputs = self.config.get("store.lease", 30.0), self.config.get("store.outputs") or ""
        return open_store(self.home, url=url, lease=lease, outputs=outputs)

    @cached_property
    def surroundings(self) -> TurnDependencies:
        """The dependencies that the kernel gets for a turn."""
        return TurnDependencies(
            home=self.home,
            store=self.store,
            bus=self.bus,
            dispatcher=self._dispatcher,
            desk=self.approvals,
            config=self.config,
            services=self.services,
            base_prompt=base_prompt,
            models=self.models,
            view=plugin_view,
            tool_view=tool_view,
            effect_of=effect_of,
            compaction=self.compaction.of_turn,
            profile=self.profile,
            strict=self.strict,
            keeps_inputs=bool(self.config.get("keepInputs")) or DEVELOPMENT in self.environ,
            throttle=self.throttle,
            watched=(*editable_code(self.home, self.development), *linked_settings(self.home, self.config.path)),
        )

    @property
    def tools(self) -> Mapping[str, RegisteredTool]:
        """Every tool by name: ``tool`` is the :class:`~moryflow_sdk.Tool`, ``plugin`` the name of the plugin that brings it."""
        return self.plugin_set.tools

    @property
    def agents(self) -> dict[str, Agent]:
        """Every agent by id; the default one first."""
        return {DEFAULT_AGENT.id: DEFAULT_AGENT, **self.plugin_set.agents}

    def models(self, plugin_set: PluginSet) -> Models:
        """Return the models of a generation."""
        return Models(plugin_set.providers, self.environ)

    def agent(self, name: str | None, vault: Path | str | None = None) -> Agent:
        """Return an agent by id, the one that is configured for the folder `vault` or for all, or the default.

        :raises ConfigError: `name` was given and is not known, or is hidden.
        """
        return named_agent(self.agents, name, self.config.chosen("agent", vault), self.home)

    def choose_model(self, session: SessionPort) -> tuple[ModelProvider, ModelInfo]:
        """Return provider and model, from the first of: flag, session, agent, configuration (with environment), the keys found.

        :raises ConfigError: no model was found, or no provider knows the one that is named.
        """
        models = self.models(self.plugin_set)
        configured = self.config.chosen("model", session.row.vault)
        return models.choose(session.model, session.row.model or None, session.agent.model, configured)

    def check_strict(self, scope: TurnContext) -> None:
        """Refuse a turn under ``--strict`` while a plugin has failed to load.

        :raises PluginError: a plugin has failed to load.
        """
        if self.strict:
            refuse_failed(scope.plugin_set)

    # ---------------------------------------------------------------- sessions

    async def new_session(
        self,
        vault: Path | str | None = None,
        *,
        agent: str | None = None,
        mode: str | None = None,
        model: str | None = None,
        parent: str | None = None,
        purpose: str = "main",
        id: str | None = None,
    ) -> Session:
        """Create a session.

        :param id: its id, which must be new; by default a random one.
        :raises ConfigError: the vault is not a readable folder, or the agent, the model or the mode is unknown.
        """
        self.approvals.attach(asyncio.get_running_loop())
        named = is_workspace(vault)
        folder = Path(str(vault)) if named and self.elsewhere else readable_vault(vault and self.config.place(vault))
        chosen = self.agent(agent, folder)
        wanted = mode_of(mode or self.config.get("agents.runtime.mode.default") or "agent")
        if purpose != "direct":
            self.models(self.plugin_set).choose(model, chosen.model, self.config.chosen("model", folder))
        row = await self.store.create(
            vault=str(vault) if named else str(folder),
            agent=chosen.id,
            mode=wanted,
            model=model or "",
            parent=parent,
            purpose=purpose,
            id=id,
        )
        return self.session(row, chosen, model)

    async def resume(
        self,
        vault: Path | str | None = None,
        session_id: str | None = None,
        *,
        agent: str | None = None,
        model: str | None = None,
    ) -> Session:
        """Open a session by id or unique prefix, or the last one of `vault`.

        :raises ConfigError: there is no such session.
        """
        self.approvals.attach(asyncio.get_running_loop())
        if session_id is not None:
            row = await self.store.session(session_id)
        else:
            folder = readable_vault(vault)
            row = await self.store.latest(str(folder))
            if row is None:
                raise ConfigError(f"no session of {folder} to continue", next_step="moryflow session list")
        working = next((one for one in self._sessions if one.id == row.id and one.children.running), None)
        if working is not None:  # its children report to this very object
            return working
        chosen = self.agent(agent) if agent and row.parent is None else agent_of(row, self.agents, self.agent(None))
        return self.session(row, chosen, model)

    def session(
        self,
        row: SessionRow,
        agent: Agent,
        model: str | None,
        started: ParentTurn | None = None,
        hold: SessionLock | None = None,
    ) -> Session:
        """Return the session of `row`. For a child, `started` is the turn that starts it and `hold` the lock it already has."""
        session = Session(self, row, agent, model, started, hold)
        self._sessions.append(session)
        self._used = True
        return session

    def forget(self, session: SessionPort) -> None:
        """Drop a session that will not be prompted again."""
        self._sessions = [one for one in self._sessions if one is not session]

    async def call_tool(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        vault: Path | str | None = None,
        mode: str | None = None,
        agent: str | None = None,
        options: RunOptions | None = None,
    ) -> DirectResult:
        """Run one tool without a model, through the whole chain, in a hidden session of purpose ``direct``.

        Settings and plugins that were saved before this call apply, as they do for a turn.
        """
        await self.refresh_if_changed()
        session = await self.new_session(vault, agent=agent, mode=mode, purpose="direct")
        try:
            return await session.call(name, json.dumps(dict(args)), options or RunOptions())
        finally:
            if not session.children.running:  # nobody can prompt it again
                self.forget(session)

    @asynccontextmanager
    async def read_only(
        self, vault: Path | str | None, *, session: str | None = None, mode: str | None = None
    ) -> AsyncIterator[TurnContext]:
        """Open a turn that writes nothing, for commands that judge or explain without running anything."""
        row = await self.store.session(session) if session else blank_session(vault, mode)
        self.approvals.attach(asyncio.get_running_loop())
        scope = read_only_scope(self, row, mode)
        if session:
            scope.live.state = await states_of(self.store, row.id, "session")
        yield scope

    async def refresh(self, *, wait: float | None = None) -> bool:
        """Load configuration, plugins and agents anew, for turns that begin from now on; return whether the plugins differ.

        A running turn keeps the plugins it began with.

        :param wait: seconds to wait for the probe of new code; by default as many as at the start.
        """
        async with self._refreshing:
            old, self.seen = self.plugin_set, files_seen(self.home)
            self.config, self.plugin_set = await self._builder.load(old, last=self.config, wait=wait)
            self.__dict__.pop("surroundings", None)
            for session in self._sessions:
                known = old.agents.get(session.agent.id)
                # The agent of a child is narrowed, and stays as it is. That of a file which is back again counts.
                if session.agent == known or (known is None and session.row.parent is None):
                    session.agent = self.agents.get(session.agent.id, session.agent)
            await self.leases.retire(old, lambda: self._dispose_generation(old))
            return self.plugin_set.id != old.id

    async def _dispose_generation(self, old: PluginSet) -> None:
        for provider in old.providers:
            if provider not in self.plugin_set.providers:
                await provider.aclose()
        await dispose(old)

    async def refresh_if_changed(self) -> None:
        """Apply what changed since the last turn: saved files, plugins the probe admitted."""
        if self.before_turn is not None:
            await self.before_turn()
        if self.preflight.news:
            self.preflight.news = False
            await self.refresh(wait=0.0)  # whoever found the code has waited for its probe already

    def quarantined(self, plugin: str) -> list[str]:
        """Return the hooks of `plugin` that are in quarantine in a session that this host holds."""
        held = (session.quarantine for session in self._sessions)
        return sorted({hook for each in held if each for owner, hook in each.names() if owner == plugin})

    def hold_unreviewed_code(self) -> None:
        """Hold back code files that appeared since this host began until the user consents: a tool may have written them."""
        if self.before_turn is None and (new := items(self.home) - self.code_files):
            Consents(self.home).hold(*new)

    # ---------------------------------------------------------------- end

    async def aclose(self) -> None:
        """Stop turns, free providers, dispose of plugins, close the store."""
        for session in tuple(self._sessions):
            await session.children.aclose()
        if self._used:
            self.hold_unreviewed_code()
        await self.compaction.aclose()
        for session in self._sessions:
            session.cancel()
            with suppress(MoryflowError):  # another process has the session, or the disk is full: a title or the like is lost
                await session.settle()
            session.release()
        await self._dispatcher.settle()
        await self.leases.aclose()
        for provider in self.plugin_set.providers:
            await provider.aclose()
        await dispose(self.plugin_set)
        await self._telemetry.aclose()
        if "store" in self.__dict__:
            self.store.close()

    async def __aenter__(self) -> Host:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class HostOpening(Coroutine[Any, Any, "Host"]):
    """A host that is being opened: ``async with open_host() as host``, or ``host = await open_host()``."""

    def __init__(self, work: Coroutine[Any, Any, Host]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Host]:
        return self._work.__await__()

    def send(self, value: Any, /) -> Any:
        return self._work.send(value)

    def throw(self, *raised: Any) -> Any:
        return self._work.throw(*raised)

    def close(self) -> None:
        self._work.close()

    async def __aenter__(self) -> Host:
        self._host = await self._work
        return self._host

    async def __aexit__(self, *_: object) -> None:
        await self._host.aclose()


def open_host(
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
) -> HostOpening:
    """Load configuration and plugins: ``async with open_host() as host``, or ``host = await open_host()``.

    :param home: Moryflow's own folder; ``MORYFLOW_HOME``, else ``~/.moryflow``.
    :param config: an inline layer: JSON text or a path.
    :param plugins: names of third-party plugins to load; empty means built-ins only; ``None`` means all.
    :param probe: try new third-party code in a separate process first.
    :param wait: seconds to wait for that probe; a plugin that takes longer joins at a later turn.
    :param development: plugins under development, wherever they are: files, packages, projects.
    :param profile: ``local`` or ``remote``, instead of the configuration's.
    :raises ConfigError: the inline configuration or `profile` is wrong. Nothing in the user's files raises.
    """
    if profile not in (None, "local", "remote"):
        raise ConfigError(f"unknown profile {profile!r}", next_step="use local or remote")
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
    return HostOpening(_opened(builder))


async def _opened(builder: GenerationBuilder) -> Host:
    return Host(builder, files_seen(builder.home), *await builder.load())

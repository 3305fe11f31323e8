"""Choose the agent, the mode, the model and the base of the system prompt; record the user's changes in the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moryflow_sdk import Agent, ConfigError, ModelInfo, ModelProvider, PluginError, thaw
from moryflow_sdk.support.own_files import own_files
from moryflow_sdk.support.rule_entries import ANY_DOMAIN, not_understood
from moryflow_sdk.support.texts import did_you_mean, nearest

from moryflow.agents import CHAT_ONLY_PROMPT, DEFAULT_AGENT, DEFAULT_PROMPT, SMALL_PROMPT
from moryflow.base.builtins import RESERVED
from moryflow.hooks.plugin_set import PluginSet
from moryflow.kernel.turn_context import TurnContext
from moryflow.store import SessionRow

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import Journal

    from .ports import SessionHost, SessionPort


class NewSession(NamedTuple):
    """The choice for new sessions that name nothing else."""

    agent: str | None
    model: str | None
    mode: str | None


class Models:
    """The model providers of one generation.

    They are asked in order until one knows the model, beginning with those whose prefix the model's name has.
    """

    def __init__(self, providers: Sequence[ModelProvider], environ: Mapping[str, str]) -> None:
        self._providers = tuple(providers)
        self._environ = environ

    def choose(self, *wishes: str | None) -> tuple[ModelProvider, ModelInfo]:
        """Return provider and model for the first of `wishes` that is set, else by the keys found.

        :raises ConfigError: no provider knows the model, or there is no model at all.
        """
        wish = next((wish for wish in wishes if wish), None)
        name = wish or self.default()
        if name is None:
            raise ConfigError(
                "no model: no key was found and the local model is not installed",
                next_step="one of: `moryflow model install` (a small local model, no key); "
                "`export OPENAI_API_KEY=…` (or ANTHROPIC_API_KEY, GEMINI_API_KEY, OPENROUTER_API_KEY or another provider's; "
                "for Ollama OPENAI_BASE_URL=http://127.0.0.1:11434/v1); `moryflow run -m MODEL …` (see `moryflow model list`)",
            )
        prefix = name.partition("/")[0]
        for provider in sorted(self._providers, key=lambda provider: prefix not in _prefixes(provider)):
            info = provider.find(name)
            if info is not None:
                return provider, info
        raise ConfigError(f"unknown model {name!r}{self._suggestion(name)}", next_step="moryflow model list")

    def default(self) -> str | None:
        """Return the model that is used when none is named: that of the first key found, else an installed one."""
        found = (provider.default(self._environ) for provider in self._providers)
        return next((name for name in found if name), None)

    def _suggestion(self, name: str) -> str:
        prefix, slash, rest = name.partition("/")
        names = [] if slash else [one for provider in self._providers for one in _known(provider)]
        known = {one.rpartition("/")[2]: one for one in reversed(names)}
        if near := nearest(name, known, _NEAR):
            return f"; did you mean {known[near]!r}?"
        near = nearest(prefix, [known for provider in self._providers for known in _prefixes(provider)])
        return f"; did you mean {near + (slash + rest if rest else '')!r}?" if near and near != prefix else ""


_NEAR = 0.8


def _known(provider: ModelProvider) -> Iterable[str]:
    return getattr(provider, "known", tuple[str, ...])()


def _prefixes(provider: ModelProvider) -> tuple[str, ...]:
    return (provider.name, *getattr(provider, "prefixes", ()))


def named_agent(agents: Mapping[str, Agent], name: str | None, configured: str | None, home: Path) -> Agent:
    """Return the agent called `name`; without a name the configured one, or the default.

    :param home: Moryflow's own folder, to say why an agent in its files is missing.

    :raises ConfigError: `name` was given and is not known, or cannot be chosen.
    """
    if name is None:
        wanted = configured or DEFAULT_AGENT.id
        found = agent_or_stand_in(agents, wanted, DEFAULT_AGENT)
        return DEFAULT_AGENT if found.hidden or wanted in RESERVED["agents"] else found
    if name in RESERVED["agents"] or known_agent(agents, name, home).hidden:
        raise ConfigError(
            f"the agent {name!r} is hidden: it works for Moryflow or for a plugin, and cannot be chosen",
            next_step="moryflow agent list",
        )
    return agents[name]


def known_agent(agents: Mapping[str, Agent], name: str, home: Path) -> Agent:
    """Return the agent called `name`, whether it can be chosen or not.

    :raises ConfigError: there is no such agent.
    """
    if name in agents:
        return agents[name]
    if missing := _why_missing(name, home):
        raise missing
    hint = did_you_mean(name, [agent for agent in agents if not agents[agent].hidden])
    raise ConfigError(f"unknown agent {name!r}{hint}", next_step="moryflow agent list")


def _why_missing(name: str, home: Path) -> ConfigError | None:
    """Return an error that says why the file of the agent called `name` gives no agent; ``None`` if there is no such file."""
    from moryflow_sdk.support.agent_files import file_id, read_agent

    for path in own_files(home / "agents", ".md")[0]:
        if file_id(path) != name:
            continue
        agent, problems = read_agent(path)
        if agent is not None and agent.id != name:
            return ConfigError(f"unknown agent {name!r}", where=str(path), next_step=f"--agent {agent.id}, which is its id")
        if agent is None and not problems:
            step = "remove `disable` from it"
            return ConfigError(f"the agent {name!r} is disabled in its file", where=str(path), next_step=step)
        if agent is None:
            place = f"{path}:{problems[0].line}" if problems[0].line else str(path)
            text = f"the agent {name!r} is broken: {problems[0].message}"
            return ConfigError(text, where=place, next_step="moryflow agent check")
    return None


def agent_or_stand_in(agents: Mapping[str, Agent], name: str, default: Agent) -> Agent:
    """Return the agent called `name`; if it is missing, `default` in its place, which asks before every call.

    The file of the agent may be removed or broken, and the rules in it are lost with it.
    """
    if name in agents or name == default.id:
        return agents.get(name, default)
    problem = f"its file is missing or cannot be read; moryflow agent check, or --agent {DEFAULT_AGENT.id}"
    lost = not_understood(ANY_DOMAIN, problem, source="agent", file=f"agent {name}")
    return default.replace(id=name, name=name, rules=(lost, *default.rules))


def agent_of(row: SessionRow, agents: Mapping[str, Agent], default: Agent) -> Agent:
    """Return the agent of a session; for a child, the narrowed agent that was stored when it was started.

    :raises ConfigError: the stored agent of the child is invalid.
    """
    spawned = (row.origin or {}).get("spawn")
    if spawned is None:
        return agent_or_stand_in(agents, row.agent, default)
    try:
        return Agent.model_validate(thaw(spawned["agent"]))
    except ValueError as error:
        message = "the stored permissions of this sub-agent cannot be read, so it cannot continue"
        raise ConfigError(message, where=f"session {row.id}", next_step=f"moryflow session fork {row.id}") from error


def base_prompt(scope: TurnContext) -> str:
    """Return the base of the system prompt: the agent's own, else the configured one, else the built-in one."""
    custom = scope.around.config.section("agents.runtime.prompt")
    chosen = custom.get("text") if custom.get("mode") == "custom" else None
    model = scope.model
    built_in = DEFAULT_PROMPT
    if model is not None and (model.only_tools or not model.tools):
        built_in = SMALL_PROMPT if model.tools else CHAT_ONLY_PROMPT
    return scope.agent.prompt or chosen or built_in


def refuse_failed(plugin_set: PluginSet) -> None:
    """Refuse a turn if a plugin of its generation has failed to load or is still being probed.

    :raises PluginError: it names the plugin, with file and line.
    """
    for record in plugin_set.records:
        if record.status == "failed" or (record.status == "pending" and record.stage == "probe"):
            step = f"moryflow plugin {'info' if record.status == 'failed' else 'check'} {record.name}"
            words = "failed" if record.status == "failed" else "is not there yet"
            raise PluginError(f"plugin {record.name!r} {words}: {record.error}", where=record.place, next_step=step)


MODES = ("agent", "full_access")


def mode_of(name: str) -> str:
    """Return the mode that `name` means; ``ask`` is another word for ``agent``.

    :raises ConfigError: `name` is not a mode.
    """
    mode = "agent" if name == "ask" else name
    if mode not in MODES:
        raise ConfigError(f"unknown mode {name!r}", next_step="use agent or full_access")
    return mode


async def change_mode(host: SessionHost, session: SessionPort, mode: str, by: str) -> None:
    """Change the mode of a session, see :meth:`.Session.set_mode`; answer the open questions that it makes needless."""
    chosen = mode_of(mode)
    if chosen == session.mode:
        return
    record = _change_record("mode", session.mode, chosen, by=by)
    await session.note(record, now=lambda live: setattr(live.permissions, "mode", chosen))
    host.approvals.reconsider(session.id)


def _change_record(field: str, before: str, after: str, *, kept: str | None = None, **more: str) -> Callable[[Journal], None]:
    """Return a record that the user has changed a field of a session.

    :param kept: the value that the session stores, if not `after`; an empty model means the default one.
    """

    def record(journal: Journal) -> None:
        journal.node("marker", {field: after})
        journal.session(**{field: after if kept is None else kept})
        journal.event(f"session.{field}", **{"from": before, "to": after, **more})

    return record


def check_choice(host: SessionHost, session: SessionPort, agent: str | None, model: str | None) -> None:
    """See :meth:`.Session.check_choice`."""
    if agent is not None:
        _agent_for(host, session, agent)
    if model is not None:
        host.models(host.plugin_set).choose(model)


def _agent_for(host: SessionHost, session: SessionPort, name: str) -> Agent:
    chosen, before = host.agent(name), session.row.agent
    if chosen.id != before and session.row.parent is not None:
        raise ConfigError(
            f"the session of a sub-agent stays with its agent, {before}", next_step=f"moryflow session fork {session.id}"
        )
    return chosen


async def change_agent(host: SessionHost, session: SessionPort, name: str) -> None:
    """See :meth:`.Session.set_agent`."""
    chosen, before = _agent_for(host, session, name), session.row.agent
    if chosen.id != before:
        session.agent = chosen
        await session.note(_change_record("agent", before, chosen.id))


async def change_model(host: SessionHost, session: SessionPort, name: str) -> None:
    """See :meth:`.Session.set_model`."""
    models = host.models(host.plugin_set)
    chosen = models.choose(name)[1].id
    try:
        before = models.choose(session.row.model or None, session.agent.model, host.config.chosen("model", session.row.vault))[
            1
        ].id
    except ConfigError:  # the earlier model is no longer available, or there never was one
        before = session.row.model
    if chosen != before:
        await session.note(_change_record("model", before, chosen, kept=name))
    session.model = name

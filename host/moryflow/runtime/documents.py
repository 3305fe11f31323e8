"""Sessions, agents, tools and other objects as JSON: one shape for ``--json`` and for HTTP."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import ConfigError, ModelInfo, MoryflowError, thaw

from moryflow.base.events import now

if TYPE_CHECKING:
    from moryflow_sdk import Agent

    from moryflow.compaction.measure import Report
    from moryflow.hooks.plugin_set import RegisteredTool
    from moryflow.packages.inventory import Row
    from moryflow.store import ApprovalRow, Node, SessionRow, Store

    from .host import Host
    from .session import Session
    from .session_commands import Label

# The most characters of a title made from a prompt, and of a description in a list.
BRIEF, LINE = 60, 90


def first_line(text: str, width: int) -> str:
    """Return the first line of `text`, cut to `width`."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 1] + "…"


# -------------------------------------------------------------------- sessions


def session_json(row: SessionRow) -> dict[str, Any]:
    return {**row._asdict(), "origin": thaw(row.origin), "grants": [thaw(grant) for grant in row.grants]}


def init_json(host: Host, session: Session) -> dict[str, Any]:
    """Return the first event of a run: its session, vault, agent, model, mode and plugins."""
    _, model = host.choose_model(session)
    plugins = []
    for record in host.plugin_set.records:
        shown = {"name": record.name, "version": record.version, "tier": record.tier, "status": record.status}
        plugins.append(shown | ({"error": record.error} if record.error else {}))
    return {
        "v": 1,
        "type": "init",
        "ts": now(),
        "session": session.id,
        "vault": session.row.vault,
        "agent": session.agent.id,
        "model": model.id,
        "mode": session.mode,
        "plugin_set": host.plugin_set.id,
        "plugins": plugins,
    }


async def with_title(store: Store, row: SessionRow) -> SessionRow:
    """Return `row` with a title: its own, or the first prompt if the first turn was killed before it gave a title."""
    if row.title:
        return row
    try:
        return row._replace(title=first_line(await store.first_prompt(row.id), BRIEF))
    except MoryflowError as error:
        if error.code != "corrupt":  # one damaged session must not cost the list of all
            raise
        return row._replace(title=f"({error.message})")


def node_json(node: Node) -> dict[str, Any]:
    return {**node._asdict(), "payload": thaw(node.payload)}


def last_nodes(path: Sequence[Node], limit: int) -> Sequence[Node]:
    """Return the last `limit` nodes; if these begin with results, include the answer that made the calls."""
    start = max(0, len(path) - max(1, limit))
    while start and path[start].kind == "tool":
        start -= 1
    return path[start:]


def approval_json(row: ApprovalRow) -> dict[str, Any]:
    return {**row._asdict(), "request": thaw(row.request)}


async def node_id_of(store: Store, session: str, name: str) -> str:
    """Return the id of the node that `name` means: a label, an id, or the beginning of an id.

    :raises ConfigError: no node matches, or several do.
    """
    try:
        named, nodes = await store.labels(session), await store.nodes(session)
    except MoryflowError as error:
        if error.code != "corrupt":
            raise
        return name  # a node of the session is damaged: the whole id of one before it still leads there
    if (label := unicodedata.normalize("NFC", name)) in named:
        return named[label]
    found = [node.id for node in nodes if node.id == name] or [node.id for node in nodes if name and node.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} nodes begin with {name!r}" if found else f"there is no node {name!r}"
    raise ConfigError(problem, where=f"session {session}", next_step=f"moryflow session tree {session}")


@dataclass
class Kin:
    """A session that another session started, with the sessions below it.

    :ivar copy_of: the session that this one was copied from; the parent's text still uses that session's id.
    :ivar node: the answer whose call started it.
    """

    session: str
    agent: str
    title: str
    end_reason: str
    steps: int
    children: list[Kin] = field(default_factory=list["Kin"])
    copy_of: str = ""
    node: str = ""

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Kin:
        """Return the session from the output of :func:`dataclasses.asdict`, usually of another process."""
        return cls(**{**found, "children": [cls.of_json(child) for child in found["children"]]})


async def kin_of(store: Store, row: SessionRow) -> list[Kin]:
    """Return the sessions that `row` started, oldest first."""
    found: list[Kin] = []
    for child in reversed(await store.sessions(1000, purpose=None, parent=row.id)):
        runs = [run for run in await store.runs(child.id) if not run.is_compaction]
        cut_off = "at work" if store.seems_held(child.id) else "interrupted"
        ended = (runs[-1].end_reason or cut_off) if runs else "not begun"
        steps = sum(run.steps for run in runs)
        origin = child.origin or {}
        copy_of, node = origin.get("session", ""), (origin.get("spawn") or {}).get("node", "")
        below = await kin_of(store, child)
        found.append(Kin(child.id, child.agent, child.title, ended, steps, below, copy_of, node=node))
    return found


class SessionTree(NamedTuple):
    """All branches of a session: its nodes, the sessions it started, and its labels (label → node id)."""

    row: SessionRow
    nodes: Sequence[Node]
    kin: Sequence[Kin]
    labels: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        row = self.row
        head = {"session": row.id, "parent": row.parent, "active": row.active}
        nodes, children = [node_json(node) for node in self.nodes], [asdict(child) for child in self.kin]
        return {**head, "nodes": nodes, "labels": self.labels, "children": children}

    @classmethod
    def of_json(cls, row: SessionRow, found: Mapping[str, Any]) -> SessionTree:
        """Return the tree from the output of :meth:`as_json`, usually of another process."""
        from moryflow.store import Node

        nodes = [Node(**node) for node in found["nodes"]]
        return cls(
            row._replace(active=found["active"]), nodes, [Kin.of_json(one) for one in found["children"]], found["labels"]
        )


async def tree_of(store: Store, row: SessionRow) -> SessionTree:
    return SessionTree(row, await store.nodes(row.id), await kin_of(store, row), await store.labels(row.id))


async def fork_session(store: Store, row: SessionRow, node: str | None, title: str = "") -> tuple[SessionRow, str]:
    """Copy the path to `node` into a new session; return it and a sentence on the sub-agents that stay behind, or ``""``."""
    copy = await store.fork(row.id, await node_id_of(store, row.id, node) if node is not None else None, title=title)
    below = len(await store.sessions(1000, purpose=None, parent=row.id))
    said = "sub-agents stay" if below != 1 else "sub-agent stays"
    return copy, f"{below} {said} with {row.id}; what they answered is in the copy" if below else ""


async def requested_label(store: Store, row: SessionRow, text: str, node: str | None, *, remove: bool) -> Label:
    """Return the label that a request would set or remove; nothing is written."""
    from .session_commands import new_label, removal

    named = await store.labels(row.id)
    if remove:
        return removal(text, named)
    target = await node_id_of(store, row.id, node) if node is not None else None
    return new_label(text, target, await store.nodes(row.id), named, row.active)


async def context_report(host: Host, session: Session, model: str | None) -> Report:
    """Return what the next request of a session would contain.

    :raises ConfigError: `model` was given and no provider knows it.
    """
    from moryflow.compaction.measure import report

    async with host.read_only(session.row.vault, session=session.id) as scope:
        try:
            scope.model = host.choose_model(session)[1]
        except ConfigError:
            if model:
                raise
        scope.purpose = "main"
        return await report(scope, await host.store.path(session.id), host.compaction.settings(host.config))


async def whole_output(host: Host, session: Session, output: str) -> str:
    """Return the full text of a stored output of a session.

    :raises MoryflowError: there is no such output, or it has expired.
    """
    async with host.read_only(session.row.vault, session=session.id) as scope:
        data: bytes = await scope.around.services["artifacts"](scope, "moryflow").read(output, offset=0, limit=1 << 40)
    return data.decode("utf-8", "replace")


# -------------------------------------------------------------------- the host


def agent_json(agent: Agent, default: bool) -> dict[str, Any]:
    about = {"id": agent.id, "name": agent.name or agent.id, "description": agent.description, "mode": agent.mode}
    return {**about, "model": agent.model, "source": agent.source, "default": default}


def agents_json(host: Host, *, everyone: bool = False) -> list[dict[str, Any]]:
    """Return the agents that can be chosen, or all."""
    chosen = host.agent(None).id
    return [agent_json(agent, agent.id == chosen) for agent in host.agents.values() if everyone or not agent.hidden]


def tool_json(owned: RegisteredTool) -> dict[str, Any]:
    tool = owned.tool
    about = {"name": tool.name, "domain": tool.domain, "plugin": owned.plugin, "tier": owned.tier}
    return {**about, "description": first_line(tool.description, LINE)}


def model_in_use(host: Host) -> str:
    """Return the id of the model that is used if none is named, or ``""`` if there is no model."""
    try:
        return host.models(host.plugin_set).choose(host.config.get("model"))[1].id
    except ConfigError:
        return ""


async def known_models(host: Host) -> list[ModelInfo]:
    """Return the models that the providers list."""
    return [info for item in host.plugin_set.providers for info in await item.available()]


async def models_json(host: Host) -> list[dict[str, Any]]:
    chosen = model_in_use(host)
    return [{**model.model_dump(mode="json"), "in_use": model.id == chosen} for model in await known_models(host)]


def plugin_json(row: Row, quarantined: Sequence[str] = ()) -> dict[str, Any]:
    """Return a plugin's row; only a process that runs sessions knows which hooks of it are in quarantine."""
    loaded = {"loaded_at": row.known.at if row.known else None}
    card = row.card
    capabilities = dict(card.capabilities) if card else None
    known = {"manifest": card is not None, "capabilities": capabilities, "quarantined": [*quarantined]}
    return {**row.record._asdict(), **loaded, **known}


def plugins_json(host: Host) -> list[dict[str, Any]]:
    """Return every plugin that was found, with the hooks that are in quarantine in a session of this process."""
    from moryflow.packages.inventory import rows

    from .generation import wanted_plugins

    found = rows(host.home, host.config, wanted_plugins(host.config), host.development)
    return [plugin_json(row, host.quarantined(row.name)) for row in found]


def config_json(host: Host, *, everything: bool = False) -> dict[str, Any]:
    """Return the settings in force without secrets; `everything` adds the defaults."""
    from moryflow.config.schema import host_models
    from moryflow.config.values import effective, without_secrets
    from moryflow.plugins.manifest import settings_of_plugins

    of_plugins = settings_of_plugins(host.plugin_set)
    known = (*host_models(), *of_plugins)
    return without_secrets(effective(host.config.checked(of_plugins), known if everything else ()), known)

"""The services that the host offers to plugins, as small protocols.

A plugin declares the services that it uses (``services = [...]`` in ``plugin.toml`` or in its module) and finds them on its
:class:`~moryflow_sdk.context.Turn` under the same names; it gets no others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal, Protocol

from ._frozen import Frozen, FrozenMapping
from .agents import Agent
from .calls import Domain, Target
from .events import Event
from .models import ChatParams, Message, Usage
from .verdicts import Rule


@dataclass(frozen=True)
class Entry:
    """A folder entry: its name, ``file``, ``dir``, ``link`` or ``other``, and its size in bytes.

    :param modified: seconds since 1970.
    """

    name: str
    kind: Literal["file", "dir", "link", "other"]
    size: int = 0
    modified: float = 0.0


class Artifact(Frozen):
    """A stored output. `state` is ``expired`` once its file is gone; the record stays.

    :param path: the absolute path of its file; `size` in bytes, `sha256` of its content.
    :param expires: ``None`` if the output never expires.
    :param lines: the number of lines; only :meth:`Artifacts.store` returns it.
    """

    id: str
    session: str
    call_id: str
    tool: str
    path: str
    size: int
    sha256: str
    created: str
    expires: str | None = None
    state: Literal["stored", "expired"] = "stored"
    lines: int | None = None


class NodeView(Frozen):
    """A node of the session tree, as plugins see it. Nodes are ordered by `seq` alone.

    :param payload: by kind: ``user`` (`text`, `files`, `images`), ``assistant`` (`text`, `calls`, `usage`, `model`, `finish`),
        ``tool`` (`call_id`, `tool`, `status`, `output`), ``note`` (`text`, `title`), ``compaction`` (`summary`), ``marker``
        (what was chosen).
    :param parent: id of the previous node, ``None`` for the first.
    """

    id: str
    session: str
    seq: int
    parent: str | None
    kind: Literal["user", "assistant", "tool", "compaction", "prune", "note", "marker"]
    payload: FrozenMapping
    created: str


class SessionView(Frozen):
    """A session, as plugins see it.

    :param parent: id of the session that started this one as its child.
    :param purpose: ``main``, ``child`` or ``direct``.
    """

    id: str
    title: str
    vault: str
    agent: str
    mode: str
    parent: str | None
    created: str
    updated: str
    purpose: str = "main"


class StoredCall(Frozen):
    """A past tool call and the decision about it.

    :param state: ``pending``, ``waiting``, ``running``, ``completed``, ``error`` or ``interrupted``.
    :param decision: ``allow``, ``deny`` or ``stop``; ``None`` while nobody has decided; `cause` as in :class:`Ruling`.
    """

    id: str
    session: str
    tool: str
    args: FrozenMapping
    state: str
    decision: str | None
    cause: str | None
    created: str


class Spawned(Frozen):
    """Which plugin started a turn in a child session, and with what metadata.

    The kernel makes it for the one turn that :class:`Spawn` runs. It is never stored or read back, so neither a name nor a
    resumed, forked or imported session can forge it.

    :param turn: id of the turn in the parent session that started this one; `node` is the id of its model message.
    """

    plugin: str
    metadata: FrozenMapping = {}
    turn: str = ""
    node: str = ""


class SpawnResult(Frozen):
    """The result of a child session.

    :param end_reason: as of any turn; ``running`` if the child was started in the background.
    :param text: its last answer.
    :param denied: calls that were refused, as in the ``result`` of a turn.
    :param error: why it failed, if the end reason alone does not tell.
    """

    session: str
    text: str
    end_reason: str
    usage: Usage = Usage()
    cost: float | None = None
    steps: int = 0
    denied: tuple[FrozenMapping, ...] = ()
    error: str = ""


__all__ = [
    "SERVICES",
    "Artifact",
    "Artifacts",
    "CodeLoader",
    "Complete",
    "Emit",
    "Entry",
    "Files",
    "History",
    "NodeView",
    "Observer",
    "Rules",
    "SessionInfo",
    "SessionView",
    "Spawn",
    "SpawnResult",
    "Spawned",
    "StoredCall",
    "Watch",
]

SERVICES: tuple[str, ...] = (
    "artifacts", "code_loader", "complete", "emit", "files", "history", "info", "rules", "spawn", "watch",
)  # fmt: skip
"""The names of services that a plugin may declare."""


class Files(Protocol):
    """Access to files: opens exactly the file or folder that the gates judged.

    No link is followed, and the object found is compared with the target's identity. Errors are
    :class:`~moryflow_sdk.errors.ToolError` with codes ``not_found``, ``is_directory``,
    ``not_a_directory``, ``not_a_file`` (device, socket, pipe), ``changed`` (no longer the object that was judged),
    ``permission``, ``too_large``, ``exists``, ``no_space``, ``io``.

    Under ``moryflow acp``, reading a text file returns the editor's unsaved text, if it offers it. That may wait, so an
    ``async`` tool reads on a thread.
    """

    def unsaved(self, target: Target) -> bool:
        """Whether the last read of `target` returned an editor's unsaved text."""
        ...

    def resolve(self, path: str, *, domain: Domain = "read", base: str | None = None, as_stored: bool = False) -> Target:
        """Resolve `path` (relative to `base` or the vault) into a target; never raises, see ``Target.error``.

        With ``as_stored``, a name that does not exist stands for the one entry that differs only in how its accents are
        composed (NFC, NFD).
        """
        ...

    def open(self, target: Target) -> AbstractContextManager[BinaryIO]:
        """Open a regular file for reading."""
        ...

    def read(self, target: Target, *, limit: int = 64 * 1024 * 1024) -> bytes:
        """Return a whole regular file; raise ``ToolError`` as above, and ``too_large`` over `limit` bytes."""
        ...

    def write(self, target: Target, data: bytes, *, create_parents: bool = True, mode: int | None = None) -> Target:
        """Replace or create a regular file atomically: a random 0600 file beside it, synced, then renamed.

        The mode bits of an existing file are kept; a new one gets `mode`, by default what the process's umask leaves. Returns
        `target` with the identity of the new object.
        """
        ...

    def remove(self, target: Target, *, recursive: bool = False) -> None:
        """Remove a file, a link (not its target), or an empty folder; with `recursive`, any folder with all that is in it."""
        ...

    def move(self, source: Target, destination: Target) -> None:
        """Rename `source`; refuses to replace an existing `destination` (``exists``)."""
        ...

    def entries(self, target: Target, *, ignore: bool = False) -> list[Entry]:
        """List a folder, sorted by name; with `ignore`, without what ``.gitignore`` and ``.ignore`` exclude."""
        ...

    def walk(self, target: Target, *, ignore: bool = True) -> Iterator[tuple[str, Entry]]:
        """Yield ``(path relative to target, entry)`` of all files below a folder, following no links.

        With `ignore`, files that ``.gitignore`` and ``.ignore`` exclude are left out, also ``.git`` and ``.agent-output``.
        """
        ...

    def folder(self, target: Target) -> AbstractContextManager[int]:
        """Keep a judged folder open and return its descriptor."""
        ...


class Artifacts(Protocol):
    """Outputs that are too large for the context."""

    async def store(self, content: str | bytes | Path, *, call_id: str, tool: str, ttl_days: float | None = 7) -> Artifact:
        """Store an output; a :class:`Path` is a spooled file that is moved, not copied.

        :raises OSError: neither the vault nor Moryflow's folder can be written.
        """
        ...

    async def get(self, artifact: str) -> Artifact | None:
        """Return the record of an artifact."""
        ...

    async def list(self, *, session: str | None = None, limit: int = 100) -> Sequence[Artifact]:
        """Return records, newest first."""
        ...

    async def read(self, artifact: str, *, offset: int = 0, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of a stored output, from `offset` on.

        :raises ToolError: ``expired`` or ``not_found``.
        """
        ...

    async def expire(self) -> int:
        """Delete the files of outputs that have expired and mark their records; return how many."""
        ...


class History(Protocol):
    """Read sessions and move between branches."""

    async def sessions(self, *, limit: int = 50) -> Sequence[SessionView]:
        """Return sessions, the most recently used first."""
        ...

    async def path(self, session: str | None = None) -> Sequence[NodeView]:
        """Return the active path, root first, of `session`, by default of this one."""
        ...

    async def calls(self, *, session: str | None = None, since: str | None = None) -> Sequence[StoredCall]:
        """Return stored tool calls, oldest first."""
        ...

    async def spent(
        self, *, session: str | None = None, agent: str | None = None, folder: Path | None = None, since: str = ""
    ) -> float:
        """Return what turns have cost in US dollars, this one so far included; other turns count when they end.

        :param session: only this session with its sub-agents, whose own ids stand for it.
        :param agent: only the turns of this agent, also where it was another's sub-agent.
        :param folder: only sessions that work in this folder or below it.
        :param since: only turns that began at this time or later: UTC, ISO 8601.
        """
        ...

    async def switch(self, node: str | None) -> None:
        """Make `node` the active node at the turn's next pause; ``None`` means before the first node."""
        ...


class Rules(Protocol):
    """The user's permission rules."""

    def all(self) -> Sequence[Rule]:
        """Return the configured rules in the order in which they are matched: user, then inline, then session grants."""
        ...

    def problems(self) -> Sequence[str]:
        """Return the errors of rules that could not be read, each with its file and line."""
        ...

    def commands(self, text: str) -> Sequence[str]:
        """Return the simple commands in a shell text, as rules are matched against them: words with one blank between.

        This includes commands after ``&&``, in ``$(…)``, in ``sh -c "…"`` and behind ``sudo`` or ``xargs``; ``git -C x
        push`` is also ``git push``. The word ``…`` stands for a part that is known
        only when the command runs. If the text is not clear, everything that may be a command is returned.
        """
        ...

    async def append(self, rule: Rule, *, scope: Literal["user", "session"]) -> str:
        """Add a rule. ``user`` writes ``config.jsonc`` and keeps its comments; the rule applies at once.

        :returns: where the rule was written, as ``file:line``; empty for a session.
        :raises ConfigError: the file cannot be written; the rule then applies to this session only.
        """
        ...

    async def answered(self) -> tuple[str, Sequence[Rule]]:
        """Return the session of the newest answer of which rules are still stored, and these rules; both empty without one."""
        ...

    async def remove(self, rule: Rule) -> None:
        """Remove a rule from the user's file or from the session; raise ``ConfigError`` if that is not possible."""
        ...


class Spawn(Protocol):
    """Run another agent in a child session, with rules that can only be narrower.

    The child has the parent's mode and grants, the parent's rules beside its own, and only tools that the parent has too.
    Its cost and its questions are the parent's, and it ends with the parent.
    """

    async def __call__(
        self,
        agent: str | Agent,
        prompt: str,
        *,
        session: str | None = None,
        rules: Sequence[Rule] = (),
        metadata: Mapping[str, Any] | None = None,
        title: str = "",
        background: bool = False,
    ) -> SpawnResult:
        """Run one turn with `prompt` in a child session and return its result.

        :param session: id of an earlier child of this session to resume; by default a new child begins.
        :param rules: further rules for the child; they can only narrow it.
        :param metadata: the value of ``turn.spawned.metadata`` while the child runs.
        :param background: return at once; the result is appended to the parent as a note, between steps or when it is idle.
        :raises ToolError: ``unknown_agent``, ``unknown_session``, ``wrong_agent``, ``busy``, ``too_deep``,
            ``unknown_model``, ``max_steps`` or ``budget``; nothing has run.
        """
        ...

    def agents(self) -> Sequence[Agent]:
        """Return the agents that another agent may start: those of mode ``subagent`` and ``all`` that are not hidden."""
        ...

    async def depth(self) -> int:
        """Return how many ancestors this session has."""
        ...

    def running(self) -> Sequence[SessionView]:
        """Return the sessions that this one has started and that are at work now."""
        ...


class Complete(Protocol):
    """Ask a model something outside the conversation. Runs no chat hooks, counts toward the cost, does not nest."""

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        model: str | None = None,
        system: str = "",
        params: ChatParams | None = None,
        agent: str | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Return the answer's text.

        :param agent: the agent whose prompt, model and parameters are used if none are given; it may be hidden.
        :raises ModelError: the call failed.
        """
        ...


class CodeLoader(Protocol):
    """Import a Python file from source, under its own name, after the user has consented to it."""

    def read(self, path: Path) -> bytes:
        """Return the content of a file that may be imported, without importing it.

        :raises PluginError: no consent, unsafe owner or mode of the file or its folder, or it cannot be read.
        """
        ...

    def consent(self, path: Path) -> Literal["", "changed", "allowed"]:
        """Return whether the user allowed the file's content, or another content of it before, or nothing yet."""
        ...

    def load(self, path: Path) -> ModuleType:
        """Return the module; a file that has not changed since plugins were last loaded is not run again.

        The file's code runs on the calling thread: call this off the loop, with a timeout.

        :raises PluginError: as :meth:`read`, or the import failed; ``where`` is the file and line.
        """
        ...


class Watch(Protocol):
    """Learn when files change."""

    def __call__(self, path: Path, changed: Callable[[Path], None]) -> Callable[[], None]:
        """Call `changed` on the loop after changes below `path`; return a function that ends the watch."""
        ...


class SessionInfo(Protocol):
    """Title and notes of the current session.

    Both methods work from any thread, and need not be awaited.
    """

    def set_title(self, title: str, *, instead_of: str | None = None) -> Awaitable[None]:
        """Set the session's title; with ``instead_of``, only in place of that title or of none."""
        ...

    def note(self, text: str, *, title: str = "", go_on: bool = False) -> Awaitable[None]:
        """Append a note that the model sees as a marked user message; applied between steps or when idle.

        :param go_on: if this turn completes, let the model answer the note in another turn; at most five follow one prompt.
        """
        ...


class Emit(Protocol):
    """Publish an event of the plugin's own; its type becomes ``plugin.<name>.<type>``."""

    def __call__(self, type: str, /, **data: Any) -> None:
        """Publish the event; works from any thread. The ``text`` of a ``notice`` is shown at a terminal."""
        ...


Observer = Callable[[Event], None]
"""A function that is called with each event, on the host's loop; it must be quick."""

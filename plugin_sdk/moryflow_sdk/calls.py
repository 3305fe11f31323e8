"""A call of a tool and its result, as hooks see them, and its targets: ``vault:/a.md``, ``shell:git status``, ``url:https://…``.

A tool declares *requests* from its arguments; the host resolves each once, before any gate runs. Gates, question,
audit and body then all see the same :class:`Target`.
"""

from __future__ import annotations

from typing import Literal, get_args

from ._frozen import Frozen, FrozenMapping
from .models import Image

Domain = str
"""The domain of a call, target or rule: one of :data:`DOMAINS`, or an unknown one as it was written."""

DomainName = Literal["read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"]
"""The known domains, spelled out for type checkers and editors."""

DOMAINS: tuple[DomainName, ...] = get_args(DomainName)
"""Every domain."""

TargetKind = Literal["file", "shell", "url", "query", "mcp", "task", "tool"]


class TargetRequest(Frozen):
    """What a tool says it is about to touch, before the host has resolved it.

    :param folder: for commands, the folder to run in; relative paths start at the vault, which is also the default.
    """

    kind: TargetKind
    value: str
    domain: Domain
    folder: str | None = None


_KINDS: dict[Domain, TargetKind] = {
    "read": "file",
    "edit": "file",
    "bash": "shell",
    "web_fetch": "url",
    "web_search": "query",
    "mcp": "mcp",
    "task": "task",
}


def target_request(item: object, domain: Domain) -> TargetRequest:
    """Return `item`; a plain text is what `domain` is about: a path, a command, an address, ``server/tool``.

    :raises TypeError: it is neither.
    """
    if isinstance(item, TargetRequest):
        return item
    if isinstance(item, str):
        return TargetRequest(kind=_KINDS.get(domain, "tool"), value=item, domain=domain)
    raise TypeError(f"targets must give file_target(…) and the like, or texts, not {type(item).__name__}")


class Identity(Frozen):
    """The object that a path named when it was judged: device and inode, as ``os.fstat`` gives them."""

    device: int
    inode: int


class Target(Frozen):
    """A resolved target.

    :param text: the canonical string; files are ``vault:/relative`` or ``fs:/absolute``, with ``/`` on every platform. A
        command is the whole line, ``shell:cd a && git push``; :meth:`Rules.commands` says what commands are in it.
    :param given: what the tool's argument said.
    :param path: for files, the absolute path after all links were followed; of a file that does not exist yet,
        its resolved parent plus the remaining names.
    :param identity: for files that exist, the object that was judged.
    :param lexical: for files, the canonical string of the path as given, before links were followed.
    :param folder: for commands, the resolved folder that the command runs in; it is judged with the command, and
        :meth:`Files.folder` opens it. A folder outside the vault sets `error`.
    :param error: why it could not be resolved; such a call is denied.
    """

    domain: Domain
    kind: TargetKind
    text: str
    given: str = ""
    path: str | None = None
    identity: Identity | None = None
    lexical: str | None = None
    folder: Target | None = None
    error: str | None = None


UNKNOWN_FOLDER = "unknown"
"""Stands in a rule for a folder that is known only when the command runs, as after ``source env.sh``."""


def command_in(folder: Target, command: str, domain: Domain = "bash") -> Target:
    """Return `command` as gates see it, in a resolved folder; it is refused in one outside the vault."""
    error = folder.error
    if error is None and not folder.text.startswith("vault:"):
        error = f"{folder.given!r} leads to {folder.path}, outside the vault; no command runs there"
    return Target(domain=domain, kind="shell", text=f"shell:{command}", given=command, folder=folder, error=error)


def file_target(path: str, domain: DomainName = "read") -> TargetRequest:
    """A file or folder; relative paths start at the vault."""
    return TargetRequest(kind="file", value=path, domain=domain)


def shell_target(command: str, folder: str | None = None) -> TargetRequest:
    """A shell command, whole, and the folder in the vault that it runs in; without one, the vault itself."""
    return TargetRequest(kind="shell", value=command, domain="bash", folder=folder or None)


def url_target(url: str) -> TargetRequest:
    """An address to be fetched."""
    return TargetRequest(kind="url", value=url, domain="web_fetch")


def query_target(query: str) -> TargetRequest:
    """A web search."""
    return TargetRequest(kind="query", value=query, domain="web_search")


def mcp_target(server: str, tool: str) -> TargetRequest:
    """A tool of an MCP server."""
    return TargetRequest(kind="mcp", value=f"{server}/{tool}", domain="mcp")


def task_target(agent: str) -> TargetRequest:
    """A sub-agent to start."""
    return TargetRequest(kind="task", value=agent, domain="task")


def tool_target(name: str) -> TargetRequest:
    """A tool that declares no domain of its own."""
    return TargetRequest(kind="tool", value=name, domain="tool")


ResultStatus = Literal["ok", "error", "denied", "interrupted"]


class ToolCall(Frozen):
    """A call of a tool.

    In ``tool_before`` only `id`, `tool`, `args` and `step` count. From ``tool_gate`` on the value is final:
    `args` were validated, `targets` resolved, and `hash` is the SHA-256 of the canonical JSON of `args`.
    `effect` stands for what the call does: it is the same for calls that differ only in remarks (:func:`tool`), in defaults
    that are written out, and in how a path, a folder or a number is written.
    `source` is the file that the tool was taken from, for tools that a plugin found in files; `revision` tells its
    versions apart.
    """

    id: str
    tool: str
    args: FrozenMapping
    step: int = 0
    domain: Domain = "tool"
    targets: tuple[Target, ...] = ()
    hash: str = ""
    effect: str = ""
    source: str = ""
    revision: str = ""


class ToolResult(Frozen):
    """The result of a call.

    :param output: the text the model reads.
    :param code: for errors, a short stable reason (``invalid_args``, ``unknown_tool``, ``not_found`` …).
    :param title: one line for people, for example ``read notes.md (120 lines)``.
    :param metadata: JSON for hooks and clients, never sent to the model. A text `diff` in it, the path before it, is shown to
        a person after the call.
    :param spool: a file that holds the whole output when it was too large for memory (over 32 MiB).
    :param format: ``json`` when the body returned something other than text and the host wrote it as JSON.
    :param truncated: whether the model reads only a part; `output_id` then names the whole stored output, `path` its file.
    :param images: what the model sees beside the text.
    """

    status: ResultStatus = "ok"
    output: str = ""
    code: str | None = None
    title: str = ""
    metadata: FrozenMapping = {}
    images: tuple[Image, ...] = ()
    truncated: bool = False
    output_id: str | None = None
    path: str | None = None
    spool: str | None = None
    format: Literal["text", "json"] = "text"

"""A call of a tool and its result, as hooks see them, and its targets: ``vault:/a.md``, ``shell:git status``, ``url:https://…``.

A tool derives target *requests* from its arguments; the host resolves each once, before any gate runs. Gates, question,
audit and body then all see the same :class:`Target`.
"""

from __future__ import annotations

from typing import Literal, get_args

from ._frozen import Frozen, FrozenMapping
from .models import Image

Domain = str
"""The domain of a call, target or rule: one of :data:`DOMAINS`, or any other text that somebody wrote."""

DomainName = Literal["read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"]
"""The known domains, spelled out for type checkers and editors."""

DOMAINS: tuple[DomainName, ...] = get_args(DomainName)
"""Every domain."""

TargetKind = Literal["file", "shell", "url", "query", "mcp", "task", "tool"]


class TargetRequest(Frozen):
    """Something that a tool is about to touch, before the host has resolved it.

    :param folder: for commands, the folder to run in, relative to the vault; by default the vault itself.
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
    """Return `item` as a request; a text is read as `domain` says: as a path, a command, an address, ``server/tool``.

    :raises TypeError: `item` is neither a request nor a text.
    """
    if isinstance(item, TargetRequest):
        return item
    if isinstance(item, str):
        return TargetRequest(kind=_KINDS.get(domain, "tool"), value=item, domain=domain)
    raise TypeError(f"targets must give file_target(…) and the like, or texts, not {type(item).__name__}")


class Identity(Frozen):
    """The file or folder that a path led to when it was judged: device and inode, as in ``os.fstat``."""

    device: int
    inode: int


class Target(Frozen):
    """A resolved target.

    :param text: the canonical string; files are ``vault:/relative`` or ``fs:/absolute``, with ``/`` on every platform. A
        command is the whole line, ``shell:cd a && git push``; :meth:`Rules.commands` returns the commands in it.
    :param given: the text in the tool's argument.
    :param path: for files, the absolute path after all links were followed, also of a file that does not exist yet.
    :param identity: for files that exist, the object that was judged.
    :param lexical: for files, the canonical string of the path as given, before links were followed.
    :param folder: for commands, the resolved folder that the command runs in; it is judged with the command, and
        :meth:`Files.folder` opens it. A folder outside the vault sets `error`.
    :param error: why the target could not be resolved; such a call is denied.
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
"""In a rule, it stands for a folder that is known only when the command runs, for example after ``source env.sh``."""


def command_in(folder: Target, command: str, domain: Domain = "bash") -> Target:
    """Return the target of `command` in a resolved folder; outside the vault its `error` is set, so that it is refused."""
    error = folder.error
    if error is None and not folder.text.startswith("vault:"):
        error = f"{folder.given!r} leads to {folder.path}, outside the vault; no command runs there"
    return Target(domain=domain, kind="shell", text=f"shell:{command}", given=command, folder=folder, error=error)


def file_target(path: str, domain: DomainName = "read") -> TargetRequest:
    """A file or folder; relative paths start at the vault."""
    return TargetRequest(kind="file", value=path, domain=domain)


def shell_target(command: str, folder: str | None = None) -> TargetRequest:
    """A whole shell command, and the folder in the vault that it runs in; by default the vault itself."""
    return TargetRequest(kind="shell", value=command, domain="bash", folder=folder or None)


def url_target(url: str) -> TargetRequest:
    """An address to fetch."""
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

    In ``tool_before`` only `id`, `tool`, `args` and `step` are set. From ``tool_gate`` on the value is final:
    `args` were validated, `targets` resolved, and `hash` is the SHA-256 of the canonical JSON of `args`.
    ``effect`` is the same for calls that differ only in remarks (:func:`tool`), in defaults
    that are written out, and in how a path, a folder or a number is written.
    `source` is the file that defines the tool, for tools that a plugin found in files; `revision` identifies its version.
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
    :param metadata: JSON for hooks and clients, never sent to the model. A text ``diff`` (the path first, then the changes)
        is shown to the user.
    :param spool: a file with the whole output if it is over 32 MiB.
    :param format: ``json`` if the host wrote a value of the body as JSON.
    :param truncated: whether the model reads only a part; ``output_id`` then names the whole output, ``path`` its file.
    :param images: the images that the model sees in addition to the text.
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

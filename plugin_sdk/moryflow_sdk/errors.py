"""Errors that plugins raise and handle, and diagnostics that they return.

Each says what happened, where, and what to do next. :func:`redact` removes secrets from a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._frozen import Frozen

if TYPE_CHECKING:
    from .models import ToolRequest


class MoryflowError(Exception):
    """Base of all our errors.

    :param message: one sentence: what happened.
    :param where: the file, ``file:line`` or other place where it happened; empty if there is none.
    :param next_step: the command or change that helps; empty if there is none.
    """

    code: str = "error"

    def __init__(self, message: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        if not self.next_step:
            return f"{where}{self.message}"
        sentence = self.message if self.message.endswith("?") else f"{self.message.rstrip('.')}."
        return f"{where}{sentence} Next: {self.next_step}"


class ConfigError(MoryflowError):
    """The configuration, or a flag, is wrong (exit code 2)."""

    code = "config"


class PluginError(MoryflowError):
    """A plugin cannot be used as it is."""

    code = "plugin"


class ToolError(MoryflowError):
    """A tool could not do its work. The model reads the message.

    :param code: a short, stable reason, for example ``not_found``, ``binary``, ``not_unique``, ``timeout``.
    """

    def __init__(self, message: str, *, code: str = "failed", where: str = "", next_step: str = "") -> None:
        super().__init__(message, where=where, next_step=next_step)
        self.code = code


class Denied(MoryflowError):
    """A rule, a plugin or the user refused, or nobody could be asked. :meth:`ToolContext.ask` raises it."""

    code = "denied"


class ServiceNotDeclared(PluginError):
    """A plugin used a service of the host that its manifest does not declare."""

    code = "service_not_declared"


ModelErrorCode = Literal[
    "auth", "rate_limit", "overloaded", "timeout", "unreachable", "bad_request", "context", "not_found",
    "incomplete", "protocol", "too_large", "empty", "content_filter", "missing", "withheld",
]  # fmt: skip
"""Why a model call failed.

``incomplete``: the stream was cut. ``protocol``: the answer violates the protocol. ``empty``: the service sent no answer.
``context``: the prompt does not fit into the context window. ``missing``: there is no such model, no key, or no runtime.
``withheld``: the model can no longer be downloaded as it was pinned.
"""

RETRYABLE: frozenset[str] = frozenset({"rate_limit", "overloaded", "timeout", "unreachable", "incomplete"})


class ModelError(MoryflowError):
    """A model call failed.

    :param code: see :data:`ModelErrorCode`; the host retries the codes in :data:`RETRYABLE`.
    :param retry_after: how many seconds the provider asks to wait, if it said so.
    :param status: HTTP status, if there was one.
    :param tool_calls: the calls received before the answer broke off, each with a `problem`. None of them may run. `extra`
        and `origin` are those of :class:`moryflow_sdk.Finished`.
    :param param: the parameter that the service complains about, if it named one.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ModelErrorCode,
        retry_after: float | None = None,
        status: int | None = None,
        tool_calls: Sequence[ToolRequest] = (),
        where: str = "",
        next_step: str = "",
        param: str = "",
    ) -> None:
        super().__init__(message, where=where, next_step=next_step)
        self.code: str = code
        self.tool_calls = tuple(tool_calls)
        self.extra: Mapping[str, Any] = {}
        self.origin = ""
        self.param = param
        self.retry_after = retry_after
        self.status = status

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in RETRYABLE


class Diagnostic(Frozen):
    """A problem that a contribute hook returns in place of an item it could not make.

    :param code: a short stable reason, for example ``agent_frontmatter``.
    :param next_step: the command that helps.
    """

    file: str
    message: str
    code: str = ""
    line: int | None = None
    column: int | None = None
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}; next: {self.next_step}" if self.next_step else self.sentence

    @property
    def sentence(self) -> str:
        """The place and the message, without the next step."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.message}"


_PATTERNS = (
    re.compile(
        r"\b(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|AKIA|ASIA|AIza|hf|gsk|tvly)[-_]?[A-Za-z0-9][A-Za-z0-9_\-]{5,}"
    ),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]{6,}=*"),
    re.compile(r"(?i)\b(api[_-]?key|token|secret|password|passwd|authorization)(\"?\s*[:=]\s*\"?)[^\s\"',;&]{4,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)
MASK = "[redacted]"


def redact(text: str, *secrets: str) -> str:
    """Return `text` with `secrets`, and what looks like a key, a token or a password, replaced by ``[redacted]``."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(_mask, text)
    return text


def _mask(match: re.Match[str]) -> str:
    groups = match.groups()
    if len(groups) == 2 and groups[1]:
        return f"{groups[0]}{groups[1]}{MASK}"
    return MASK

"""What can go wrong before and around an answer, as a :class:`ModelError` that says what to do next."""

from __future__ import annotations

from urllib.parse import urlsplit

from moryflow_sdk.errors import ModelError, ModelErrorCode
from moryflow_sdk.redact import redact

from .endpoint import Endpoint
from .failures import next_step, plain


class ConnectFailed(Exception):
    """No connection came about: nobody answers, the certificate is not good, the proxy refuses."""


class TimedOut(Exception):
    """The other side did not do its part in time."""


class Broken(Exception):
    """The connection ended, or what came over it is not HTTP."""


class NoAnswer(Broken):
    """The connection ended before a single byte of an answer."""


class NotHttp(Broken):
    """What came is not HTTP."""


class Undecodable(Exception):
    """An answer is compressed in a way that cannot be read."""


WIRE_ERRORS = (ConnectFailed, TimedOut, Broken, Undecodable)
"""What a connection fails with."""


def connection_error(error: Exception, endpoint: Endpoint, *, answered: bool = False) -> ModelError:
    """Return the error for a connection that failed; `answered`: a part of an answer had come."""
    where = f"{endpoint.label} at {endpoint.shown}"
    code: ModelErrorCode
    if isinstance(error, ConnectFailed):
        code, message = "unreachable", f"cannot reach {where}: {plain(str(error))[:300]}"
    elif isinstance(error, TimedOut | TimeoutError):
        code, message = "timeout", f"{where} did not answer in time"
    elif isinstance(error, Undecodable):
        code, message = "protocol", f"{where} sent a compressed answer that cannot be read"
    elif isinstance(error, NotHttp) and not answered:
        code, message = "unreachable", f"{where} answered with something that is not HTTP"
    else:
        code, message = "incomplete" if answered else "unreachable", f"{where} closed the connection without an answer"
    return ModelError(redact(message, endpoint.key), code=code, next_step=next_step(code, endpoint, message))


def check(endpoint: Endpoint) -> None:
    """Refuse an address or a key that cannot be used, before anything is sent.

    :raises ModelError: it says which, and where it is set; never the key.
    """
    if not endpoint.key.isascii() or not endpoint.key.isprintable() or " " in endpoint.key:
        message = f"the key in {endpoint.key_source} has characters that a key cannot have"
        raise ModelError(message, code="auth", next_step=f"set it again: {endpoint.key_source}")
    try:
        parts = urlsplit(endpoint.base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and endpoint.base_url.isprintable() and " " not in endpoint.base_url
    except ValueError:
        usable = False
    if not usable:
        raise ModelError(
            f"{endpoint.label}: the address in {endpoint.url_source} is not an http:// or https:// address",
            code="bad_request",
            next_step=f"correct the address in {endpoint.url_source}",
        )


def unsendable(endpoint: Endpoint) -> ModelError:
    """Return the error for a request that cannot be written. What is wrong is not quoted: it may be a secret."""
    return ModelError(
        f"{endpoint.label}: the request cannot be sent: its address or one of its headers has characters it cannot have",
        code="bad_request",
        next_step=f"check models.providers.{endpoint.label}.headers and the address in {endpoint.url_source}",
    )

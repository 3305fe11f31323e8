"""Keep secrets out of what people and logs see: the secrets in settings, and all others that this process knows.

A setting is a secret because of its name (``api_key``, ``weatherToken``, ``db_password``) or its type (``SecretStr``).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast, get_args

from moryflow_sdk.errors import MASK, redact

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LAST = frozenset(
    {
        "key", "keys", "apikey", "apikeys", "token", "tokens", "authorization", "cookie", "cookies", "credential",
        "credentials", "pwd", "pin", "passcode", "bearer",
    }
)  # fmt: skip
_ANYWHERE = ("password", "passwd", "passphrase", "secret")
_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_NOT_WITH = frozenset({"public", "env"})
"""Words in a name that mean that its value is no secret: a public key, the name of an environment variable."""
_COUNTED = frozenset({"key", "keys", "token", "tokens"})
"""Words that also occur in the names of numbers (``max_token``); numbers are not hidden."""
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_MIN_LENGTH = 4
_TYPES = ("SecretStr", "SecretBytes")
_MAX_DEPTH = 100

_known_secrets: set[str] = set()
_lock = threading.Lock()


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Whether a setting, a header or a variable with this name contains a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or _NOT_WITH & set(words):
        return False
    return words[-1] in _LAST or any(word in "".join(words) for word in _ANYWHERE)


def variable_holds_secret(name: str) -> bool:
    """Whether an environment variable contains a secret, judged by its name; ``PWD`` is a folder there."""
    return name not in _FOLDERS and names_secret(name)


def is_secret_type(annotation: Any) -> bool:
    """Whether a type is, or contains, ``SecretStr`` or ``SecretBytes``."""
    return any(getattr(part, "__name__", "") in _TYPES for part in _parts(annotation))


def masked(value: Any, models: Sequence[Any] = (), *, name: str = "") -> Any:
    """Return a JSON value with every secret in it replaced by ``[redacted]``, at any depth.

    :param models: the pydantic models, or types, that the value is for.
    :param name: the setting's own name.
    """
    secret = names_secret(name) or any(map(is_secret_type, models))
    return _walk(value, list(models), name, secret, _mask, redact, 0)


def secret_values(value: Any, models: Sequence[Any] = ()) -> list[str]:
    """Return all secrets in a JSON value, as texts; for `models` see :func:`masked`."""
    found: list[str] = []

    def passwords(text: str) -> None:
        found.extend(_PASSWORD.findall(text))

    _walk(value, list(models), "", any(map(is_secret_type, models)), found.append, passwords, 0)
    return found


def _walk(value: Any, models: list[Any], name: str, secret: bool, take: Any, plain: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return take(str(value))
    if isinstance(value, Mapping):
        made: dict[Any, Any] = {}
        for key, item in cast("Mapping[Any, Any]", value).items():
            below = _types_at(models, str(key))
            hidden = secret or names_secret(str(key)) or any(map(is_secret_type, below))
            made[key] = _walk(item, below, str(key), hidden, take, plain, depth + 1)
        return made
    if isinstance(value, list | tuple | set | frozenset):
        return [_walk(item, models, name, secret, take, plain, depth + 1) for item in cast("Iterable[Any]", value)]
    if secret and _can_be_secret(value, name):
        return take(str(value))
    return plain(value) if isinstance(value, str) else value


def _mask(_: str) -> str:
    return MASK


def _can_be_secret(value: Any, name: str) -> bool:
    if value is None or isinstance(value, bool) or value == "":
        return False
    words = _WORDS.findall(name)
    return isinstance(value, str) or not (words and words[-1].lower() in _COUNTED)


def _types_at(models: Sequence[Any], key: str) -> list[Any]:
    found: list[Any] = []
    for part in (part for model in models for part in _parts(model)):
        fields: Any = getattr(part, "model_fields", None)
        if isinstance(fields, Mapping):
            named = cast("Mapping[str, Any]", fields)
            found += [field.annotation for name, field in named.items() if key in (name, field.alias)]
        elif getattr(part, "__origin__", None) is not None:
            found += get_args(part)[-1:]
    return found


def _parts(annotation: Any) -> list[Any]:
    found = [annotation]
    for part in found:  # grows while it is walked
        if not isinstance(part, type):
            found += get_args(part)
    return found


# ---------------------------------------------------------------- what this process knows


def know(texts: Iterable[str]) -> None:
    """Remember these secrets: from now on :func:`hide` removes them from every text."""
    fresh = {text for text in texts if _is_distinctive(text)}
    if fresh - _known_secrets:
        with _lock:
            _known_secrets.update(fresh)


def know_environment(environ: Mapping[str, str]) -> None:
    """Remember the values of the environment variables whose names mark them as secrets, except paths (to a key file)."""
    named = [value for name, value in environ.items() if variable_holds_secret(name)]
    know(value for value in named if len(value) >= 2 * _MIN_LENGTH and not value.startswith(("/", "~", ".")))


def _is_distinctive(text: str) -> bool:
    """Whether a text is long enough not to occur by chance: ``sort_key: name`` must not remove a word from every message."""
    text = text.strip()
    mixed = any(char.isdigit() for char in text) and not text.isdigit()
    return len(text) >= (_MIN_LENGTH if mixed else 2 * _MIN_LENGTH)


def hide(text: str) -> str:
    """Return `text` with the secrets that this process knows replaced by ``[redacted]``."""
    if not _known_secrets:
        return text
    for secret in sorted(_known_secrets, key=len, reverse=True):
        for spelling in {secret, repr(secret)[1:-1]}:
            if spelling in text:
                text = text.replace(spelling, MASK)
    return text


def hidden(value: Any) -> Any:
    """Return a JSON value with the secrets that this process knows replaced by ``[redacted]``."""
    if not _known_secrets:
        return value
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {key: hidden(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [hidden(item) for item in cast("Iterable[Any]", value)]
    return value

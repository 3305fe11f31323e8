"""How values become text in the database: canonical JSON, hashes, estimates, times, ids.

Nothing a model, a tool or a file name contains may make a commit fail: lone surrogates are written as JSON
escapes, NUL is one anyway.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any, cast

from moryflow_sdk import FrozenDict

from .protocol import invalid

_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def encode(value: Any) -> str:
    """Return `value` as canonical JSON that UTF-8 can carry.

    :raises StoreError: it is not JSON, or nested too deeply to be read back.
    """
    try:
        text = _encode(value)
    except ValueError:
        text = _encode_finite(value)
    except (TypeError, RecursionError) as error:
        raise invalid(f"a value cannot be stored as JSON: {error}") from error
    return text if _is_utf8(text) else _encode_ascii(json.loads(text))


def _encode_finite(value: Any) -> str:
    """Encode `value` with NaN and infinities, which JSON lacks, as ``null``."""
    try:
        return _encode(_finite(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"a value cannot be stored as JSON: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_decode = json.JSONDecoder(object_hook=FrozenDict).decode


def decode(text: str) -> Any:
    """Return the frozen value of canonical JSON: mappings read-only, lists as tuples."""
    value = _decode(text)
    return _sealed(value) if "[" in text else value


def _sealed(value: Any) -> Any:
    """Return `value` with tuples for lists, all the way down."""
    if type(value) is list:
        return tuple([_sealed(item) for item in cast("list[Any]", value)])
    if type(value) is FrozenDict:
        for item in value.values():
            if type(item) is list or type(item) is FrozenDict:
                return FrozenDict({key: _sealed(item) for key, item in value.items()})
    return value


def node_hash(parent: str, kind: str, payload: str) -> str:
    """Return the hash of a node: SHA-256 over its parent's hash (empty for a root), its kind and its stored payload."""
    return hashlib.sha256(f"{parent}\n{kind}\n{payload}".encode("utf-8", "surrogatepass")).hexdigest()


def has_its_arguments(arguments: str, hash: str) -> bool:
    """Tell whether a call has the arguments that its hash is of; one that was never judged has no hash."""
    return not hash or hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest() == hash


def text_of(payload: Mapping[str, Any]) -> str:
    """Return the text that a person or a model reads in a node."""
    parts = [payload.get("text"), payload.get("output"), payload.get("summary")]
    parts += [item.get("text") for item in payload.get("files") or () if isinstance(item, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def estimate_tokens(payload: Mapping[str, Any]) -> int:
    """Return about how many tokens a node costs in the context: a quarter of its characters."""
    calls = payload.get("calls") or ()
    arguments = sum(len(str(call.get("arguments", ""))) for call in calls if isinstance(call, Mapping))
    return -(-(len(text_of(payload)) + arguments) // 4)


def random_id() -> str:
    """Return 64 random bits as text."""
    return os.urandom(8).hex()

"""Mappings, lists and sets that cannot change after they were judged, all the way down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

MAX_LEVELS = 100
"""How deep a value may be nested: copying, comparing and writing recurse level by level."""


# Named here: `str | bytes` within a function makes a new object at each call, and every value of every step comes through.
_PLAIN: frozenset[type] = frozenset({str, int, float, bool, bytes, type(None)})
_TEXTS_AND_NUMBERS = (str, bytes, int, float)
_SEQUENCES = (list, tuple, set, frozenset)
_type_of: Callable[[Any], type[Any]] = type


class FrozenDict(dict[str, Any]):
    """A mapping that refuses to change; ``{**it, "key": value}`` makes a new, ordinary one.

    It is a real ``dict`` so that ``json.dumps`` and ``match`` work on it.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this value is frozen; build a new one, for example call.replace(args={**call.args, ...})")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, _memo: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", thaw(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


def freeze(value: Any, levels: int = MAX_LEVELS) -> Any:
    """Return `value` with every mapping a :class:`FrozenDict` and every sequence or set a tuple.

    :raises ValueError: it is nested more than `levels` deep.
    """
    kind = _type_of(value)
    if kind in _PLAIN or kind is FrozenDict or isinstance(value, _TEXTS_AND_NUMBERS):
        return value
    is_mapping = kind is dict or isinstance(value, Mapping)
    if not (is_mapping or isinstance(value, _SEQUENCES)):
        return cast("Any", value)
    if levels < 1:
        raise ValueError(f"it is nested more than {MAX_LEVELS} levels deep")
    if is_mapping:
        items = cast("Mapping[Any, Any]", value).items()
        return FrozenDict({str(key): item if type(item) in _PLAIN else freeze(item, levels - 1) for key, item in items})
    return tuple([freeze(item, levels - 1) for item in cast("list[Any]", value)])


def thaw(value: Any) -> Any:
    """Return a deep, ordinary copy: mappings become ``dict``, tuples become lists."""
    kind = _type_of(value)
    if kind in _PLAIN:
        return value
    if kind is FrozenDict or isinstance(value, Mapping):
        return {key: thaw(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in cast("list[Any]", value)]
    return value

"""Change one value of a configuration file and nothing else.

Comments, order, trailing commas, line ends, byte-order mark, mode bits and a symbolic link all stay. The result is
parsed and compared with what was meant before it is written; a file that does not parse is never written to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk import ConfigError
from moryflow_sdk.own_files import LOST_HINT, leads_nowhere

from moryflow.base.atomic_write import locked, write_atomically

from .files import Unreadable, read_source
from .jsonc import JsoncError, parse, position, tree
from .spans import insert, put, remove

RULES = ("agents", "runtime", "permission", "rules")
Change = Callable[[str, Any], tuple[str, Any] | None]
"""Text and value in, new text and expected value out; ``None``: nothing to do."""


def append_rule(file: Path, rule: Mapping[str, Any]) -> bool:
    """Append a permission rule; return ``False`` when it is in force already.

    :raises ConfigError: the file does not parse or cannot be written.
    """
    entry = dict(rule)

    def change(text: str, value: Any) -> tuple[str, Any] | None:
        rules = _at(value, RULES)
        if isinstance(rules, list) and _in_force(rules, entry):
            return None
        if rules is None:
            return _set(text, value, RULES, [entry])
        if not isinstance(rules, list):
            raise ConfigError("permission.rules is not a list, so no rule can be added to it", next_step="mend it")
        node = _node(text, RULES)
        expected = copy.deepcopy(value)
        _at(expected, RULES).append(entry)
        return insert(text, node, entry), expected

    return _edit(file, change)


def line_of_rule(file: Path, rule: Mapping[str, Any]) -> int:
    """Return the line at which the last rule stands that is `rule`; 0 when there is none.

    :raises ConfigError: the file does not parse.
    """
    target = _target(file)
    text, _ = _read(target)
    rules = _at(_parsed(target, text), RULES)
    if not isinstance(rules, list) or rule not in rules:
        return 0
    last = len(rules) - 1 - rules[::-1].index(rule)
    return position(text, _node(text, RULES).children[last].begin)[0]


def set_value(file: Path, dotted: str, value: Any) -> bool:
    """Set the value at `dotted`, creating the objects on the way; return whether the file changed.

    :raises ConfigError: the file does not parse, something on the way is no object, or it cannot be written.
    """
    path = _path(dotted)

    def change(text: str, current: Any) -> tuple[str, Any] | None:
        return None if _at(current, path, _NOTHING) == value else _set(text, current, path, value)

    return _edit(file, change)


def unset(file: Path, dotted: str) -> bool:
    """Remove the value at `dotted`; return whether there was one.

    :raises ConfigError: the file does not parse or cannot be written.
    """
    path = _path(dotted)

    def change(text: str, current: Any) -> tuple[str, Any] | None:
        if _at(current, path, _NOTHING) is _NOTHING:
            return None
        expected = copy.deepcopy(current)
        del _at(expected, path[:-1])[path[-1]]
        return remove(text, _node(text, path[:-1]), path[-1]), expected

    return _edit(file, change)


_NOTHING: Any = object()


def _path(dotted: str) -> tuple[str, ...]:
    path = tuple(dotted.split("."))
    if not all(path):
        raise ConfigError(f"{dotted!r} is not the name of a setting", next_step="write it as agents.runtime.mode.default")
    return path


def _at(value: Any, path: tuple[str, ...], missing: Any = None) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return missing
        value = value[name]
    return value


def _node(text: str, path: tuple[str, ...]) -> Any:
    node = tree(text)
    for name in path:
        node = node.child(name) if node else None
    return node


def _in_force(rules: list[Any], entry: Mapping[str, Any]) -> bool:
    """Whether `entry` stands there and no later rule of its domain may overrule it: the last match decides."""
    same = [rule for rule in rules if isinstance(rule, dict) and rule.get("domain") == entry["domain"]]
    while same and same[-1].get("decision") == entry["decision"]:
        if same.pop() == entry:
            return True
    return False


def _set(text: str, value: Any, path: tuple[str, ...], wanted: Any) -> tuple[str, Any]:
    expected = copy.deepcopy(value)
    place, depth = expected, 0
    while depth < len(path) - 1 and path[depth] in place:
        place = place[path[depth]]
        depth += 1
        if not isinstance(place, dict):
            raise ConfigError(f"{'.'.join(path[:depth])} is not an object, so nothing can be set in it", next_step="mend it")
    if path[depth] in place:
        place[path[-1]] = wanted
        return put(text, _node(text, path), wanted), expected
    for name in reversed(path[depth + 1 :]):
        wanted = {name: wanted}
    place[path[depth]] = wanted
    return insert(text, _node(text, path[:depth]), wanted, key=path[depth]), expected


def _edit(file: Path, change: Change) -> bool:
    target = _target(file)
    with locked(target):
        text, mark = _read(target)
        result = change(text, _parsed(target, text))
        if result is None:
            return False
        new, expected = result
        if _parsed(target, new) != expected:
            raise ConfigError(
                "this change cannot be made without touching the rest", where=str(file), next_step="edit it by hand"
            )
        write_atomically(target, (("\ufeff" if mark else "") + new).encode("utf-8"))
        return True


def _target(file: Path) -> Path:
    """Return the file that is to be changed, links followed.

    :raises ConfigError: one of them leads nowhere: what is lost, perhaps for a while, is not begun anew.
    """
    lost = leads_nowhere(Path(file))
    if lost:
        raise ConfigError(f"{lost}; nothing was written", where=str(file), next_step=LOST_HINT)
    return Path(file).resolve()


def _read(target: Path) -> tuple[str, bool]:
    try:
        source = read_source(target)
    except FileNotFoundError:
        return "", False
    except Unreadable as error:
        raise ConfigError(f"{error.message}; nothing was written", where=str(target), next_step=error.hint) from error
    return source.text, source.mark


def _parsed(target: Path, text: str) -> Any:
    try:
        value = parse(text)
    except JsoncError as error:
        where = f"{target}:{error.line}:{error.column}"
        message = f"the file does not parse, so nothing was written: {error.message}"
        raise ConfigError(message, where=where, next_step="mend that line") from error
    if not isinstance(value, dict):
        raise ConfigError("a configuration is an object, so nothing was written", where=str(target), next_step="mend it")
    return value

"""Single settings by their dotted keys: read the effective value, show it without secrets, change it and nothing else.

A change is checked first: the key must be known and the value valid. Comments, order, trailing commas, line ends,
byte-order mark, mode bits and a symbolic link are kept. The new text is parsed and compared with the expected value before
it is written; a file that does not parse is never written to.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moryflow_sdk import ConfigError, Rule
from moryflow_sdk.support.own_files import LOST_HINT, leads_nowhere
from moryflow_sdk.support.rule_entries import read_entries
from moryflow_sdk.support.secrets import masked

from moryflow.base.atomic_write import locked, write_atomically
from moryflow.config import MISSING, RULES, Config, Layer, merged, nested, read_rules, value_at

from .checks import drop_bad_values, unknown_keys
from .jsonc import JsoncError, JsoncNode, parse, position, tree
from .load import Unreadable, good_copy, read_source
from .schema import Known, defaults, host_models


def effective(config: Config, known: Sequence[Known]) -> dict[str, Any]:
    """Return the effective settings: those of the layers, over the defaults of `known`."""
    return merged(defaults(known), config.get(""))


def leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted key; a list is one value."""
    for key, item in value.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(item, Mapping) and item:
            yield from leaves(item, dotted)
        else:
            yield dotted, item


def without_secrets(tree: Mapping[str, Any], known: Sequence[Known]) -> dict[str, Any]:
    """Return settings with ``[redacted]`` for every secret, recognised by its name or by its type in a model of `known`."""
    shown = masked(tree)
    for path, model in known:
        place = path.split(".") if path else ()
        section = value_at(shown, place)
        if section is not MISSING:
            shown = merged(shown, nested(place, masked(section, [model])))
    return shown


def masked_value(key: str, value: object, known: Sequence[Known]) -> Any:
    """Return the value of `key` as it may be shown, without secrets."""
    path = key.split(".")
    return value_at(without_secrets(nested(path, value), known), path)


def default_of(known: Sequence[Known], key: str) -> Any:
    found = value_at(defaults(known), key.split("."))
    return None if found is MISSING else found


# The end of a problem's message, which says what happens to a wrong value in a file.
_EFFECT = re.compile("; [^;]* is (used|left out|ignored|asked about)$")


def check_value(known: Sequence[Known], key: str, text: str) -> Any:
    """Return `text` as a value for `key`: as JSON if that is valid, else as plain text.

    :raises ConfigError: the key is not known, or the value is not valid for it.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    problems = _problems(known, key, value)
    if problems and isinstance(value, int | float | None) and not _problems(known, key, text):
        return text
    if problems:
        first = problems[0]
        hint = first.hint or f"moryflow config explain {key}"
        message = _EFFECT.sub("", first.message)
        raise ConfigError(message, where="" if key in message else key, next_step=hint)
    return value


def refuse_unknown(known: Sequence[Known], key: str) -> None:
    """Check that a setting called `key` exists.

    :raises ConfigError: there is no such setting.
    """
    for problem in unknown_keys(Layer("user", nested(key.split("."), None), key), known):
        where = "" if key in problem.message else key
        raise ConfigError(problem.message, where=where, next_step=problem.hint or "moryflow config show --all")


def _problems(known: Sequence[Known], key: str, value: object) -> list[Any]:
    layer = Layer("user", nested(key.split("."), value), key)
    host = len(host_models())
    _, of_host = drop_bad_values(layer, known[:host], strict=True)
    _, of_others = drop_bad_values(layer, known[host:])
    wrong_rules: list[Any] = []
    if key == ".".join(RULES):
        no_list = [layer.problem(RULES, "the rules must be a list", code="rule_invalid")]
        wrong_rules = read_rules(layer)[1] if isinstance(layer.find(RULES), list) else no_list
    return [*unknown_keys(layer, known), *of_host, *of_others, *wrong_rules]


# Takes text and value of a file, returns the new text and the expected value; `None` if there is nothing to change.
Change = Callable[[str, Any], tuple[str, Any] | None]


def append_rule(file: Path, rule: Mapping[str, Any]) -> bool:
    """Append a permission rule; return ``False`` if it is in force already.

    :raises ConfigError: the file does not parse or cannot be written.
    """
    entry = dict(rule)

    def change(text: str, value: Any) -> tuple[str, Any] | None:
        rules = value_at(value, RULES)
        if isinstance(rules, list) and _in_force(rules, entry):
            return None
        if rules is MISSING or rules is None:
            return set_at(text, value, RULES, [entry])
        if not isinstance(rules, list):
            raise ConfigError("permission.rules is not a list, so no rule can be added to it", next_step="fix it")
        node = node_at(text, RULES)
        expected = copy.deepcopy(value)
        value_at(expected, RULES).append(entry)
        return insert(text, node, entry), expected

    return edit(file, change)


def remove_rule(file: Path, rule: Rule) -> None:
    """Remove the permission rule `rule` from the file it was read from, also if that has changed meanwhile.

    :raises ConfigError: the rule is no longer there, or the file does not parse or cannot be written.
    """

    def change(text: str, value: Any) -> tuple[str, Any]:
        rules = value_at(value, RULES)
        there = read_entries(rules if isinstance(rules, list) else [], rule.source, rule.file, line=lambda _: rule.line)[0]
        same = [one.index for one in there if one.index is not None and one.replace(index=rule.index) == rule]
        if not same:
            where, step = f"{rule.file or file}:{rule.line or 1}", "moryflow permission rules, or take it out by hand"
            raise ConfigError("permission.rules does not hold this rule", where=where, next_step=step)
        index = rule.index if rule.index in same else same[-1]
        expected = copy.deepcopy(value)
        del value_at(expected, RULES)[index]
        return remove(text, node_at(text, RULES), index), expected

    edit(file, change)


def line_of_rule(file: Path, rule: Mapping[str, Any]) -> int:
    """Return the line of the last rule that equals `rule`; 0 if there is none.

    :raises ConfigError: the file does not parse.
    """
    target = _target(file)
    text, _ = _read(target)
    rules = value_at(_parsed(target, text), RULES)
    if not isinstance(rules, list) or rule not in rules:
        return 0
    last = len(rules) - 1 - rules[::-1].index(rule)
    return position(text, node_at(text, RULES).children[last].begin)[0]


def set_value(file: Path, setting: str | Sequence[str], value: Any) -> bool:
    """Set a value, creating the objects above it; return whether the file changed.

    :param setting: a dotted key, or its names one by one.

    :raises ConfigError: the file does not parse, a value above it is not an object, or the file cannot be written.
    """
    path = _path(setting)

    def change(text: str, current: Any) -> tuple[str, Any] | None:
        return None if value_at(current, path) == value else set_at(text, current, path, value)

    return edit(file, change)


def unset(file: Path, setting: str | Sequence[str]) -> bool:
    """Remove the value of `setting`; return whether there was one.

    :raises ConfigError: the file does not parse or cannot be written.
    """
    path = _path(setting)

    def change(text: str, current: Any) -> tuple[str, Any] | None:
        if value_at(current, path) is MISSING:
            return None
        expected = copy.deepcopy(current)
        del value_at(expected, path[:-1])[path[-1]]
        return remove(text, node_at(text, path[:-1]), path[-1]), expected

    return edit(file, change)


def _path(setting: str | Sequence[str]) -> tuple[str, ...]:
    path = tuple(setting.split(".") if isinstance(setting, str) else setting)
    if not all(path):
        raise ConfigError(f"{setting!r} is not the name of a setting", next_step="write it as agents.runtime.mode.default")
    return path


def node_at(text: str, path: Sequence[str]) -> Any:
    """Return the span of the value at `path`, a :class:`~moryflow.config.jsonc.JsoncNode`; ``None`` if it is not there."""
    node = tree(text)
    for name in path:
        node = node.child(name) if node else None
    return node


def _in_force(rules: list[Any], entry: Mapping[str, Any]) -> bool:
    same = [rule for rule in rules if isinstance(rule, dict) and rule.get("domain") == entry["domain"]]
    while same and same[-1].get("decision") == entry["decision"]:
        if same.pop() == entry:
            return True
    return False


def set_at(text: str, value: Any, path: tuple[str, ...], wanted: Any) -> tuple[str, Any]:
    """Return `text` with `wanted` at `path`, and the value of the whole.

    :raises ConfigError: a value above it is not an object.
    """
    expected = copy.deepcopy(value)
    place, depth = expected, 0
    while depth < len(path) - 1 and path[depth] in place:
        place = place[path[depth]]
        depth += 1
        if not isinstance(place, dict):
            raise ConfigError(f"{'.'.join(path[:depth])} is not an object, so nothing can be set in it", next_step="fix it")
    if path[depth] in place:
        place[path[-1]] = wanted
        return put(text, node_at(text, path), wanted), expected
    for name in reversed(path[depth + 1 :]):
        wanted = {name: wanted}
    place[path[depth]] = wanted
    return insert(text, node_at(text, path[:depth]), wanted, key=path[depth]), expected


def edit(file: Path, change: Change) -> bool:
    """Change the text of a configuration file; return whether it changed.

    :raises ConfigError: the file does not parse or cannot be written, or the new text does not say what was expected.
    """
    target = _target(file)
    with locked(target):
        text, mark = _read(target)
        if not text.strip() and target.exists() and good_copy(target.parent, target).exists():
            problem = "the file is empty, and was not before; nothing was written"
            raise ConfigError(problem, where=str(file), next_step="put its text back, or write {} for no settings")
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
        raise ConfigError(message, where=where, next_step="fix that line") from error
    if not isinstance(value, dict):
        raise ConfigError("a configuration is an object, so nothing was written", where=str(target), next_step="fix it")
    return value


_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*[^\n\r]*?\*/)*(?://[^\n\r]*)?")
_SPACE = " \t"


def insert(text: str, container: JsoncNode | None, value: Any, *, key: str | None = None) -> str:
    """Return `text` with `value` as the last entry of `container`; ``None`` means that the document is still empty."""
    end = _line_end(text)
    if container is None:
        body = _entry({key: value} if key is not None else value, None, _unit(text), "", end)
        gap = end if text and not text.endswith(("\n", "\r")) else ""
        return f"{text}{gap}{body}{end}"
    if container.last is None:
        return _insert_first(text, container, value, key)
    return _insert_after(text, container, container.last, value, key)


def _insert_first(text: str, container: JsoncNode, value: Any, key: str | None) -> str:
    end, unit, base = _line_end(text), _unit(text), _indent_at(text, container.start)
    entry = _entry(value, key, unit, base + unit, end)
    rest = text[container.start + 1 : container.end - 1]
    # There is at most a comment between the brackets; it follows the entry on its own line.
    after = "" if rest.lstrip(_SPACE).startswith(("\n", "\r")) else end + base
    if rest.strip():
        after = end + base + unit if after else ""
    return f"{text[: container.start + 1]}{end}{base}{unit}{entry}{after}{text[container.start + 1 :]}"


def _insert_after(text: str, container: JsoncNode, last: JsoncNode, value: Any, key: str | None) -> str:
    end, unit = _line_end(text), _unit(text)
    many_lines = "\n" in text[container.start : last.begin]
    indent = _indent_at(text, last.begin) if many_lines else _indent_at(text, container.start)
    entry = _entry(value, key, unit, indent, end) + ("," if last.comma is not None else "")
    start = last.end if last.comma is None else last.comma + 1
    comma = "," if last.comma is None else ""
    if not many_lines:
        return f"{text[:start]}{comma} {entry}{text[start:]}"
    place = _after_remark(text, start, container.end - 1)
    return f"{text[:start]}{comma}{text[start:place]}{end}{indent}{entry}{text[place:]}"


def _after_remark(text: str, start: int, stop: int) -> int:
    """Return where the comment of the line ends, which belongs to the entry before it; `start` if there is none."""
    match = _REST_OF_LINE.match(text, start, stop)
    return start + len(match[0].rstrip(_SPACE)) if match else start


def put(text: str, node: JsoncNode, value: Any) -> str:
    """Return `text` with `value` instead of the value at `node`."""
    indent = _indent_at(text, node.begin)
    return text[: node.start] + _dump(value, _unit(text), indent, _line_end(text)) + text[node.end :]


def remove(text: str, container: JsoncNode, key: str | int) -> str:
    """Return `text` without the member or item `key`. Comments stay; a line that would be empty is removed."""
    node = container.child(key)
    if node is None:
        return text
    begin, end = node.begin, node.end
    place = container.children.index(node)
    comma_before = container.children[place - 1].comma if place else None
    if node.comma is not None:
        text = text[: node.comma] + text[node.comma + 1 :]
    elif comma_before is not None:
        text = text[:comma_before] + text[comma_before + 1 :]
        begin, end = begin - 1, end - 1
    line = len(text[:begin].rstrip(_SPACE))
    after = len(text) - len(text[end:].lstrip(_SPACE))
    at_start = line == 0 or text[line - 1] in "\n\r"
    if at_start and text.startswith(("\r\n", "\n"), after):
        return text[:line] + text[after + (2 if text[after] == "\r" else 1) :]
    return text[:begin] + text[after if not at_start else end :]


def _entry(value: Any, key: str | None, unit: str, indent: str, end: str) -> str:
    name = "" if key is None else json.dumps(key, ensure_ascii=False) + ": "
    return name + _dump(value, unit, indent, end)


def _dump(value: Any, unit: str, indent: str, end: str) -> str:
    if isinstance(value, dict) and len(value) > 1 and not any(isinstance(item, dict | list) for item in value.values()):
        return "{ " + json.dumps(value, ensure_ascii=False)[1:-1] + " }"
    if isinstance(value, dict) and value:
        entries = [_entry(item, name, unit, indent + unit, end) for name, item in value.items()]
        return _block("{", entries, "}", unit, indent, end)
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return _block("[", [_dump(item, unit, indent + unit, end) for item in value], "]", unit, indent, end)
    return json.dumps(value, ensure_ascii=False)


def _block(opening: str, entries: list[str], closing: str, unit: str, indent: str, end: str) -> str:
    inner = f",{end}{indent}{unit}".join(entries)
    return f"{opening}{end}{indent}{unit}{inner}{end}{indent}{closing}"


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str) -> str:
    match = _INDENT.search(text)
    return match.group(1) if match else "  "


def _indent_at(text: str, offset: int) -> str:
    line = text[text.rfind("\n", 0, offset) + 1 :]
    return line[: len(line) - len(line.lstrip(_SPACE))]

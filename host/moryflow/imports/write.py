"""Apply a plan to the user's configuration and store, and take it back.

Comments of the file stay, and each rule stands below its original. What was done is kept in ``imports/`` of the home, which
is what ``--undo`` reads: an unchanged file is restored as it was, from a changed one only what was added is removed.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from moryflow_sdk import ConfigError
from moryflow_sdk.support.texts import visible

from moryflow.base.atomic_write import write_atomically
from moryflow.base.paths import make_folder
from moryflow.config import MISSING, RULES, value_at
from moryflow.config.jsonc import parse
from moryflow.config.values import Change, edit, node_at, remove, set_at, set_value, unset

from . import ImportPlan, NewRule, System

LONGEST_COMMENT = 200


def apply(plan: ImportPlan, home: Path, file: Path) -> dict[str, int]:
    """Write what the plan says into the configuration at `file`; return how many rules, settings and entries were added.

    :raises ConfigError: the file does not parse or cannot be written.
    """
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    replaced = _take_out_earlier(plan, home, file)
    rules = _add_rules(plan, file)
    settings = [list(place) for place, value in plan.settings.items() if _set_new(file, place, value)]
    lists = [[list(place), entry] for place, entries in plan.lists.items() for entry in entries if _append(file, place, entry)]
    after = file.read_text(encoding="utf-8") if file.exists() else ""
    if after != before:
        done = {"file": str(file), "root": str(plan.root), "before": before, "after": _digest(after), "lists": lists}
        done |= {"rules": {"path": list(_place(plan)), "entries": rules}, "settings": settings, "sessions": []}
        done["replaced"] = replaced
        _keep(home, plan, done)
    return {"rules": len(rules), "settings": len(settings), "entries": len(lists)}


def note_sessions(plan: ImportPlan, home: Path, file: Path, sessions: Sequence[Sequence[Any]]) -> None:
    """Add sessions (id, number of nodes) to what ``--undo`` takes back."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    done = {"file": str(file), "root": str(plan.root), "before": text, "after": _digest(text), "lists": [], "settings": []}
    rules = {"path": list(_place(plan)), "entries": list[Any]()}
    _keep(home, plan, {**done, "rules": rules, "sessions": [list(item) for item in sessions]})


def last_of(system: System, home: Path, root: Path | None) -> tuple[Path, dict[str, Any]]:
    """Return the record of the last import of `system`, from `root` if that is given.

    :raises ConfigError: there is none.
    """
    names = [_record(home, system, root)] if root else (home / "imports").glob(f"{system}-*.json")
    found = sorted((path for path in names if path.exists()), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise ConfigError(f"nothing was imported from {system}", next_step=f"moryflow import {system}")
    return found[-1], json.loads(found[-1].read_bytes())


def take_back(done: Mapping[str, Any]) -> int:
    """Remove from the configuration what an import added; return how many of its parts were still there.

    :raises ConfigError: the file does not parse or cannot be written.
    """
    file = Path(done["file"]) if done["file"] else None
    total = len(done["rules"]["entries"]) + len(done["settings"]) + len(done["lists"])
    if file is None or not file.exists():
        return 0
    if _digest(file.read_text(encoding="utf-8")) == done["after"]:
        if done["before"]:
            write_atomically(file, done["before"].encode("utf-8"))
        else:
            file.unlink()
        return total
    path = tuple(done["rules"]["path"])
    count = sum(edit(file, _without_entry(path, entry, comment)) for entry, comment in done["rules"]["entries"])
    count += sum(edit(file, _without_entry(tuple(place), entry, "")) for place, entry in done["lists"])
    count += sum(unset(file, place) for place in done["settings"])
    for place, _ in done["lists"]:  # what is empty now was made for it
        if _value(file, tuple(place)) == []:
            unset(file, place)
            if _value(file, tuple(place[:-1])) == {}:
                unset(file, place[:-1])
    return count


def _value(file: Path, place: tuple[str, ...]) -> Any:
    text = file.read_text(encoding="utf-8-sig")
    return value_at(parse(text) if text.strip() else {}, place)


# ---------------------------------------------------------------- rules


def _place(plan: ImportPlan) -> tuple[str, ...]:
    return ("folders", str(plan.folder), "rules") if plan.folder else RULES


def _take_out_earlier(plan: ImportPlan, home: Path, file: Path) -> bool:
    """Remove the rules of an earlier import that are others now; above or below them, a new one would not mean what it does."""
    record = _record(home, plan.system, plan.root)
    entries = json.loads(record.read_bytes())["rules"]["entries"] if record.exists() and file.exists() else []
    there = _value(file, _place(plan)) if entries else []
    wanted = [rule.entry for rule in (*plan.first, *plan.last)]
    own = [entry for entry, comment in entries if comment.startswith(f"// {plan.system}: ")]
    same = isinstance(there, list) and all(entry in wanted for entry in own) and all(entry in there for entry in wanted)
    if same or not entries:
        return False
    for entry, comment in entries:
        edit(file, _without_entry(_place(plan), entry, comment))
    return True


def _add_rules(plan: ImportPlan, file: Path) -> list[list[Any]]:
    """Add the rules that are not there yet; return those that were added, with their comments."""
    added: list[list[Any]] = []
    place = _place(plan)

    def change(text: str, value: Any) -> tuple[str, Any] | None:
        there = value_at(value, place)
        there = there if isinstance(there, list) else []
        first, last = ([rule for rule in rules if rule.entry not in there] for rules in (plan.first, plan.last))
        if plan.folder and first:
            last = [*_held(value), *last]
        if not first and not last:
            return None
        if not there:
            text, value = set_at(text, value, place, [])
        expected = copy.deepcopy(value)
        rules = value_at(expected, place)
        rules[:] = [*(rule.entry for rule in first), *rules, *(rule.entry for rule in last)]
        added[:] = [[rule.entry, _comment(rule)] for rule in (*first, *last)]
        return _with_rules(text, place, first, last), expected

    edit(file, change)
    return added


def _held(value: Any) -> list[NewRule]:
    """Return the user's general rules of the domains in which one denies, so that a rule of a folder does not loosen them."""
    rules = value_at(value, RULES)
    rules = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    domains = {rule.get("domain") for rule in rules if rule.get("decision") == "deny"}
    return [
        NewRule(rule["domain"], rule["pattern"], rule["decision"], "your own rule, which goes before what is imported")
        for rule in rules
        if rule.get("domain") in domains and {*rule} == {"domain", "pattern", "decision"}
    ]


def _with_rules(text: str, place: Sequence[str], first: Iterable[NewRule], last: Iterable[NewRule]) -> str:
    node = node_at(text, place)
    line = text[text.rfind("\n", 0, node.start) + 1 : node.start]
    outer = line[: len(line) - len(line.lstrip(" \t"))]
    indent = f"\n{outer}  "

    def block(rules: Iterable[NewRule]) -> str:
        found, before = "", ""
        for rule in rules:
            comment = _comment(rule)
            found += f"{indent}{comment}" if comment != before else ""
            found += f"{indent}{{ {json.dumps(rule.entry, ensure_ascii=False)[1:-1]} }},"
            before = comment
        return found

    head, tail = block(first), block(last)
    inner, closing = text[node.start + 1 : node.end - 1], node.end - 1
    if node.last is not None and node.last.comma is None and tail:
        at = node.last.end - node.start - 1
        inner = f"{inner[:at]},{inner[at:]}"
    body = head + (inner.rstrip() if tail or not inner.strip() else inner) + tail
    end = "" if inner.strip() and not tail else f"\n{outer}"
    return text[: node.start + 1] + body + end + text[closing:]


def _comment(rule: NewRule) -> str:
    text = visible(" ".join(rule.comment.split()))
    return f"// {text if len(text) <= LONGEST_COMMENT else text[:LONGEST_COMMENT] + '…'}"


def _without_entry(place: tuple[str, ...], entry: Any, comment: str) -> Change:
    """Return the change that removes the last entry equal to `entry` from a list, with the comment above it."""

    def change(text: str, value: Any) -> tuple[str, Any] | None:
        there = value_at(value, place)
        if not isinstance(there, list) or entry not in there:
            return None
        index = len(there) - 1 - there[::-1].index(entry)
        expected = copy.deepcopy(value)
        del value_at(expected, place)[index]
        node = node_at(text, place).child(index)
        above = text.rfind("\n", 0, text.rfind("\n", 0, node.begin))
        new = remove(text, node_at(text, place), index)
        if comment and text[above + 1 : node.begin].strip() == comment:
            new = new[: above + 1] + re.sub(r"[^\n]*\n", "", new[above + 1 :], count=1)
        return new, expected

    return change


# ---------------------------------------------------------------- settings and records


def _set_new(file: Path, place: tuple[str, ...], value: Any) -> bool:
    """Set a value where nothing is set."""
    return (not file.exists() or _value(file, place) is MISSING) and set_value(file, place, value)


def _append(file: Path, place: tuple[str, ...], entry: Any) -> bool:
    def change(text: str, value: Any) -> tuple[str, Any] | None:
        there = value_at(value, place)
        if isinstance(there, list) and entry in there:
            return None
        return set_at(text, value, place, [*(there if isinstance(there, list) else []), entry])

    return edit(file, change)


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8")).hexdigest()


def _record(home: Path, system: System, root: Path) -> Path:
    return home / "imports" / f"{system}-{sha256(str(root).encode()).hexdigest()[:12]}.json"


def _joined(earlier: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of two imports, which are taken back together."""
    kept = {key: [*earlier[key], *done[key]] for key in ("lists", "settings", "sessions")}
    entries = [*(() if done.get("replaced") else earlier["rules"]["entries"]), *done["rules"]["entries"]]
    # The text before the first is restored only if nobody changed the file between the two.
    chained = earlier["after"] == _digest(done["before"])
    whole = {"before": earlier["before"]} if chained else {"after": ""}
    return {**done, **kept, **whole, "rules": {**done["rules"], "entries": entries}}


def _keep(home: Path, plan: ImportPlan, done: Mapping[str, Any]) -> None:
    file = _record(home, plan.system, plan.root)
    make_folder(file.parent)
    if file.exists():
        done = _joined(json.loads(file.read_bytes()), done)
    write_atomically(file, json.dumps(done, ensure_ascii=False).encode("utf-8"))
    file.chmod(0o600)

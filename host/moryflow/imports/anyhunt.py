"""Anyhunt: ``~/.anyhunt/config.jsonc``, which has the keys of Moryflow's own configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moryflow_sdk.support.secrets import names_secret

from moryflow.config import RULES, value_at

from . import ImportPlan
from .files import mapping, read_in_place, read_settings, read_skills


def read(path: Path | None) -> ImportPlan:
    """Return the plan for the folder at `path`, by default ``~/.anyhunt``."""
    root = (path or Path.home() / ".anyhunt").expanduser()
    plan, file = ImportPlan("anyhunt", root), root / "config.jsonc"
    found = read_settings(plan, file)
    rules = value_at(found, RULES)
    for rule in rules if isinstance(rules, list) else []:
        entry = mapping(rule)
        row = (str(entry.get("domain")), str(entry.get("pattern")), str(entry.get("decision")))
        odd = {*entry} - {"domain", "pattern", "decision"}
        whole = row[2] in ("allow", "ask", "deny") and not odd
        rows = [row] if whole else [(row[0], row[1], "ask")] if row[2] not in ("allow",) and entry.get("pattern") else []
        plan.rules(str(dict(entry)), rows, str(file), "" if whole else "the rule is not understood")
    for place, value in _leaves(found):
        if place == RULES or place[-1] == "$schema":
            continue
        if names_secret(place[-1]):
            plan.note("setting", ".".join(place), "skipped", "", "no secret is copied", str(file))
        else:
            plan.settings[place] = value
            plan.note("setting", ".".join(place), "same", ".".join(place), where=str(file))
    for kind, key in (("agents", "userAgents"), ("commands", "userCommands")):
        read_in_place(plan, kind, [root / kind], ("agents", "runtime", key, "paths"))
    read_skills(plan, root / "skills")
    return plan


def _leaves(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, (*path, key))
        else:
            yield (*path, key), item

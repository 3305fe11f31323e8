"""Policies over real folders: paths are resolved by the host's own resolver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from moryflow.services.paths import PathResolver
from moryflow_builtins.permission.policy import Policy, default_rules, make_policy
from moryflow_sdk import Rule, Target
from moryflow_sdk.support.protected_files import named_by_git

Rows = Iterable[dict[str, Any] | Rule]
MakePolicy = Callable[..., Policy]


def as_rules(rows: Rows, source: str = "user") -> list[Rule]:
    """Return rule objects for plain mappings."""
    return [
        row if isinstance(row, Rule) else Rule(source=source, file="config.jsonc", line=index + 1, index=index, **row)
        for index, row in enumerate(rows)
    ]


def build_policy(
    rows: Rows = (),
    *,
    vault: Path = Path("/vault"),
    user_home: Path = Path("/home/u"),
    home: Path | None = None,
    agent: Sequence[Rule] = (),
    servers: tuple[str, ...] = (),
    defaults: bool = True,
) -> Policy:
    """Return a policy as the host would make it; nothing on disk has to exist."""
    resolver = PathResolver(vault, user_home, case_sensitive=True)
    ours = home or user_home / ".moryflow"

    def resolve(path: str, domain: str, base: str | None) -> Target:
        return resolver.resolve(path, domain=domain, base=base)

    built_in = default_rules(str(ours), servers, named_by_git(vault)) if defaults else ()
    return make_policy((*built_in, *as_rules(rows)), home=ours, vault=vault, resolve=resolve, agent=agent)


@pytest.fixture(name="make_policy")
def _make_policy() -> MakePolicy:
    return build_policy

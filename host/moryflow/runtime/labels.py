"""Names that a person gives to nodes of a session: what may be one, and the marker that gives it or takes it back."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moryflow_sdk import ConfigError

from moryflow.store import Node, path_to

LONGEST = 80
SPOKEN = frozenset({"user", "assistant", "tool", "note"})
"""Kinds that a label names where none is said: what stands in the tree for a person to see, not what changes its view."""
_JOINERS = "\u200c\u200d"
"""What many scripts and emoji join characters with; else nothing unseen may be in a label."""


class Label(NamedTuple):
    """A label as it is to be from now on; with `node` as ``None`` it names nothing any more.

    :ivar was: the node that it named before.
    """

    label: str
    node: str | None
    was: str | None = None

    @property
    def marker(self) -> dict[str, Any]:
        """The payload of the node that says so."""
        return {"label": self.label, "node": self.node}

    @property
    def changes(self) -> bool:
        """Whether there is anything to record."""
        return self.node != self.was

    @property
    def sentence(self) -> str:
        """What a person is told."""
        if self.node is None:
            return f"'{self.label}' names nothing any more; it was {(self.was or '')[:8]}"
        if not self.changes:
            return f"{self.node[:8]} is called '{self.label}' already"
        taken = f"; {self.was[:8]} is not any more" if self.was else ""
        return f"{self.node[:8]} is called '{self.label}' now{taken}"


def new_label(text: str, node: str | None, nodes: Sequence[Node], named: Mapping[str, str], active: str | None) -> Label:
    """Return `text` as the label of `node`, or of what was said last. A label that names another node moves.

    :param nodes: all of the session; `named` are its labels, `active` its active node.
    :raises ConfigError: it cannot be a label, or there is nothing to name.
    """
    label = checked(text)
    known = {each.id: each for each in nodes}
    if label in known:
        raise ConfigError(f"'{label}' is the id of a node, so it cannot name one", next_step="choose another label")
    said = [each.id for each in path_to(known, active) if each.kind in SPOKEN]
    called = node or (said[-1] if said else None)
    if called is None:
        raise ConfigError("there is nothing to label yet", next_step='moryflow run "your question"')
    return Label(label, called, named.get(label))


def removal(text: str, named: Mapping[str, str]) -> Label:
    """Return that `text` is a label no longer.

    :raises ConfigError: it is none.
    """
    label = unicodedata.normalize("NFC", text.strip())
    if label not in named:
        near = difflib.get_close_matches(label, named, n=1)
        there = ", ".join(f"'{each}'" for each in named) or "none"
        hint = f"; did you mean '{near[0]}'?" if near else f"; there are {there}"
        raise ConfigError(f"there is no label '{label[:LONGEST]}'{hint}", next_step="moryflow session tree")
    return Label(label, None, named[label])


def checked(text: str) -> str:
    """Return `text` as it is stored: without space around it, its accents composed.

    :raises ConfigError: it cannot be a label.
    """
    label = unicodedata.normalize("NFC", text.strip())
    if not label:
        problem = "a label needs a text"
    elif len(label) > LONGEST:
        problem = f"a label has at most {LONGEST} characters, not {len(label)}"
    elif any(unicodedata.category(each) in _UNSEEN and each not in _JOINERS for each in label):
        problem = "a label is one line of characters that can be seen"
    else:
        return label
    raise ConfigError(problem, next_step="choose another label")


_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})

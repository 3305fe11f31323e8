"""Which plugins are known to gate, remembered from their last good load."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from moryflow.base.paths import keep

from .sources import MOST_SOURCE

_GATE = re.compile(
    rb"""^\s*(async\s+)?def\s+tool_gate\b       # a gate in the source
    | ^gate\s*(:\s*bool\s*)?=\s*[Tt]rue\b     # declared, in the source or in plugin.toml
    | ["']tool_gate["']                       # hooks = ["tool_gate"], or specname="tool_gate"
    """,
    re.MULTILINE | re.VERBOSE,
)


class GateMemory:
    """Names by tier; of installed plugins also by environment, for two environments may share a home.

    A remembered plugin that is not found any more still counts: losing a gate by deleting its file must not pass
    unnoticed. It is forgotten once a person disables or uninstalls it by name.
    """

    def __init__(self, home: Path) -> None:
        self._file = home / "cache" / "gates.json"
        try:
            entries = json.loads(self._file.read_bytes())
            self._known = {(str(tier), str(place), str(name)) for tier, place, name in entries}
        except (OSError, ValueError, TypeError):
            self._known: set[tuple[str, str, str]] = set()
        self._saved = frozenset(self._known)

    def knows(self, tier: str, name: str) -> bool:
        """Whether `name` implemented a gate when it was last loaded."""
        return _key(tier, name) in self._known

    def names(self) -> list[tuple[str, str]]:
        """Return (tier, name) of all third-party plugins that are remembered for this environment."""
        here = {_key(tier, "")[:2] for tier in ("installed", "user")}
        return sorted((entry[0], entry[2]) for entry in self._known if entry[:2] in here)

    def note(self, tier: str, name: str, gates: bool) -> None:
        """Remember, or forget, after a good load."""
        (self._known.add if gates else self._known.discard)(_key(tier, name))

    def forget(self, name: str) -> None:
        """Forget `name` in every tier: a person said so."""
        self._known = {entry for entry in self._known if entry[2] != name}

    def save(self) -> None:
        """Write what changed; a home that cannot be written keeps what it had."""
        if frozenset(self._known) == self._saved:
            return
        if keep(self._file, json.dumps(sorted(self._known))):
            self._saved = frozenset(self._known)


def _key(tier: str, name: str) -> tuple[str, str, str]:
    return (tier, sys.prefix if tier == "installed" else "", name)


def looks_like_gate(*files: str) -> bool:
    """Whether a manifest, or the source of a plugin that could not be loaded, defines or declares a gate."""
    for file in filter(None, files):
        path = Path(file)
        for each in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
            try:
                if each.is_file() and _GATE.search(_beginning(each)):
                    return True
            except OSError:
                continue
    return False


def _beginning(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(MOST_SOURCE)

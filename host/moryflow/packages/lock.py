"""``plugins.lock`` in the home: what was installed, from where, its hash, and what a person agreed to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moryflow_sdk import ConfigError

from .distributions import normal
from .manifest_summary import Package
from .origins import Kind, PackageOrigin

FILE = "plugins.lock"
_VERSION = 1


@dataclass(frozen=True)
class Locked:
    """One installation a person agreed to.

    :param name: the distribution's, or ``plugins/NAME.py`` for a file of the home.
    :param hash: over what was installed; empty for an editable installation, whose files are meant to change.
    :param plugins: by name, the hooks, tools, services and capabilities that were shown.
    """

    name: str
    version: str
    kind: Kind
    origin: str
    hash: str
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    commit: str = ""

    @property
    def source(self) -> PackageOrigin:
        return PackageOrigin(self.kind, self.origin)

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


class Lockfile:
    """Reads and writes the lock; it is written only by commands a person typed."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    def read(self) -> dict[str, Locked]:
        """Return what is locked, by normal name.

        :raises ConfigError: the file is not one of ours.
        """
        try:
            content = json.loads(self.path.read_bytes())
            if content["v"] != _VERSION:
                raise ConfigError("it was written by a newer Moryflow", where=str(self.path), next_step="update moryflow")
            return {_key(name): Locked(name=name, **item) for name, item in content["installed"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            hint = "restore it, or move it away and agree again: moryflow plugin enable NAME"
            raise ConfigError("plugins.lock cannot be read", where=str(self.path), next_step=hint) from error

    def put(self, entry: Locked) -> None:
        """Note an installation."""
        self._change(lambda known: {**known, _key(entry.name): entry})

    def remove(self, name: str) -> None:
        """Forget an installation."""
        self._change(lambda known: {key: item for key, item in known.items() if key != _key(name)})

    def _change(self, change: Callable[[dict[str, Locked]], dict[str, Locked]]) -> None:
        from moryflow.base.atomic_write import locked, write_atomically

        with locked(self.path):
            known = change(self.read())
            rows = {item.name: {k: v for k, v in asdict(item).items() if k != "name"} for _, item in sorted(known.items())}
            text = json.dumps({"v": _VERSION, "installed": rows}, indent=2, ensure_ascii=False)
            write_atomically(self.path, f"{text}\n".encode())


def entry_for(package: Package, origin: PackageOrigin, *, commit: str = "") -> Locked:
    """Return the line of the lock for a package that was just agreed to."""
    plugins = {card.name: card.asks for card in package.cards}
    return Locked(package.name, package.version, origin.kind, origin.text, package.digest, plugins, commit)


def plugin_named(known: Mapping[str, Locked], name: str) -> Locked | None:
    """Return the installation called `name`, or the one that brings the plugin of that name."""
    if (found := known.get(_key(name))) is not None:
        return found
    return next((item for item in known.values() if name in item.plugins), None)


def _key(name: str) -> str:
    return name if "/" in name else normal(name)


__all__ = ["FILE", "Locked", "Lockfile", "entry_for", "plugin_named"]

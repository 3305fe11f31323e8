"""Load one plugin and nothing else, for the probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moryflow_sdk import HOOKS

from moryflow.hooks.plugin_set import ConfigReader, Implementation, LoadFailure, LoadRecord, Plugin, PluginSet, PluginSettings

from .discovery import Candidate
from .importer import Imported
from .load import Loading
from .manifest import Manifest


def load_alone(
    candidate: Candidate, *, home: Path, config: ConfigReader, mark: Callable[[str], None], failures: list[LoadFailure]
) -> PluginSet:
    """Load one plugin and nothing else, for the probe; nothing is remembered.

    :param mark: told when the plugin is imported and registration begins.
    :param failures: takes why it was not loaded.
    """
    loading = _Marked(home, PluginSettings(), config, None)
    loading.mark, loading.failures = mark, failures
    loading.add(candidate)
    return loading.close()


class _Marked(Loading):
    """Loads one plugin and says how far it is."""

    mark: Callable[[str], None]
    failures: list[LoadFailure]

    def close(self) -> PluginSet:
        """Return the set of what was loaded."""
        return self._closed({hook: tuple(i for i in self._all() if i.hook == hook) for hook in HOOKS})

    def _lost(self, candidate: Candidate, record: LoadRecord, failure: LoadFailure) -> LoadRecord:
        self.failures.append(failure)
        return super()._lost(candidate, record, failure)

    def _all(self) -> list[Implementation]:
        return [item for items in self._found.values() for item in items]

    def _build(
        self, candidate: Candidate, imported: Imported, base: Manifest | None, record: LoadRecord
    ) -> tuple[Plugin, LoadRecord]:
        self.mark("register")
        return super()._build(candidate, imported, base, record)

"""List all plugins with what is known about them, without importing third-party code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import open_regular

from moryflow.base.builtins import BUILTINS
from moryflow.config import Config
from moryflow.hooks.plugin_set import LoadFailure, LoadRecord
from moryflow.plugins import load_plugin_set
from moryflow.plugins.consent import Consents
from moryflow.plugins.discovery import Candidate, NameReserved, NotWanted, PluginChoice, PluginSettings, discover
from moryflow.plugins.importer import source_file
from moryflow.plugins.last_seen import GateMemory, LastLoad, key_of, looks_like_gate, recall, remember
from moryflow.plugins.load_failures import absent_gate, failed_record

from .code_facts import facts_of
from .distributions import Card, card_of
from .lock import Lockfile, folder_of

NEVER = "not loaded yet; the next run loads it, moryflow plugin check {name} tries it first"
CHANGED = "changed since it was last loaded; moryflow plugin check {name} tries it"
WAITING = "waits for your consent: moryflow plugin enable {name}"


@dataclass(frozen=True)
class Row:
    """One plugin that was found.

    :param record: its last load record, or one made from its metadata if it has never been loaded.
    :param known: its remembered last load; ``None`` if it has never been loaded.
    :param card: its manifest.
    """

    record: LoadRecord
    candidate: Candidate | None = None
    known: LastLoad | None = None
    card: Card | None = None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def package(self) -> str:
        """The distribution that the plugin is installed with; empty if it is not installed."""
        return self.candidate.package if self.candidate is not None else ""


def rows(home: Path, config: Config, settings: PluginSettings, development: Sequence[Path] = ()) -> list[Row]:
    """Return every plugin in loading order, then those that had a gate when they were last loaded and are missing.

    :param development: plugins under development elsewhere.
    """
    known = recall(home)
    reader = _RowReader(home, known, _builtins(home, config, known), settings)
    found = [reader.row(candidate) for candidate in discover(home, BUILTINS, development)]
    return [*found, *_claude_plugins(home), *_absent(home, found, settings)]


def _claude_plugins(home: Path) -> Iterable[Row]:
    """Yield a row for each plugin of another system; it is read in place, so that it has no load of its own."""
    with suppress(ConfigError):  # a lock that cannot be read is named elsewhere
        for entry in Lockfile(home).read().values():
            if entry.kind == "claude":
                folder = folder_of(home, entry.name)
                record = LoadRecord(next(iter(entry.plugins)), entry.version, "user", "loaded", f"claude:{entry.origin}")
                if not folder.is_dir():
                    lost = "its folder is gone"
                    record = record._replace(status="failed", stage="discover", error=lost, hint="moryflow plugin sync")
                yield Row(record._replace(file=str(folder)))


def _builtins(home: Path, config: Config, known: Mapping[str, LastLoad]) -> dict[str, LoadRecord]:
    """Load the built-ins whose last load is unknown, and remember them. They are neither started nor asked to contribute."""
    missing = [dotted for dotted in BUILTINS if key_of("builtin", "", dotted) not in known]
    if not missing:
        return {}
    plugin_set = load_plugin_set(home=home, builtins=missing, settings=PluginSettings(safe_mode=True), config=config)
    remember(plugin_set)
    return {record.source: record for record in plugin_set.records if record.tier == "builtin"}


class _RowReader:
    """Makes the row of each candidate. The user's choice, such as disabling it, comes before the result of its last load."""

    def __init__(
        self, home: Path, known: Mapping[str, LastLoad], own: Mapping[str, LoadRecord], settings: PluginSettings
    ) -> None:
        self._known = known
        self._own = own
        self._choice = PluginChoice(settings)
        self._consents = Consents(home)

    def row(self, candidate: Candidate) -> Row:
        before = self._known.get(key_of(candidate.tier, candidate.name, candidate.source))
        base = before.record if before else self._own.get(candidate.source) or _unloaded_record(candidate)
        card = manifest_card(candidate, read_code=before is None)
        if before is None and card is not None:
            base = base._replace(hooks=card.hooks, tools=card.tools, services=card.services, gate=card.gate or base.gate)
        return Row(self._state(base, candidate, before), candidate, before, card)

    def _state(self, base: LoadRecord, candidate: Candidate, before: LastLoad | None) -> LoadRecord:
        if isinstance(candidate.problem, NameReserved):
            return failed_record(base, candidate.problem)
        try:
            self._choice.check(candidate, base.name)
        except NotWanted as reason:
            return base._replace(status="skipped", reason=str(reason), error="", stage="")
        except LoadFailure as conflict:
            return base._replace(status="failed", stage=conflict.stage, error=conflict.message, hint=conflict.hint)
        if candidate.problem is not None:
            return failed_record(base, candidate.problem)
        return base if candidate.tier == "builtin" else self._third_party_state(base, candidate, before)

    def _third_party_state(self, base: LoadRecord, candidate: Candidate, before: LastLoad | None) -> LoadRecord:
        if candidate.tier == "user" and self._consents.is_waiting(candidate.target):
            return _pending_record(base, WAITING)
        if before is None:
            return _pending_record(base, NEVER)
        return _pending_record(base, CHANGED) if before.changed else base


def _pending_record(base: LoadRecord, reason: str) -> LoadRecord:
    return base._replace(status="pending", reason=reason.format(name=base.name), error="", stage="", hint="")


def _unloaded_record(candidate: Candidate) -> LoadRecord:
    record = LoadRecord(candidate.name, candidate.version, candidate.tier, "pending", candidate.source)
    gate = looks_like_gate(candidate.manifest, candidate.file if candidate.tier == "user" else "")
    return record._replace(file=candidate.file, line=candidate.line, gate=gate)


def manifest_card(candidate: Candidate, *, read_code: bool = False) -> Card | None:
    """Return the card of a candidate's ``plugin.toml``; ``None`` if it has none or it cannot be read.

    :param read_code: read the hooks and tools from the code if the manifest leaves them to it.
    """
    if not candidate.manifest:
        return None
    try:
        with open_regular(candidate.manifest) as stream:
            data = stream.read()
    except OSError:
        return None
    card = card_of(candidate.name, candidate.target, candidate.version, data)
    if not (card.derived and read_code):
        return card
    file = Path(source_file(candidate))
    paths = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    facts = facts_of({str(path): path.read_bytes() for path in paths if path.is_file()})
    return replace(card, hooks=facts.hooks, tools=facts.tools)


def _absent(home: Path, found: Iterable[Row], settings: PluginSettings) -> Iterable[Row]:
    """Yield a row for each plugin that had a gate when it was last loaded and is not found any more."""
    here = {row.name for row in found}
    for tier, name in GateMemory(home).names():
        if name in here or name in settings.disabled:
            continue
        yield Row(absent_gate(tier, name))

"""Every plugin there is and what is known of it, without importing a third party's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from moryflow.builtins import BUILTINS
from moryflow.config import Config
from moryflow.consent import Consents
from moryflow.kernel.plugins import PluginSettings, load_plugin_set
from moryflow.kernel.records import LoadRecord
from moryflow.loading.discovery import Candidate, discover
from moryflow.loading.gate_memory import GateMemory, looks_like_gate

from .cards import Card, card_of
from .known import Known, key_of, recall

NEVER = "not loaded yet; the next run loads it, moryflow plugin check {name} tries it first"
CHANGED = "changed since it was last loaded; moryflow plugin check {name} tries it"
WAITING = "waits for your consent: moryflow plugin enable {name}"


@dataclass(frozen=True)
class Row:
    """One plugin that was found.

    :param record: what became of it when it was last loaded, or what is known of it without that.
    :param known: the remembered load; ``None`` when it has never been loaded as it is.
    :param card: its manifest.
    """

    record: LoadRecord
    candidate: Candidate | None = None
    known: Known | None = None
    card: Card | None = None
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def name(self) -> str:
        return self.record.name


def rows(home: Path, config: Config, settings: PluginSettings) -> list[Row]:
    """Return every plugin in the order in which they are loaded, what is absent though it judged calls included."""
    known = recall(home)
    own = _builtins(home, config, known)
    consents, taken = Consents(home), dict[str, Candidate]()
    found = [_row(candidate, known, own, settings, consents, taken) for candidate in discover(home, BUILTINS)]
    return [*found, *_absent(home, found, settings)]


def _builtins(home: Path, config: Config, known: Mapping[str, Known]) -> dict[str, LoadRecord]:
    """Load those of our own that nothing is known of; they do not begin and do not contribute."""
    missing = [dotted for dotted in BUILTINS if key_of("builtin", "", dotted) not in known]
    if not missing:
        return {}
    plugin_set = load_plugin_set(home=home, builtins=missing, settings=PluginSettings(safe_mode=True), config=config)
    return {record.source: record for record in plugin_set.records if record.tier == "builtin"}


def _row(
    candidate: Candidate,
    known: Mapping[str, Known],
    own: Mapping[str, LoadRecord],
    settings: PluginSettings,
    consents: Consents,
    taken: dict[str, Candidate],
) -> Row:
    """Say what is known of one candidate; what a person wants comes first."""
    before = known.get(key_of(candidate.tier, candidate.name, candidate.source))
    base = before.record if before else own.get(candidate.source) or _unknown(candidate)
    card = manifest_card(candidate)
    if before is None and card is not None:
        base = replace(base, hooks=card.hooks, tools=card.tools, services=card.services, gate=card.gate)
    row = Row(base, candidate, before, card, before.tokens if before else {})
    if reason := _unwanted(base.name, candidate, settings):
        return replace(row, record=replace(base, status="skipped", reason=reason, error="", stage=""))
    other = taken.setdefault(base.name, candidate)
    if other is not candidate and (before is None or before.record.status != "failed"):
        error = f"the name {base.name!r} is taken by the {other.tier} plugin {other.source}, which comes first"
        return replace(row, record=replace(base, status="failed", stage="discover", error=error))
    if candidate.problem is not None:
        problem = candidate.problem
        place = {"file": problem.file or base.file, "line": problem.line, "hint": problem.hint}
        return replace(row, record=replace(base, status="failed", stage="discover", error=problem.message, **place))
    return replace(row, record=_state(base, candidate, before, consents))


def _state(base: LoadRecord, candidate: Candidate, before: Known | None, consents: Consents) -> LoadRecord:
    if candidate.tier == "user" and consents.is_waiting(candidate.target):
        return replace(base, status="pending", reason=WAITING.format(name=base.name), error="", stage="")
    if before is None and candidate.tier != "builtin":
        return replace(base, status="pending", reason=NEVER.format(name=base.name))
    if before is not None and before.changed and candidate.tier != "builtin":
        return replace(base, status="pending", reason=CHANGED.format(name=base.name), error="", stage="")
    return base


def _unwanted(name: str, candidate: Candidate, settings: PluginSettings) -> str:
    third = candidate.tier != "builtin"
    if name in settings.disabled:
        return "disabled"
    if third and settings.safe_mode:
        return "safe mode loads built-in plugins only"
    if third and settings.only is not None and name not in settings.only:
        return "not among the plugins asked for (MORYFLOW_PLUGINS)"
    return ""


def _unknown(candidate: Candidate) -> LoadRecord:
    gate = looks_like_gate(candidate.manifest, candidate.file if candidate.tier == "user" else "")
    place = {"file": candidate.file, "line": candidate.line}
    return LoadRecord(
        candidate.name,
        candidate.version,
        candidate.tier,
        "pending",
        candidate.source,
        gate=gate,
        **place,  # type: ignore[arg-type]
    )


def manifest_card(candidate: Candidate) -> Card | None:
    """Return what the ``plugin.toml`` of a candidate says, ``None`` when it has none."""
    if not candidate.manifest:
        return None
    try:
        data = Path(candidate.manifest).read_bytes()
    except OSError:
        return None
    return card_of(candidate.name, candidate.target, candidate.version, data)


def _absent(home: Path, found: Iterable[Row], settings: PluginSettings) -> Iterable[Row]:
    """Name what judged calls when it was last loaded and is not there any more."""
    here = {row.name for row in found}
    for tier, name in GateMemory(home).names():
        if name in here or name in settings.disabled:
            continue
        error = "it judged tool calls when it was last loaded, and is not there any more"
        hint = f"put it back, or: moryflow plugin disable {name}"
        kept = "user" if tier == "user" else "installed"
        yield Row(LoadRecord(name, "", kept, "failed", "last load", "discover", error, hint=hint, gate=True))


__all__ = ["Row", "manifest_card", "rows"]

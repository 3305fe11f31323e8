"""The plan of a past compaction, as the first plugin saw it, rebuilt from the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moryflow_sdk import SystemPrompt

from moryflow.compaction.planning import in_view
from moryflow.compaction.summarize import first_params
from moryflow.compaction.writing import first_plan
from moryflow.config.schema import COMPACTION_PATH, CompactionSettings

from .moments import UNKNOWN, Base

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo

    from moryflow.config import Config

    from .recorded import RecordedSession, RecordedTurn


def compaction_base(recorded: RecordedSession, turn: RecordedTurn, config: Config, model: ModelInfo | None) -> Base:
    """Return the plan and the parameters of the compaction that `turn` is; instructions and limits are those of today.

    :param model: what wrote the summary; ``None`` when it is not known here.
    """
    settings = CompactionSettings.model_validate(dict(config.section(COMPACTION_PATH)))
    params = first_params(model, settings.max_output_tokens) if model is not None else UNKNOWN
    return Base(SystemPrompt(), params, _plan(recorded, turn, settings))


def _plan(recorded: RecordedSession, turn: RecordedTurn, settings: CompactionSettings) -> Any:
    begun = next((event.data for event in turn.events if event.type == "compaction" and "anchor" in event.data), None)
    if begun is None:
        return UNKNOWN
    _, visible, previous = in_view(recorded.path(begun["anchor"]))
    at = next((place for place, node in enumerate(visible) if node.id == begun["first_kept"]), None)
    if at is None:
        return UNKNOWN
    focus = str(begun.get("focus", ""))
    return first_plan(visible[:at], begun["first_kept"], previous, begun["tokens_before"], settings, focus)

"""What `agents.runtime.titles` may say."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class TitleSettings(BaseModel):
    """How sessions get their titles.

    :ivar model: a cheap model that writes them, ``session`` for the session's own; without one, the prompt's first words.
        It writes the summaries that a person asks for, too; without one, the session's own does.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)

    enabled: bool = True
    model: str | None = None

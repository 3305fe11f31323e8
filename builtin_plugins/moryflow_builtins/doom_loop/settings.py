"""What `agents.runtime.doomLoop` may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Limit = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]


class DoomLoopSettings(BaseModel):
    """When a run counts as going in circles.

    :ivar max_attempts: how often a loop may be refused, or passed over in full access, in one run; the next hit ends it.
        What a person agrees to does not count.
    :ivar max_tool_calls: calls a run may make before somebody is asked.
    :ivar same_tool_threshold: the call that makes this many in a row with the same tool and effect is asked about.
    :ivar max_signature_bytes: larger arguments are not compared; the tool's name alone counts.
    :ivar cooldown_tool_calls: calls after a continuation that are not checked.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)

    max_attempts: Limit = 3
    max_tool_calls: Limit = 60
    same_tool_threshold: Limit = 5
    max_signature_bytes: Limit = 8192
    cooldown_tool_calls: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 3
    enabled: Annotated[bool, Field(strict=True)] = True

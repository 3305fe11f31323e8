"""What `agents.runtime.instructions` may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class InstructionSettings(BaseModel):
    """Which instruction files are read, and how much of them.

    :ivar files: globs of more files, relative to the vault, absolute, or beginning with ``~``.
    :ivar claude: also ``~/.claude/CLAUDE.md``.
    :ivar max_bytes: of one file, with what it includes; the rest is left out and said so.
    :ivar total_bytes: of all together; files that do not fit any more are left out.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)

    enabled: bool = True
    files: tuple[str, ...] = ()
    claude: bool = True
    max_bytes: Annotated[int, Field(gt=0, le=16 * 1024 * 1024, strict=True)] = 32 * 1024
    total_bytes: Annotated[int, Field(gt=0, le=16 * 1024 * 1024, strict=True)] = 64 * 1024

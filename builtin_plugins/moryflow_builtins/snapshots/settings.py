"""What `agents.runtime.snapshots` may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class SnapshotSettings(BaseModel):
    """Which files can be brought back.

    :ivar untracked: also files that the vault's own git does not track; without such a repository all files count.
    :ivar ignored: also files that ``.gitignore`` leaves out.
    :ivar max_file_bytes: larger files are never recorded.
    :ivar timeout: seconds that git may take for one snapshot; a vault that takes longer is not recorded for a day.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)

    enabled: bool = True
    untracked: bool = True
    ignored: bool = False
    max_file_bytes: Annotated[int, Field(gt=0, le=2**30, strict=True)] = 10 * 1024 * 1024
    timeout: Annotated[float, Field(gt=0, le=3600, strict=True)] = 20.0

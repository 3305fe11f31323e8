"""What a person can say about compaction: the section ``agents.runtime.compaction``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moryflow.config.schema import Settings

PATH = "agents.runtime.compaction"
Positive = Annotated[int, Field(gt=0, le=100_000_000)]
Count = Annotated[int, Field(ge=0, le=100_000_000)]


class CompactionSettings(Settings):
    """When long conversations are shortened, and by how much."""

    enabled: bool = Field(default=True, description="false: never by itself; a person can still compact")
    auto: bool = Field(default=True, description="false: as enabled=false")
    mode: Literal["auto", "before", "background", "off"] = Field(default="auto", description="when a summary is written")
    prune: bool = Field(default=True, description="replace old tool outputs by one line")
    policy: Literal["share", "buffer", "reserve"] = Field(default="share", description="what counts as too long")
    fallback_char_limit: Positive = Field(default=120_000, description="characters, where the window is unknown")
    output_budget: Positive | None = Field(default=None, description="tokens kept for the answer")
    buffer: Count = Field(default=20_000, description="tokens below the window, for the policy buffer")
    reserve: Count = Field(default=16_384, description="tokens below the window, for the policy reserve")
    keep_recent_tokens: Positive = Field(default=20_000, description="what stays verbatim at the end")
    protected_turns: Positive = Field(default=3, description="the newest turns stay verbatim where they fit")
    prune_protect_tokens: Count = Field(default=40_000, description="the newest tool outputs are not pruned")
    prune_minimum_tokens: Positive = Field(default=20_000, description="prune only when it saves this much")
    protected_tools: tuple[str, ...] = Field(
        default=("task", "tasks_*", "write", "edit", "move", "delete"), description="outputs never pruned, globs"
    )
    estimator: str = Field(default="chars", description="chars, script, or the name of a plugin with count_tokens")
    model: str | None = Field(default=None, min_length=1, description="the model that summarises; else the session's")
    instructions: str = Field(default="", description="replaces the prompt of the summarizer")
    max_output_tokens: Positive = Field(default=2048, description="of a summary")
    timeout: Annotated[float, Field(gt=0, le=3600)] = Field(default=180.0, description="seconds for a whole compaction")

    @property
    def automatic(self) -> bool:
        """Whether anything happens without being asked for."""
        return self.enabled and self.auto and self.mode != "off"

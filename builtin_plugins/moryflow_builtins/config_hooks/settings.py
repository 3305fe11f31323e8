"""What `agents.runtime.hooks` may say.

Aliases are written out and nothing is built before it is needed: this is imported at every start.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

ToolName = Annotated[str, Field(min_length=1, description="a tool's name, or a glob over names")]


class SystemText(BaseModel, frozen=True, defer_build=True):
    """Text for the system prompt, and where it goes."""

    mode: Literal["append", "prepend", "replace"] = "append"
    text: str = ""


class Params(BaseModel, frozen=True, defer_build=True):
    """Parameters that override the model's; one that is absent is left as it is."""

    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, strict=True)] | None = Field(default=None, alias="topP")
    max_tokens: Annotated[int, Field(gt=0, le=10_000_000, strict=True)] | None = Field(default=None, alias="maxTokens")


class ChatHooks(BaseModel, frozen=True, defer_build=True):
    """What happens to every model call."""

    system: SystemText | None = None
    params: Params | None = None


class Before(BaseModel, frozen=True, defer_build=True):
    """Arguments that a call gets when it does not give them itself."""

    tool: ToolName
    merge_input: dict[str, Any] = Field(default={}, alias="mergeInput")


class After(BaseModel, frozen=True, defer_build=True):
    """Text around what a tool returned, taken as it is."""

    tool: ToolName
    prepend_text: str = Field(default="", alias="prependText")
    append_text: str = Field(default="", alias="appendText")


class ToolHooks(BaseModel, frozen=True, defer_build=True):
    """What happens to tool calls; entries apply in the order they are written."""

    before: tuple[Before, ...] = ()
    after: tuple[After, ...] = ()


class HookSettings(BaseModel, frozen=True, defer_build=True):
    """Hooks that need no code."""

    chat: ChatHooks | None = None
    tool: ToolHooks | None = None

"""What `agents.runtime.hooks` may say (S0.96-S0.100).

Only the outermost is a model: typed dictionaries cost nothing until a configuration has hooks, and are checked the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

ToolName = Annotated[str, Field(min_length=1, description="a tool's name, or a glob over names")]


class SystemText(TypedDict, total=False):
    """Text for the system prompt, and where it goes; ``append`` unless it says otherwise."""

    mode: Literal["append", "prepend", "replace"]
    text: str


class Params(TypedDict, total=False):
    """Parameters that override the model's; one that is absent is left as it is."""

    temperature: Annotated[float, Field(ge=0, le=2, strict=True)]
    topP: Annotated[float, Field(ge=0, le=1, strict=True)]
    maxTokens: Annotated[int, Field(gt=0, strict=True)]


class ChatHooks(TypedDict, total=False):
    """What happens to every model call."""

    system: SystemText
    params: Params


class Before(TypedDict, total=False):
    """Arguments that a call gets when it does not give them itself."""

    tool: Required[ToolName]
    mergeInput: dict[str, Any]


class After(TypedDict, total=False):
    """Text around what a tool returned, taken as it is (D53)."""

    tool: Required[ToolName]
    prependText: str
    appendText: str


class ToolHooks(TypedDict, total=False):
    """What happens to tool calls; entries apply in the order they are written."""

    before: tuple[Before, ...]
    after: tuple[After, ...]


class HookSettings(BaseModel):
    """Hooks that need no code."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    chat: ChatHooks = {}
    tool: ToolHooks = {}

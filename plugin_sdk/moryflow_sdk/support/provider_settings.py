"""``models`` in the configuration: services of a user's own, and what a user knows better about a model.

Shared by the providers, so that one entry means the same whoever serves the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from moryflow_sdk.models import ModelInfo

_CONFIG = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)


class ModelLimits(BaseModel):
    """What is known about one model; prices are US dollars per million tokens."""

    model_config = _CONFIG

    custom_context: int | None = Field(default=None, gt=0, le=100_000_000, strict=True)
    context_window: int | None = Field(default=None, gt=0, le=100_000_000, strict=True)
    max_output: int | None = Field(default=None, gt=0, le=100_000_000, strict=True)
    input_price: float | None = Field(default=None, ge=0, le=1_000_000, strict=True)
    output_price: float | None = Field(default=None, ge=0, le=1_000_000, strict=True)
    cached_price: float | None = Field(default=None, ge=0, le=1_000_000, strict=True)
    tools: bool | None = None
    images: bool | None = None
    note: str | None = None


class ProviderSettings(BaseModel):
    """One service: ``models.providers.<prefix>``.

    :param managed: limits come from the registry only; ``customContext`` is ignored.
    :param system_messages: whether the service takes ``several``, or ``one``; else what is known about it.
    """

    model_config = _CONFIG

    base_url: str = ""
    api_key_env: str = ""
    api_key: str = Field(default="", repr=False)
    headers: Mapping[str, str] = Field(default_factory=dict[str, str], repr=False)
    models: Mapping[str, ModelLimits] = Field(default_factory=dict[str, ModelLimits])
    managed: bool = False
    send_reasoning: bool = False
    output_field: str = ""
    system_messages: Literal["one", "several"] | None = None

    @field_validator("base_url")
    @classmethod
    def _has_scheme(cls, value: str) -> str:
        if value and not value.lower().startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        return value.rstrip("/")


class ModelsSettings(BaseModel):
    """The section ``models``.

    :param timeout: seconds without a byte until a call counts as stalled.
    """

    model_config = _CONFIG

    providers: Mapping[str, ProviderSettings] = Field(default_factory=dict[str, ProviderSettings])
    timeout: float = Field(default=300.0, gt=0, le=3600, strict=True)


def with_limits(info: ModelInfo, settings: ProviderSettings) -> ModelInfo:
    """Return `info` with what `settings` say about the model.

    The window is ``customContext`` first, then ``contextWindow``, then what the registry says; of a managed
    service it is what the registry says, ``customContext`` is not read.
    """
    own = settings.models.get(info.name, ModelLimits())
    window = own.context_window if settings.managed else own.custom_context or own.context_window
    changes = {
        "context_window": window,
        "max_output": own.max_output,
        "input_price": own.input_price,
        "output_price": own.output_price,
        "cached_price": own.cached_price,
        "tools": own.tools,
        "images": own.images,
        "note": own.note,
        "managed": settings.managed or None,
    }
    return info.replace(**{name: value for name, value in changes.items() if value is not None})

"""``models`` in the configuration: services of a user's own, and what a user knows better about a model.

Shared by the providers, so that one entry means the same whoever serves the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from moryflow_sdk.models import ModelInfo
from moryflow_sdk.support.settings import Meta, Settings

Tokens = Annotated[int, Meta(gt=0, le=100_000_000, strict=True)]
Price = Annotated[float, Meta(ge=0, le=1_000_000, strict=True)]


class ModelLimits(Settings):
    """What is known about one model; prices are US dollars per million tokens.

    :param custom_context: tokens of the window, before what is known about the model.
    :param context_window: tokens of prompt and answer together.
    :param max_output: tokens of one answer.
    :param input_price: per million tokens of the prompt.
    :param output_price: per million tokens of the answer.
    :param cached_price: per million tokens of the prompt that the service had cached.
    :param tools: whether it can call tools.
    :param images: whether it can see images.
    :param note: shown by ``moryflow model list``.
    """

    custom_context: Tokens | None = None
    context_window: Tokens | None = None
    max_output: Tokens | None = None
    input_price: Price | None = None
    output_price: Price | None = None
    cached_price: Price | None = None
    tools: bool | None = None
    images: bool | None = None
    note: str | None = None


def _address(value: str) -> str:
    if value and not value.lower().startswith(("http://", "https://")):
        raise ValueError("an address begins with http:// or https://")
    return value.rstrip("/")


class ProviderSettings(Settings):
    """One service: ``models.providers.<prefix>``.

    :param managed: limits come from the registry only; ``customContext`` is ignored.
    :param system_messages: whether the service takes ``several``, or ``one``; else what is known about it.
    :param base_url: the address, such as ``http://127.0.0.1:8080/v1``.
    :param api_key_env: the environment variable that holds the key.
    :param api_key: the key itself; a variable is safer.
    :param headers: sent with every request.
    :param send_reasoning: send the model its earlier reasoning back.
    :param output_field: name of the field that limits the answer, ``max_tokens`` or ``max_completion_tokens``.
    """

    base_url: Annotated[str, Meta(then=_address)] = ""
    api_key_env: str = ""
    api_key: str = ""
    headers: Mapping[str, str] = {}
    models: Mapping[str, ModelLimits] = {}
    managed: bool = False
    send_reasoning: bool = False
    output_field: str = ""
    system_messages: Literal["one", "several"] | None = None

    def __repr__(self) -> str:  # without the key and the headers
        return f"ProviderSettings(base_url={self.base_url!r})"


class ModelsSettings(Settings):
    """The section ``models``.

    :param timeout: seconds without a byte until a call counts as stalled.
    """

    providers: Mapping[str, ProviderSettings] = {}
    timeout: Annotated[float, Meta(gt=0, le=3600, strict=True)] = 300.0


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

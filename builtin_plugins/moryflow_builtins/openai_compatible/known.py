"""Windows and prices of common models.

Source: the table that litellm 1.106 ships (``model_prices_and_context_window_backup.json``, November 2026), US dollars
per million tokens. ``models.providers.<prefix>.models`` in the configuration overrides it; a model that is not here works
as well, its window and price are then unknown.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Known(NamedTuple):
    """Window (prompt and answer together), longest answer, prices of input, output and cached input, sees images."""

    window: int
    output: int
    input_price: float | None = None
    output_price: float | None = None
    cached_price: float | None = None
    images: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ``ModelInfo``."""
        return {
            "context_window": self.window,
            "max_output": self.output,
            "input_price": self.input_price,
            "output_price": self.output_price,
            "cached_price": self.cached_price,
            "images": self.images,
        }


MODELS: dict[str, Known] = {
    "openai/gpt-4.1": Known(1_047_576, 32_768, 2.0, 8.0, 0.5, True),
    "openai/gpt-4.1-mini": Known(1_047_576, 32_768, 0.4, 1.6, 0.1, True),
    "openai/gpt-4.1-nano": Known(1_047_576, 32_768, 0.1, 0.4, 0.025, True),
    "openai/gpt-4o": Known(128_000, 16_384, 2.5, 10.0, 1.25, True),
    "openai/gpt-4o-mini": Known(128_000, 16_384, 0.15, 0.6, 0.075, True),
    "openai/gpt-5": Known(400_000, 128_000, 1.25, 10.0, 0.125, True),
    "openai/gpt-5-mini": Known(400_000, 128_000, 0.25, 2.0, 0.025, True),
    "openai/gpt-5-nano": Known(400_000, 128_000, 0.05, 0.4, 0.005, True),
    "openai/gpt-5.1": Known(400_000, 128_000, 1.25, 10.0, 0.125, True),
    "openai/gpt-5.2": Known(400_000, 128_000, 1.75, 14.0, 0.175, True),
    "openai/gpt-5.4": Known(1_050_000, 128_000, 2.5, 15.0, 0.25, True),
    "openai/gpt-5.4-mini": Known(400_000, 128_000, 0.75, 4.5, 0.075, True),
    "openai/gpt-5.4-nano": Known(400_000, 128_000, 0.2, 1.25, 0.02, True),
    "openai/gpt-5.5": Known(1_050_000, 128_000, 5.0, 30.0, 0.5, True),
    "openai/gpt-5.6": Known(1_050_000, 128_000, 4.0, 20.0, 0.4, True),
    "openai/gpt-5.6-sol": Known(1_050_000, 128_000, 4.0, 20.0, 0.4, True),
    "openai/gpt-5.6-terra": Known(1_050_000, 128_000, 2.0, 12.0, 0.2, True),
    "openai/gpt-5.6-luna": Known(1_050_000, 128_000, 0.2, 1.2, 0.02, True),
    "openai/o3": Known(200_000, 100_000, 2.0, 8.0, 0.5, True),
    "openai/o4-mini": Known(200_000, 100_000, 1.1, 4.4, 0.275, True),
    "deepseek/deepseek-flash": Known(1_000_000, 393_216, 0.3, 1.2, 0.006, True),
    "deepseek/deepseek-v4-flash": Known(1_000_000, 393_216, 0.3, 1.2, 0.006, True),
    "mistral/mistral-large-latest": Known(262_144, 262_144, 0.5, 1.5, 0.05, True),
    "mistral/mistral-medium-latest": Known(262_144, 262_144, 1.5, 7.5, 0.15, True),
    "mistral/mistral-small-latest": Known(262_144, 262_144, 0.15, 0.6, 0.015, True),
    "mistral/devstral-latest": Known(256_000, 256_000, 0.4, 2.0, 0.04),
    "groq/openai/gpt-oss-120b": Known(131_072, 65_536, 0.15, 0.6, 0.075),
    "groq/openai/gpt-oss-20b": Known(131_072, 65_536, 0.075, 0.3, 0.0375),
    "cerebras/gpt-oss-120b": Known(131_072, 32_768, 0.35, 0.75),
    "xai/grok-4.7": Known(500_000, 500_000, 2.0, 6.0, 0.5, True),
    "xai/grok-4.6": Known(500_000, 500_000, 2.0, 6.0, 0.5, True),
    "xai/grok-4.3": Known(1_000_000, 1_000_000, 1.25, 2.5, 0.2, True),
    "moonshot/kimi-k3": Known(1_048_576, 1_048_576, 3.0, 15.0, 0.3, True),
    "moonshot/kimi-k2.6": Known(262_144, 262_144, 0.95, 4.0, 0.16, True),
    "zai/glm-5.3": Known(1_000_000, 128_000, 1.4, 4.4, 0.26),
    "zai/glm-4.7": Known(200_000, 128_000, 0.6, 2.2, 0.11),
}


def known(model: str) -> Known | None:
    """Return what is known about `model`; a dated name (``gpt-4.1-2025-04-14``) counts as the undated one."""
    while model:
        found = MODELS.get(model)
        if found is not None:
            return found
        model, dash, last = model.rpartition("-")
        if not dash or not last.isdecimal():
            return None
    return None

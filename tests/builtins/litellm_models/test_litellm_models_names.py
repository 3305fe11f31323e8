"""Which names are litellm's, what is known of their models, and how litellm is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from moryflow_builtins.litellm_models import LitellmModels
from moryflow_sdk import ModelError, ModelProvider, ModelRequest
from moryflow_sdk.support.settings import ModelsSettings


def names() -> LitellmModels:
    return LitellmModels(ModelsSettings(), {"ANTHROPIC_API_KEY": "k"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("anthropic/claude-sonnet-5", "anthropic/claude-sonnet-5"),
        ("claude-sonnet-5", "anthropic/claude-sonnet-5"),
        ("gemini/anything", "gemini/anything"),
        ("litellm/novita/x", "litellm/novita/x"),
        ("bedrock/anthropic.claude", "bedrock/anthropic.claude"),
        ("claude-sonet-5", None),
        ("openai/gpt-4.1", None),
        ("gpt-4.1", None),
        ("script:x", None),
        ("local", None),
        ("anthropic/", None),
    ],
)
def test_a_name_is_litellms_or_nobodys(name: str, expected: str | None) -> None:
    """A name that is nearly right must not reach a service (S4.2)."""
    info = names().find(name)
    assert (info.id if info else None) == expected


def test_prices_and_window_are_known_without_importing_litellm() -> None:
    """The table is a file (S2.26)."""
    info = names().find("claude-sonnet-4-6")
    assert info is not None and (info.context_window, info.input_price, info.images) == (1_000_000, 3.0, True)


def test_the_first_key_decides_when_nobody_chose() -> None:
    """No question, no network (ARCHITECTURE 8)."""
    assert names().default({"GEMINI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}) == "anthropic/claude-sonnet-5"
    assert names().default({"GOOGLE_API_KEY": "k"}) == "gemini/gemini-flash-latest"
    assert names().default({}) is None
    assert isinstance(names(), ModelProvider)


async def test_a_missing_key_is_named_before_litellm_is_loaded() -> None:
    """Nobody should wait seconds for that (S4.7)."""
    serving = LitellmModels(ModelsSettings(), {})
    model = serving.find("anthropic/claude-x")
    assert model is not None
    with pytest.raises(ModelError) as caught:
        await anext(serving.stream(ModelRequest(model=model, messages=())))
    assert caught.value.code == "missing" and "ANTHROPIC_API_KEY" in caught.value.next_step


def test_litellm_loads_no_dotenv_prints_nothing_asks_no_one_and_leaves_the_environment_alone(tmp_path: Path) -> None:
    """A repository must not bring keys or endpoints (R13, R23); standard output belongs to the answer."""
    (tmp_path / ".env").write_text("ANTHROPIC_API_BASE=http://127.0.0.1:9\nFROM_DOTENV=1\n", encoding="utf-8")
    code = """
import os, socket, sys
asked = []
real = socket.getaddrinfo
socket.getaddrinfo = lambda *a, **k: (asked.append(a[0]), real(*a, **k))[1]
before = dict(os.environ)
from moryflow_builtins.litellm_models import engine
from moryflow_builtins.litellm_models import LitellmModels
from moryflow_sdk.support.settings import ModelsSettings
provider = LitellmModels(ModelsSettings(), {})
assert provider.find("anthropic/claude-sonnet-5") and provider.default({}) is None
assert "litellm" not in sys.modules, "too early"
provider.prepare(provider.find("anthropic/x"))
litellm = engine.start().result(300)
assert "FROM_DOTENV" not in os.environ and "ANTHROPIC_API_BASE" not in os.environ
changed = {k for k in {*before, *os.environ} if before.get(k) != os.environ.get(k)}
assert not any("LITELLM" in k or "DOTENV" in k for k in changed), changed
assert not asked, asked
"""
    environ = {name: value for name, value in os.environ.items() if "LITELLM" not in name}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

"""Choosing a model and trying again."""

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.kernel import model_call
from moryflow.kernel.model_call import stream, wait_before
from moryflow.runtime.selection import Models
from moryflow_sdk import BaseProvider, ConfigError, Finished, ModelError, ModelInfo, ModelRequest, Status, TextDelta
from moryflow_sdk.support.settings import ModelsSettings


class Flaky(BaseProvider):
    """Fails with the given errors, then answers."""

    name = "flaky"

    def __init__(self, *errors, before=()):
        self.errors = list(errors)
        self.before = before
        self.asked = 0

    def find(self, model):
        return ModelInfo(id=model, name=model, provider=self.name) if model.startswith("flaky/") else None

    def default(self, environ):
        return "flaky/x" if "FLAKY_KEY" in environ else None

    async def stream(self, request):
        self.asked += 1
        for event in self.before:
            yield event
        if self.errors:
            raise self.errors.pop(0)
        yield TextDelta(text="ok")
        yield Finished()


REQUEST = ModelRequest(model=ModelInfo(id="flaky/x", name="x", provider="flaky"), messages=())


@pytest.fixture
def quick(monkeypatch):
    """Keep the doubling, shorten the second."""
    monkeypatch.setattr(model_call, "FIRST_WAIT", 0.001)


async def collect(provider):
    waits = []

    async def waiting(attempt, seconds, reason):
        waits.append((attempt, seconds, reason))

    events = [event async for event in stream(provider, REQUEST, waiting)]
    return events, waits


async def test_rate_limit_overload_and_timeout_are_tried_again_visibly(quick):
    """Exponential backoff on rate limit, overload, timeout; each wait is announced (S4.7, D55)."""
    errors = [ModelError("slow down", code=code) for code in ("rate_limit", "overloaded", "timeout")]
    provider = Flaky(*errors)
    events, waits = await collect(provider)
    assert [type(event) for event in events] == [TextDelta, Finished]
    assert provider.asked == 4
    assert [attempt for attempt, _, _ in waits] == [2, 3, 4]


@pytest.mark.parametrize("code", ["auth", "bad_request", "context", "not_found", "content_filter"])
async def test_what_cannot_succeed_is_not_tried_again(code, quick):
    """No retry for authentication, bad requests or too long prompts (D55)."""
    provider = Flaky(ModelError("no", code=code))
    with pytest.raises(ModelError):
        await collect(provider)
    assert provider.asked == 1


async def test_five_tries_are_the_end(quick):
    """Five tries, then the error (D55)."""
    provider = Flaky(*[ModelError("busy", code="overloaded") for _ in range(9)])
    with pytest.raises(ModelError):
        await collect(provider)
    assert provider.asked == 5


@pytest.mark.parametrize("code", ["incomplete", "timeout", "overloaded", "unreachable"])
async def test_an_answer_that_broke_off_in_the_middle_is_asked_for_again(code, quick):
    """A reset, a stall or an error behind the first words ends nothing; the other side of each wait is another answer (D55)."""
    provider = Flaky(*[ModelError("reset", code=code)] * 4, before=(TextDelta(text="half"),))
    events, waits = await collect(provider)
    assert provider.asked == 5 and len(waits) == 4
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["half"] * 5 + ["ok"]


async def test_status_alone_is_not_an_answer(quick):
    """A load message before a failure does not forbid another try (D55)."""
    provider = Flaky(ModelError("busy", code="overloaded"), before=(Status(text="loading"),))
    events, _ = await collect(provider)
    assert provider.asked == 2
    assert events[-1] == Finished()


@given(st.integers(1, 40))
def test_the_wait_doubles_to_thirty_seconds_with_jitter(attempt):
    """1 s doubling to 30 s, with jitter (D55)."""
    plain = min(2.0 ** (attempt - 1), 30.0)
    assert plain * 0.85 <= wait_before(attempt, None) <= plain * 1.15


def test_retry_after_is_honoured():
    """What the provider asks for beats our own schedule (D55)."""
    assert wait_before(1, 7.5) == 7.5


def test_choice_is_first_wish_then_key():
    """By flag, environment, configuration, then by the keys found (S4.2)."""
    chosen = Models([Flaky()], {"FLAKY_KEY": "k"})
    assert chosen.choose("flaky/a", "flaky/b")[1].id == "flaky/a"
    assert chosen.choose(None, None, "flaky/b")[1].id == "flaky/b"
    assert chosen.choose(None)[1].id == "flaky/x"


def test_a_provider_is_asked_first_for_the_names_it_is_named_after():
    """A provider that takes every name does not keep a plugin's from being asked (S4.2)."""

    class Greedy(Flaky):
        name = "greedy"

        def find(self, model: str) -> ModelInfo:
            return ModelInfo(id=f"greedy/{model}", name=model, provider="greedy")

    chosen = Models([Greedy(), Flaky()], {})
    assert chosen.choose("flaky/a")[1].id == "flaky/a"
    assert chosen.choose("other")[1].id == "greedy/other"


def test_no_model_names_three_ways_out():
    """Without a key, a server and the local model: exactly the three things that fix it (ARCHITECTURE §8)."""
    with pytest.raises(ConfigError) as caught:
        Models([Flaky()], {}).choose(None)
    assert caught.value.next_step.count("`moryflow") + caught.value.next_step.count("`export") >= 3


def test_an_unknown_model_gets_a_suggestion():
    """A name that is nearly right gets a "did you mean" (CONTRACT §1)."""
    with pytest.raises(ConfigError) as caught:
        Models([Flaky()], {}).choose("flakey/x")
    assert "flaky" in caught.value.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("claude-sonnet-4", "anthropic/claude-sonnet-4"),
        ("gpt-4.1-mnii", "openai/gpt-4.1-mini"),
        ("house-7b", "mine/house-7b-q4"),
        ("nosuch", ""),
    ],
)
def test_a_model_without_its_provider_gets_the_nearest_known_one(name: str, meant: str) -> None:
    """Also one of your own servers, and no service is asked (CONTRACT §1)."""
    if find_spec("litellm") is None:
        pytest.skip("the extra litellm is not installed")
    from moryflow_builtins.litellm_models import LitellmModels
    from moryflow_builtins.openai_compatible import OpenAICompatible

    server = {"baseUrl": "http://127.0.0.1:9/v1", "models": {"house-7b-q4": {}}}
    settings = ModelsSettings.model_validate({"providers": {"mine": server}})
    with pytest.raises(ConfigError) as caught:
        Models([OpenAICompatible(settings, {}), LitellmModels(settings, {})], {}).choose(name)
    assert caught.value.message.startswith(f"unknown model {name!r}" + (f"; did you mean '{meant}" if meant else ""))
    assert bool(meant) is ("did you mean" in caught.value.message)

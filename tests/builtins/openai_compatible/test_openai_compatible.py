"""Names, keys and addresses: which model a person means, and what is missing to reach it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from moryflow.testing.replies import LoopbackServer, failure, text
from moryflow_builtins.openai_compatible import OpenAICompatible
from moryflow_sdk import Message, ModelError, ModelProvider, ModelRequest, TextDelta
from moryflow_sdk.support.settings import ModelsSettings
from pydantic import ValidationError


def provider(environ: dict[str, str] | None = None, **providers: Any) -> OpenAICompatible:
    return OpenAICompatible(ModelsSettings.model_validate({"providers": providers}), environ or {})


def found(name: str, environ: dict[str, str] | None = None, **providers: Any) -> str | None:
    info = provider(environ, **providers).find(name)
    return info.id if info else None


async def ask(provider: OpenAICompatible, name: str) -> str:
    info = provider.find(name)
    assert info is not None
    request = ModelRequest(model=info, messages=(Message(role="user", text="hi"),))
    try:
        return "".join([event.text async for event in provider.stream(request) if isinstance(event, TextDelta)])
    finally:
        await provider.aclose()


OWN = {"baseUrl": "http://127.0.0.1:9/v1", "models": {"tiny": {"contextWindow": 4096}}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai/gpt-4.1", "openai/gpt-4.1"),
        ("openai/anything-new", "openai/anything-new"),
        ("openrouter/anthropic/claude", "openrouter/anthropic/claude"),
        ("gpt-4.1", "openai/gpt-4.1"),
        ("gpt-4.1-2025-04-14", "openai/gpt-4.1-2025-04-14"),
        ("own/x", "own/x"),
        ("tiny", "own/tiny"),
        ("gtp-4.1", None),
        ("opnai/gpt-4.1", None),
        ("openai/", None),
        ("anthropic/claude", None),
        ("local", None),
        ("script:x.json", None),
        ("", None),
    ],
)
def test_a_name_is_one_of_ours_or_nobodys(name: str, expected: str | None) -> None:
    """A name that is nearly right must not reach a server (S4.2)."""
    assert found(name, own=OWN) == expected


def test_a_server_of_ones_own_takes_any_bare_name() -> None:
    """``OPENAI_BASE_URL`` says whose name it is (S4.2)."""
    environ = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    assert found("llama3:8b", environ) == "openai/llama3:8b"
    assert (found("local", environ), found("script:x", environ), found("opnai/x", environ)) == (None, None, None)


def test_limits_of_a_known_model() -> None:
    """Prices make the cost of a step (S2.26)."""
    info = provider().find("gpt-4.1")
    assert info is not None and (info.context_window, info.input_price, info.family, info.images) == (
        1_047_576,
        2.0,
        "gpt",
        True,
    )


@pytest.mark.parametrize(("managed", "window"), [(False, 1000), (True, 1_047_576)])
def test_the_users_own_window_counts_unless_the_service_is_managed(managed: bool, window: int) -> None:
    """``customContext`` first; of a managed service it is not read (S0.16, D61)."""
    own = {"managed": managed, "models": {"gpt-4.1": {"customContext": 1000, "inputPrice": 9}}}
    info = provider(openai=own).find("openai/gpt-4.1")
    assert info is not None and (info.context_window, info.input_price, info.managed) == (window, 9, managed)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"OPENAI_API_KEY": "k"}, "openai/gpt-4.1"),
        ({"OPENAI_API_KEY": " \n"}, None),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "openai/auto"),
        ({"OPENAI_API_BASE": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k"}, "openai/auto"),
        ({"DEEPSEEK_API_KEY": "k"}, "deepseek/deepseek-flash"),
        ({"GROQ_API_KEY": "k", "OPENAI_API_KEY": "k"}, "openai/gpt-4.1"),
        ({"OLLAMA_HOST": "127.0.0.1:11434"}, None),
    ],
)
def test_the_first_key_decides_when_nobody_chose(environ: dict[str, str], expected: str | None) -> None:
    """No question, no network (ARCHITECTURE 8)."""
    assert provider(environ).default(environ) == expected


def test_a_configured_service_is_the_default_when_there_is_no_key() -> None:
    """Who wrote it into the configuration means it (ARCHITECTURE 8)."""
    assert provider(own=OWN).default({}) == "own/tiny"


async def test_a_missing_key_is_named_before_anything_is_sent() -> None:
    """The sentence names the variable (S4.7)."""
    with pytest.raises(ModelError) as caught:
        await ask(provider(), "openai/gpt-4.1")
    assert caught.value.code == "missing" and not caught.value.retryable
    assert "OPENAI_API_KEY" in caught.value.next_step


async def test_a_server_on_this_machine_needs_no_key() -> None:
    """And is sent none (S4.7)."""
    with LoopbackServer(text("hi")) as server:
        assert await ask(provider({"OPENAI_BASE_URL": server.url}), "openai/m") == "hi"
        assert "authorization" not in server.requests[0].headers


async def test_auto_is_what_the_server_lists_first() -> None:
    """Nobody knows the name of a local server's model by heart (ARCHITECTURE 8)."""
    with LoopbackServer(text("hi"), text("ho")) as server:
        server.names = ["first", "second"]
        assert await ask(provider({"OPENAI_BASE_URL": server.url}), "openai/auto") == "hi"
        server.names = []
        assert await ask(provider({"OPENAI_BASE_URL": server.url}), "openai/auto") == "ho"
        assert [request.body["model"] for request in server.requests] == ["first", "gpt-4.1"]


async def test_the_configuration_wins_over_the_environment() -> None:
    """Key and address of one entry belong together (S4.7)."""
    with LoopbackServer(text("hi")) as server:
        own = {"baseUrl": server.url, "apiKeyEnv": "MY_KEY", "headers": {"X-Team": "a"}}
        environ = {"MY_KEY": "mine", "OPENAI_API_KEY": "other", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
        assert await ask(provider(environ, openai=own), "openai/m") == "hi"
        assert server.requests[0].headers["authorization"] == "Bearer mine"
        assert server.requests[0].headers["x-team"] == "a"


async def test_a_key_variable_that_is_not_set_is_never_replaced_by_another_key() -> None:
    """A key must not go to a server it was not meant for (R29)."""
    with LoopbackServer(failure(401)) as server:
        own = {"baseUrl": server.url, "apiKeyEnv": "MY_KEY"}
        with pytest.raises(ModelError) as caught:
            await ask(provider({"OPENAI_API_KEY": "sk-other"}, openai=own), "openai/m")
        assert "authorization" not in server.requests[0].headers
    assert "MY_KEY" in caught.value.next_step


async def test_the_key_of_a_well_known_service_does_not_go_to_an_address_from_the_configuration_of_another() -> None:
    """Each service has its own variable (R29)."""
    with LoopbackServer() as server:
        await ask(provider({"OPENAI_API_KEY": "sk-other"}, own={"baseUrl": server.url}), "own/m")
        assert "authorization" not in server.requests[0].headers


async def test_the_list_names_what_can_be_reached() -> None:
    """Known models of services with a key, configured ones, and those a server of one's own lists (S2.26)."""
    with LoopbackServer() as server:
        names = {info.id for info in await provider({"DEEPSEEK_API_KEY": "k", "OPENAI_BASE_URL": server.url}).available()}
    assert {"deepseek/deepseek-flash", "openai/test-model"} <= names
    assert not any(name.startswith(("mistral/", "ollama/")) for name in names)
    assert [info.id for info in await provider({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}).available()] == []


@pytest.mark.parametrize("host", ["0.0.0.0:{}", "127.0.0.1:{}", "http://127.0.0.1:{}/", "http://127.0.0.1:{}/v1"])
async def test_ollamas_own_variable_works_in_each_form(host: str) -> None:
    """It says where a server listens, which is not always an address (S4.7)."""
    with LoopbackServer(text("hi")) as server:
        environ = {"OLLAMA_HOST": host.format(server.address.rpartition(":")[2])}
        assert await ask(provider(environ), "ollama/llama") == "hi"
        assert server.requests[0].path == "/v1/chat/completions"


def test_an_address_without_a_scheme_is_an_error_of_the_configuration() -> None:
    """It is reported with its line, not at the first request (D45)."""
    with pytest.raises(ValidationError, match="http://"):
        ModelsSettings.model_validate({"providers": {"own": {"baseUrl": "localhost:8000"}}})


@pytest.mark.parametrize(
    ("prefix", "settings", "environ", "takes"),
    [
        ("openai", {}, {}, "several"),
        ("openai", {}, {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, "one"),
        ("llamacpp", {}, {}, "one"),
        ("own", {"baseUrl": "http://x"}, {}, "one"),
        ("own", {"baseUrl": "http://x", "systemMessages": "several"}, {}, "several"),
        ("openai", {"systemMessages": "one"}, {}, "one"),
    ],
)
def test_one_system_message_unless_a_service_is_known_to_take_several(prefix, settings, environ, takes) -> None:
    """Behind an address of one's own may be any model; a person knows better (D17)."""
    assert provider(environ, **{prefix: settings})._endpoint(prefix).system_messages == takes


def test_keys_do_not_show_in_a_representation() -> None:
    """Logs print objects (D49)."""
    settings = ModelsSettings.model_validate({"providers": {"own": {"baseUrl": "http://x", "apiKey": "sk-SECRET"}}})
    assert "SECRET" not in repr(settings)
    assert "SECRET" not in repr(provider(own={"baseUrl": "http://x", "apiKey": "sk-SECRET"})._endpoint("own"))


def test_it_is_a_provider_and_loads_no_http_before_it_is_asked() -> None:
    """Start-up pays for nothing that a turn may not need (S2.26, rule 5 of the rooms)."""
    assert isinstance(provider(), ModelProvider)
    code = """
import sys
from moryflow_builtins.openai_compatible import OpenAICompatible
from moryflow_sdk.support.settings import ModelsSettings
provider = OpenAICompatible(ModelsSettings(), {"OPENAI_API_KEY": "k"})
info = provider.find(provider.default({"OPENAI_API_KEY": "k"}))
assert not {"h11", "ssl"} & set(sys.modules), "too early"
provider.prepare(info)
provider._client("openai")._warm_up.start().result()
assert "h11" in sys.modules and not {"httpx", "httpcore", "anyio", "h2"} & set(sys.modules), "what is never used was loaded"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Secrets are left out of what people, scripts and logs see (D49)."""

from __future__ import annotations

import json
from typing import Any

import pytest

WEATHER = """
    import logging, sys, threading, traceback
    from pydantic import BaseModel, SecretStr
    from moryflow_sdk import hookimpl, tool

    class Account(BaseModel):
        user: str = ""
        login: SecretStr = SecretStr("")

    class Settings(BaseModel):
        api_key: str = ""
        city: str = "Rome"
        accounts: list[Account] = []
        headers: dict[str, str] = {}
        url: str = ""
        days: int = 3

    config_model = Settings

    @tool(domain="read")
    def storm() -> str:
        "Fail."
        raise RuntimeError("401 for hunter2secret and enVironment77")

    @hookimpl
    def tools():
        return [storm]

    @hookimpl
    def chat_params(params, turn):
        config = turn.config
        print("printed", config)
        print("in the clear", config.accounts[0].login.get_secret_value(), file=sys.stderr)
        turn.log.warning("logged %s", config.model_dump())
        logging.getLogger("requests").warning("GET %s", config.url)
        try:
            raise ValueError(f"no {config.api_key}")
        except ValueError:
            traceback.print_exc()
        raise RuntimeError(f"bad key {config.api_key}, {config.headers}")
"""
SETTINGS = {
    "api_key": "hunter2secret",
    "accounts": [{"user": "me", "login": "swordfish9"}],
    "headers": {"Authorization": "Bearer tok9tok9tok9", "Accept": "text/plain"},
    "url": "https://me:pw12345@host/x",
}
SECRETS = ("hunter2secret", "swordfish9", "tok9tok9tok9", "pw12345", "enVironment77")


@pytest.fixture
def weather(cli: Any) -> Any:
    """A plugin whose settings hold secrets of all kinds, and a variable that does."""
    cli.plugin("weather", WEATHER)
    cli.config(plugins={"weather": SETTINGS})
    cli.environ = {"MY_SERVICE_TOKEN": "enVironment77"}
    return cli


def told(done: Any) -> str:
    """Return all that a command printed; no secret is in it."""
    said = done.stdout + done.stderr
    assert not [secret for secret in SECRETS if secret in said], said
    return said


def test_config_shows_settings_without_their_secrets(weather: Any) -> None:
    """By name and by type, in lists and in mappings, for people and as JSON; everything else is there (D49)."""
    shown = json.loads(weather("config", "show", "--json").stdout)["plugins"]["weather"]
    assert shown == {
        "api_key": "[redacted]",
        "accounts": [{"user": "me", "login": "[redacted]"}],
        "headers": {"Authorization": "[redacted]", "Accept": "text/plain"},
        "url": "https://[redacted]@host/x",
    }
    assert "plugins.weather.api_key" in told(weather("config", "show"))
    assert told(weather("config", "get", "plugins.weather.api_key")) == "[redacted]\n"
    assert "[redacted]" in told(weather("config", "get", "plugins.weather", "--json"))
    assert "[redacted]" in told(weather("config", "explain", "plugins.weather.accounts"))
    assert json.loads(told(weather("config", "explain", "plugins.weather.api_key", "--json")))["value"] == "[redacted]"
    weather("config", "set", "language", "en")
    done = weather("config", "set", "plugins.weather.api_key", "hunter2secret9")
    assert done.stdout.startswith('plugins.weather.api_key = "[redacted]"')
    assert json.loads((weather.home / "config.jsonc").read_text("utf-8"))["plugins"]["weather"]["api_key"] == "hunter2secret9"


def test_no_default_of_ours_is_taken_for_a_secret(cli: Any) -> None:
    """What is shown of a fresh installation is all there is (D49)."""
    assert "[redacted]" not in cli("config", "show", "--all", "--json").stdout


def test_what_a_plugin_prints_logs_and_raises_has_no_secrets(weather: Any) -> None:
    """Its own print, log line, traceback and error, on a terminal, in the trace and in JSON (D49)."""
    done = weather("run", "hi", "-m", weather.script("done"), "--output", "stream-json", "-v")
    said = told(done)
    assert "printed" in said and "logged" in said and "in the clear [redacted]" in said and "bad key [redacted]" in said
    assert "Traceback" in said and "GET https://me:[redacted]@host/x" in said
    assert "bad key [redacted]" in told(weather("trace", "--hooks")) + told(weather("trace", "--json"))
    assert "401 for [redacted] and [redacted]" in told(weather("tool", "run", "storm"))


def test_what_is_stored_of_a_hook_has_no_secrets(weather: Any) -> None:
    """A trace is read from the database, which is exported and sent to others (D49)."""
    weather.plugin(
        "adder",
        """
        from moryflow_sdk import hookimpl
        @hookimpl
        def chat_system(blocks):
            return None
        @hookimpl
        def chat_params(params):
            return params.replace(extra={"seed": "hunter2secret"})
    """,
    )
    weather("run", "hi", "-m", weather.script("done"))
    stored = b"".join(path.read_bytes() for path in weather.home.glob("sessions.db*"))
    assert b"chat_params" in stored and not [secret for secret in SECRETS if secret.encode() in stored]

"""What is a secret: by its name, by its type, however deep it stands (D49)."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow_sdk.errors import MASK
from moryflow_sdk.support import secrets
from pydantic import BaseModel, SecretStr


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "apiKey", "APIKey", "API_KEY", "apikey", "my-api-key", "weather_token", "token", "accessToken", "TOKENS",
        "password", "db_password", "dbPassword2", "PASSWD", "client_secret", "clientSecretText", "SECRETS", "Authorization",
        "Set-Cookie", "credentials", "key", "X-Api-Key", "passphrase", "pwd", "signing_key", "GITHUB_TOKEN",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    """However the words are joined (D49)."""
    assert secrets.names_secret(name)


@pytest.mark.parametrize(
    "name",
    ["apiKeyEnv", "api_key_env", "public_key", "max_steps", "keyboard", "monkey", "tokenizer", "passing", "", "url", "keystone",
     "host"],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    """The name of a variable and a public key are for everyone to see (D49)."""
    assert not secrets.names_secret(name)


class Account(BaseModel):
    user: str = ""
    pass_: SecretStr | None = None
    extra: dict[str, SecretStr] = {}


class Settings(BaseModel):
    city: str = ""
    login: SecretStr = SecretStr("")
    account: Account | None = None
    accounts: list[Account] = []
    by_name: dict[str, Account] = {}
    pair: tuple[SecretStr, ...] = ()


SHOWN: list[tuple[Any, Any]] = [
    ({"city": "Rome", "login": "a1"}, {"city": "Rome", "login": MASK}),
    ({"account": {"user": "me", "pass_": "x"}}, {"account": {"user": "me", "pass_": MASK}}),
    ({"accounts": [{"user": "me", "pass_": "x"}]}, {"accounts": [{"user": "me", "pass_": MASK}]}),
    ({"by_name": {"b": {"pass_": "x"}}}, {"by_name": {"b": {"pass_": MASK}}}),
    ({"account": {"extra": {"any": "x"}}}, {"account": {"extra": {"any": MASK}}}),
    ({"pair": ["x", "y"]}, {"pair": [MASK, MASK]}),
    ({"other": {"deep": [{"api_key": "x"}]}}, {"other": {"deep": [{"api_key": MASK}]}}),
    ({"tokens": ["a", {"b": "c"}]}, {"tokens": [MASK, {"b": MASK}]}),
    ({"env": {"HOME": "/root", "GITHUB_TOKEN": "x"}}, {"env": {"HOME": "/root", "GITHUB_TOKEN": MASK}}),
    ({"headers": {"Authorization": "x"}}, {"headers": {"Authorization": MASK}}),
    ({"url": "https://me:pw@host/x"}, {"url": f"https://{MASK}@host/x"}),
    ({"url": "https://host/x", "maxTokens": 5, "password": 1234}, {"url": "https://host/x", "maxTokens": 5, "password": MASK}),
    ({"api_key": None, "token": "", "secret": False}, {"api_key": None, "token": "", "secret": False}),
    ({"said": "sk-abcdefghijkl"}, {"said": MASK}),
]


@pytest.mark.parametrize(("value", "shown"), SHOWN)
def test_every_secret_is_masked_and_nothing_else(value: Any, shown: Any) -> None:
    """Fields of fields, of lists, of mappings; addresses with a password (D49)."""
    assert secrets.masked(value, [Settings]) == shown


def test_a_value_alone_is_known_by_its_name() -> None:
    """What ``config get`` prints (D49)."""
    assert secrets.masked("x", name="api_key") == MASK and secrets.masked("x", name="city") == "x"


def test_what_is_known_is_hidden_in_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a word that anybody may write: a secret has eight characters, or four with a digit (D49)."""
    monkeypatch.setattr(secrets, "_known_secrets", set[str]())
    values = {"api_key": "hunter2", "sort_key": "name", "login": "it's\nmine", "x": "shown", "url": "ftp://me:pass1@host"}
    secrets.know(secrets.secret_values(values, [Settings]))
    assert secrets.hide("no pass1 here") == f"no {MASK} here"
    assert secrets.hide("401 for hunter2, sorted by name") == f"401 for {MASK}, sorted by name"
    assert secrets.hide(str({"login": "it's\nmine"})) == str({"login": MASK}).replace("'" + MASK + "'", f'"{MASK}"')
    folders = {"HOME": "/home/somebody", "PWD": "/home/somebody", "OLDPWD": "/home/somebody", "TLS_KEY": "/home/somebody"}
    secrets.know_environment({"MY_TOKEN": "abcdefgh", **folders})
    assert secrets.hidden({"a": ["abcdefgh", "/home/somebody"]}) == {"a": [MASK, "/home/somebody"]}


def test_a_value_that_holds_itself_ends() -> None:
    """Settings are JSON, but what a plugin hands over may be anything (D49)."""
    value: dict[str, Any] = {}
    value["again"] = value
    assert secrets.masked(value)

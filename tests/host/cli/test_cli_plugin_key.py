"""``plugin key``: a secret is given without being shown, and kept where no tool reads it (D49, R14)."""

from __future__ import annotations

import json
from typing import Any

import pytest

KEYED = """
    from pydantic import BaseModel, Field, SecretStr
    from moryflow_sdk import ToolContext, hookimpl, tool

    class Settings(BaseModel):
        FIELDS

    config_model = Settings

    @tool(domain="read")
    def keys(ctx: ToolContext) -> str:
        "Say how long the keys are."
        return str([len(str(getattr(value, "get_secret_value", lambda: value)())) for _, value in ctx.config])

    @hookimpl
    def tools():
        return [keys]
"""
KEY = "hunter2-hunter2"


def keyed(cli: Any, fields: str) -> None:
    """Write a plugin with settings."""
    cli.plugin("weather", KEYED.replace("FIELDS", fields))
    cli.config(agents={"runtime": {"permission": {"rules": [{"domain": "read", "pattern": "*", "decision": "allow"}]}}})


@pytest.mark.parametrize(
    "fields", ["api_key: str", "login: SecretStr = SecretStr('')", "api_key: SecretStr = Field(min_length=3)"]
)
def test_a_key_is_read_from_standard_input_and_holds(cli: Any, fields: str) -> None:
    """Also where the plugin fails for want of it; the file is 0600 (D49)."""
    keyed(cli, fields)
    name = fields.partition(":")[0]
    done = cli("plugin", "key", "set", "weather", name, stdin=f"{KEY}\r\n")
    assert done.returncode == 0 and KEY not in done.stdout + done.stderr, done.stderr
    file = cli.home / "secrets.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(file.read_text("utf-8"))["plugins"]["weather"].values()) == [KEY]
    assert KEY not in (cli.home / "config.jsonc").read_text("utf-8")
    assert cli("tool", "run", "keys").stdout == f"[{len(KEY)}]\n"
    explained = json.loads(cli("config", "explain", f"plugins.weather.{name}", "--json").stdout)
    assert (explained["value"], explained["origin"]["source"]) == ("[redacted]", "secrets")


def test_a_key_that_is_typed_is_not_shown(cli: Any) -> None:
    """At a terminal, without echo (D49)."""
    keyed(cli, "api_key: str")
    terminal = cli.terminal("plugin", "key", "set", "weather", "api_key")
    terminal.expect("plugins.weather.api_key (not shown): ")
    terminal.type(f"{KEY}\r")
    terminal.expect("plugins.weather.api_key is set")
    assert terminal.end() == 0 and KEY not in terminal.raw
    assert KEY in (cli.home / "secrets.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("weather", "api_key"), "", "no key was given"),
        (("weather", "api_key"), "a\x1bb", "this is no key"),
        (("weather", "api_kee"), KEY, "api_kee"),
        (("wether", "api_key"), KEY, "did you mean 'weather'?"),
    ],
)
def test_what_is_no_key_or_has_no_place_is_refused(cli: Any, arguments: tuple[str, ...], stdin: str, said: str) -> None:
    """Exit code 2, one sentence, nothing is written, nothing is shown (D49)."""
    keyed(cli, 'api_key: str = ""\n        city: str = ""')
    cli.config(disabledPlugins=["shell", "local_model", "litellm_models"])
    done = cli("plugin", "key", "set", *arguments, stdin=stdin)
    assert done.returncode == 2 and said in done.stderr and KEY not in done.stderr and "Traceback" not in done.stderr
    assert not (cli.home / "secrets.json").exists()


def test_keys_that_others_may_write_are_not_read(cli: Any) -> None:
    """As with every file of the home (R17); set again, the file is the person's own."""
    keyed(cli, "api_key: str = ''")
    cli("plugin", "key", "set", "weather", "api_key", stdin=KEY)
    (cli.home / "secrets.json").chmod(0o666)
    done = cli("tool", "run", "keys")
    assert done.stdout == "[0]\n" and "no key is read, because" in done.stderr
    cli("plugin", "key", "set", "weather", "api_key", stdin=KEY)
    assert (cli.home / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert cli("tool", "run", "keys").stdout == f"[{len(KEY)}]\n"

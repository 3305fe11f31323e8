"""What a person changes of a session on the way, its model too, is recorded in its tree and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moryflow import open_host
from moryflow_sdk import ConfigError


def script(cli: Any, name: str, *turns: Any) -> str:
    """Write a model of its own; return its name."""
    file = cli.vault.parent / f"{name}.json"
    file.write_text(json.dumps(list(turns)), "utf-8")
    return f"script:{file}"


def markers(cli: Any) -> list[dict[str, Any]]:
    """Return what the markers of the last session say."""
    nodes = json.loads(cli("session", "show", "--json").stdout)["nodes"]
    return [node["payload"] for node in nodes if node["kind"] == "marker"]


def test_another_model_is_recorded_and_goes_on(cli: Any) -> None:
    """`run -c -m` writes ``marker {model}`` before its prompt, and the session keeps that model (ARCHITECTURE §5)."""
    one, two = script(cli, "one", "of one"), script(cli, "two", "of two")
    assert cli("run", "-m", one, "first").stdout == "of one\n"
    assert cli("run", "-c", "-m", one, "second").stdout == "of one\n"
    assert markers(cli) == []
    assert cli("run", "-c", "-m", two, "third").stdout == "of two\n"
    assert cli("run", "-c", "fourth").stdout == "of two\n"
    assert cli("run", "-c", "-m", two, "fifth").stdout == "of two\n"
    assert markers(cli) == [{"model": two}]
    shown = cli("session", "show").stdout
    assert shown.index("you: second") < shown.index(f"──── model {two} ────") < shown.index("you: third")
    assert f"marker: model {two}" in cli("session", "tree").stdout
    assert cli("session", "show", "--json").stdout.count('"model": "script:') >= 1


def test_slash_model_is_recorded(cli: Any) -> None:
    """`/model NAME` writes the same marker; the same model again and a wrong one write none (ARCHITECTURE §5)."""
    one, two = script(cli, "one", "of one"), script(cli, "two", "of two")
    talk = cli("chat", "-m", one, stdin=f"hi\n/model {one}\n/model nobody/knows\n/model {two}\n/model\nagain\n")
    assert "of one" in talk.stdout and "of two" in talk.stdout
    assert f"model: {two}" in talk.stderr
    assert markers(cli) == [{"model": two}]
    assert cli("run", "-c", "more").stdout == "of two\n"


async def test_the_change_is_an_event_and_an_export_keeps_it(tmp_path: Path) -> None:
    """Others are told of it, and the marker is a node like any other (S2.14)."""
    vault = tmp_path / "vault"
    vault.mkdir()
    for name in ("one", "two"):
        (vault / f"{name}.json").write_text('["ok"]', "utf-8")
    one, two = (f"script:{vault / name}.json" for name in ("one", "two"))
    async with await open_host(tmp_path / "home", environ={}) as host:
        session = await host.new_session(vault, model=one)
        await session.prompt("hi")
        with pytest.raises(ConfigError):
            await session.set_model("nobody/knows")
        await session.set_model(two)
        changed = [event.data for event in await host.store.events(session.id) if event.type == "session.model"]
        assert changed == [{"from": one, "to": two}]
        lines = [line async for line in host.store.export(session.id)]
        copy = await host.store.import_(lines)
        assert [node.payload for node in await host.store.path(copy.id) if node.kind == "marker"] == [{"model": two}]
        assert copy.model == two

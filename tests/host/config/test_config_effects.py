"""Settings of the host that are set in the file hold there too, and flags beat them (CONTRACT §1)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from moryflow import RunOptions, open_host
from moryflow_sdk import ConfigError

BUILTINS = ("moryflow_builtins.truncation", "moryflow_builtins.script_model")
PLUGIN = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_after(result):\n    return None\n"


def written(home: Path, settings: dict[str, Any]) -> None:
    """Write the configuration, and two plugins."""
    (home / "plugins").mkdir(mode=0o700, exist_ok=True)
    for name in ("one", "two"):
        (home / "plugins" / f"{name}.py").write_text(PLUGIN, "utf-8")
    (home / "config.jsonc").write_text(json.dumps(settings), "utf-8")


async def loaded(home: Path, environ: dict[str, str] | None = None, **options: Any) -> set[str]:
    async with await open_host(home, environ=environ or {}, builtins=BUILTINS, probe=False, **options) as host:
        return {record.name for record in host.plugin_set.records if record.tier == "user" and record.status == "loaded"}


@pytest.mark.parametrize(
    ("settings", "environ", "options", "expected"),
    [
        ({}, {}, {}, {"one", "two"}),
        ({"safeMode": True}, {}, {}, set()),
        ({"safeMode": True}, {"MORYFLOW_SAFE_MODE": "0"}, {}, {"one", "two"}),
        ({}, {"MORYFLOW_SAFE_MODE": "1"}, {}, set()),
        ({}, {"MORYFLOW_SAFE_MODE": "1"}, {"safe_mode": False}, {"one", "two"}),
        ({"onlyPlugins": ["one"]}, {}, {}, {"one"}),
        ({"onlyPlugins": []}, {}, {}, set()),
        ({"onlyPlugins": ["one"]}, {"MORYFLOW_PLUGINS": "two"}, {}, {"two"}),
        ({"onlyPlugins": ["one"]}, {"MORYFLOW_PLUGINS": ""}, {}, set()),
        ({}, {"MORYFLOW_PLUGINS": ""}, {"plugins": ["one"]}, {"one"}),
        ({}, {}, {"config": '{"onlyPlugins": ["two"]}'}, {"two"}),
        ({"disabledPlugins": ["one"]}, {}, {}, {"two"}),
    ],
)
async def test_which_plugins_are_loaded(tmp_path, settings, environ, options, expected):
    """Flag beats inline beats environment beats file, for safe mode and for the plugins asked for (S0.85, D56)."""
    written(tmp_path, settings)
    assert await loaded(tmp_path, environ, **options) == expected


@pytest.mark.parametrize(
    ("settings", "flag", "strict"), [({"strict": True}, None, True), ({"strict": True}, False, False), ({}, None, False)]
)
async def test_strict_may_stand_in_the_file(tmp_path, settings, flag, strict):
    """A failing plugin then ends the run (CONTRACT §1)."""
    written(tmp_path, settings)
    async with await open_host(tmp_path, environ={}, builtins=BUILTINS, strict=flag, probe=False) as host:
        assert host.strict is strict


@pytest.mark.parametrize(("limit", "steps"), [({}, 3), ({"maxSteps": 2}, 2)])
async def test_limits_of_a_turn_may_stand_in_the_file(tmp_path, limit, steps):
    """`limits.maxSteps` ends a turn that was given no limit of its own (CONTRACT §1)."""
    script, vault = tmp_path / "script.json", tmp_path / "vault"
    vault.mkdir()
    call = {"calls": [{"name": "nothing", "arguments": {}}]}
    script.write_text(json.dumps([call, call, {"text": "done"}]), "utf-8")
    written(tmp_path, {"limits": limit, "onlyPlugins": []})
    async with await open_host(tmp_path, environ={}, builtins=BUILTINS) as host:
        session = await host.new_session(vault, model=f"script:{script}")
        result = await session.prompt("go")
    assert (result.steps, result.end_reason) == (steps, "max_steps" if limit else "completed")


@pytest.mark.parametrize(
    "wrong",
    [{"max_steps": 0}, {"max_steps": -1}, {"max_steps": "1"}, {"max_steps": True}, {"max_cost": 0}, {"max_cost": math.nan},
     {"max_cost": math.inf}, {"max_cost": "five"}, {"on_ask": "never"}],
)  # fmt: skip
async def test_a_wrong_limit_of_a_turn_is_refused_and_not_taken_as_none(tmp_path, wrong):
    """No turn begins; a program that passes 0 or a text must not get a turn without a limit (R37)."""
    async with await open_host(tmp_path, environ={}, builtins=BUILTINS) as host:
        session = await host.new_session(tmp_path, model="script:x")
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            await session.prompt("go", options=RunOptions(**wrong))
        assert not await host.store.runs(session.id)


async def test_a_wrong_mode_or_profile_of_a_program_is_refused(tmp_path):
    """Neither counts as one that it may not have meant (R37)."""
    with pytest.raises(ConfigError, match="unknown profile 'remotee'"):
        await open_host(tmp_path, environ={}, profile="remotee")
    async with await open_host(tmp_path, environ={}, builtins=BUILTINS) as host:
        with pytest.raises(ConfigError, match="unknown mode 'root'"):
            await host.new_session(tmp_path, mode="root", model="script:x")
        assert (await host.new_session(tmp_path, mode="ask", model="script:x")).mode == "agent"

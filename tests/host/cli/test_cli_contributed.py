"""Commands that plugins bring take the common flags wherever they stand."""

from __future__ import annotations

import json
from typing import Any

import pytest

ALLOW = {"agents": {"runtime": {"permission": {"rules": [{"domain": "bash", "pattern": "ls *", "decision": "allow"}]}}}}


@pytest.mark.parametrize("shape", [("--config", "{}"), ("--config={}",)])
def test_an_inline_layer_counts_before_and_after_the_verb(cli: Any, shape: tuple[str, ...]) -> None:
    """`permission explain … --config JSON` asks with that layer, as every other command does (CONTRACT §1)."""
    flag = [part.replace("{}", json.dumps(ALLOW)) for part in shape]
    words = ["permission", "explain", "bash", "ls -la", "--json"]
    assert json.loads(cli(*words).stdout)["decision"] == "ask"
    for arguments in ([*words, *flag], [*flag, *words]):
        assert json.loads(cli(*arguments).stdout)["decision"] == "allow"


def test_safe_mode_strict_and_profile_count_after_the_verb(cli: Any) -> None:
    """They are known before the host is opened (CONTRACT §1)."""
    cli.plugin("broken", "raise RuntimeError('no')")
    assert "plugin broken failed" in cli("audit").stderr
    done = cli("audit", "--safe-mode")
    assert (done.returncode, "plugin broken failed" in done.stderr) == (0, False)
    assert cli("audit", "--profile", "nonsense").returncode == 2
    assert "--safe-mode" in cli("audit", "--help").stdout


def test_a_wrong_inline_layer_is_named(cli: Any) -> None:
    """It is a usage error of this command like of any other (CONTRACT §1)."""
    done = cli("permission", "rules", "--config", "{")
    assert (done.returncode, done.stdout) == (2, "") and "config" in done.stderr

"""Where a command really reads, after any way of moving: random texts in real bash, with a stand-in that tells the place."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is the reference")

_STAND_IN = """#!/bin/sh
for word in "$@"; do printf '%s\\036' "$(readlink -m -- "$word")" >> "$LOG"; done
"""
_NAMES = ("a", "a/b", "a/b/c", "deep", "deep/c", "up", "far", "none", "..", ".", "../..", "a/..", "deep/..", "far/..", "b", "c")
_RULES = [{"domain": "bash", "pattern": pattern, "decision": "allow"} for pattern in ("cat *", "cd *", "pwd")]


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault with links down, up and out, beside a folder whose links lead into it."""
    vault = tmp_path / "vault"
    (vault / "a/b/c").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for link, goal in {"deep": "a/b", "up": "..", "far": "../outside", "a/far": "../../outside"}.items():
        (vault / link).symlink_to(goal)
    (tmp_path / "outside/in").symlink_to("../vault/a/b")
    return vault


def _text(chance: random.Random, base: Path) -> str:
    def path() -> str:
        start = chance.choice(("", "", "", f"{base}/vault/", f"{base}/outside/in/", "./"))
        return start + "/".join(chance.choice(_NAMES) for _ in range(chance.randint(1, 3)))

    def command(depth: int) -> str:
        if depth > 1 or chance.random() < 0.5:
            return f"cd {chance.choice(('', '', '', '-P ', '-L '))}{path()}" if chance.random() < 0.7 else f"cat {path()}/x"
        one, two = command(depth + 1), command(depth + 1)
        forms = ("{};{}", "{} && {}", "{} || {}", "({}); {}", "{{ {}; }}; {}", "{} & {}", "{} | {}", "if {}; then {}; fi")
        return chance.choice((*forms, "! {}; {}", "eval '{}'; {}", "for i in 1 2; do {}; {}; done")).format(one, two)

    return f"{'; '.join(command(0) for _ in range(chance.randint(1, 3)))}; cat {path()}/x"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_outside_is_read_unasked_after_any_move(
    seed: int, vault: Path, tmp_path: Path, make_policy: Callable[..., Policy]
) -> None:
    """What `cat` reaches when bash runs an allowed text is in the vault, by whichever links it moved (R9, R10)."""
    programs, log = tmp_path / "programs", tmp_path / "log"
    programs.mkdir()
    (programs / "cat").write_text(_STAND_IN)
    (programs / "cat").chmod(0o755)
    (programs / "readlink").symlink_to(shutil.which("readlink") or "readlink")
    policy = make_policy(_RULES, vault=vault, user_home=tmp_path / "home")
    chance = random.Random(seed)
    assert BASH is not None
    for _ in range(40):
        text = _text(chance, tmp_path)
        if judge_command(policy, text).verdict.decision != "allow":
            continue
        log.write_bytes(b"")
        environment = {"PATH": str(programs), "LOG": str(log), "HOME": str(tmp_path / "home")}
        subprocess.run([BASH, "--norc", "-c", text], cwd=vault, env=environment, capture_output=True, check=False)
        reached = [place for place in log.read_text().split("\x1e") if place]
        assert all(place.startswith(f"{vault}/") for place in reached), (text, reached)


@pytest.mark.parametrize(
    "command",
    [
        "cd deep; cd ..; cat ../outside/x",
        "cd deep && cd .. && cat ../outside/x",
        "cd deep/../.. && cat outside/x",
        "cd {base}/outside/in/..; cat x",
        "cd {base}/outside/in; cd ..; cat x",
        "cd deep; cat ../../../outside/x",
    ],
)
def test_a_folder_is_both_its_name_and_what_its_links_lead_to(
    command: str, vault: Path, make_policy: Callable[..., Policy]
) -> None:
    """``cd ..`` goes up from the name, a program's ``..`` from the folder itself; both are judged (R9, R10)."""
    policy = make_policy(_RULES, vault=vault, user_home=vault.parent / "home")
    assert judge_command(policy, command.replace("{base}", str(vault.parent))).verdict.decision == "ask"

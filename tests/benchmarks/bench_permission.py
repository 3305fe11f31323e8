"""What a decision costs, and how good the decisions on the examples are."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any

from moryflow.services.paths import PathResolver
from moryflow_builtins.permission.presets import PRESETS
from moryflow_builtins.permission.shell import judge_command
from moryflow_builtins.permission.verdict import decide, policy_of
from moryflow_sdk import Rule, Target, ToolCall
from moryflow_sdk.verdicts import settle

Figure = tuple[str, float, str, float | None]
DATA = Path(__file__).resolve().parents[1] / "data"
ORDER = {"allow": 0, "ask": 1, "deny": 2, "stop": 2}
LIMIT = 128 * 1024
COMMANDS = (
    "git status --short",
    "cat src/a.py src/b.py | grep -n foo | head -5",
    "cd src && ls -la && cd .. && cat README.md",
    "find . -name '*.py' -not -path './venv/*'",
    "echo done > notes/today.md 2>&1",
    'git commit -m "Say what changed"',
    "rm -rf build && make -j4 test",
    "sed -n '1,20p' README.md; awk '{print $1}' names.txt",
    "for f in a b c; do echo $f; done",
    "timeout 10 env LC_ALL=C sort -u names.txt",
)
SEPARATORS = {";": "ls;", "&&": "ls&&", "|": "ls|", "newline": "ls\n"}


def figures() -> list[Figure]:
    """Return the rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        vault = Path(folder).resolve()
        (vault / "src").mkdir()
        return [*_first_use(vault), *_gate(vault), *_separators(vault), *_examples(), *_day(vault)]


FIRST_USE = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
import moryflow.runtime.host, moryflow_builtins.permission  # a host has them by then
from moryflow.services.paths import PathResolver
from moryflow_sdk import Target, ToolCall

vault = Path.cwd()
files = PathResolver(vault, vault.parent, case_sensitive=True)
turn = SimpleNamespace(
    vault=vault, home=vault.parent / ".moryflow", files=files, rules=SimpleNamespace(all=tuple),
    agent=SimpleNamespace(rules=()), config=SimpleNamespace(servers={}), watched=(),
)
domain, given = sys.argv[1:]
shell = Target(domain="bash", kind="shell", text=f"shell:{given}", given=given)
target = shell if domain == "bash" else files.resolve(given, domain=domain)
call = ToolCall(id="1", tool=domain, args={}, domain=domain, targets=(target,))
began = time.perf_counter()
from moryflow_builtins.permission.verdict import decide, policy_of
decide(policy_of(turn), call)
print((time.perf_counter() - began) * 1000)
"""


def _first_use(vault: Path) -> list[Figure]:
    """Time the first decision of a process, with the import of all that it needs."""
    rows: list[Figure] = []
    for domain, given in (("read", "notes.md"), ("read", ".env"), ("bash", "ls -la"), ("bash", "git status")):
        command = [sys.executable, "-c", FIRST_USE, domain, given]
        times = [float(subprocess.run(command, cwd=vault, capture_output=True, check=True).stdout) for _ in range(7)]
        rows.append((f"first decision of a process, {given}", median(times), "ms", None))
    return rows


def _gate(vault: Path) -> list[Figure]:
    """Time the whole gate as the kernel calls it: rules collected, policy made, every target judged."""
    turn = _turn(vault, _rules("readonly_deny"))
    shell = [_call("bash", "shell", command) for command in COMMANDS]
    files = [_file(turn, path) for path in ("notes.md", "src/deep/a.py", "/etc/hosts", ".env", "../x", "~/x")]
    rows: list[Figure] = []
    for name, calls in (("command", shell), ("file", files)):
        times = sorted(_milliseconds(lambda call=call: decide(policy_of(turn), call)) for call in islice(cycle(calls), 1500))
        cuts = quantiles(times, n=100)
        rows += [
            (f"permission gate, {name}, p50", cuts[49], "ms", None),
            (f"permission gate, {name}, p99", cuts[98], "ms", 5.0),
        ]
    return rows


def _separators(vault: Path) -> list[Figure]:
    policy = policy_of(_turn(vault, _rules("readonly_deny")))
    rows: list[Figure] = []
    for name, piece in SEPARATORS.items():
        command = piece * (LIMIT // len(piece) - 1) + "ls"
        rows.append((f"128 KiB of {name}", _milliseconds(lambda text=command: judge_command(policy, text)), "ms", 1000.0))
    distinct = "".join(f"a{number};" for number in range(LIMIT // 7))
    rows.append(("128 KiB of different commands", _milliseconds(lambda: judge_command(policy, distinct)), "ms", 1000.0))
    return rows


def _examples() -> list[Figure]:
    """Count what is wrong with the decisions on all examples."""
    vault, home = Path("/vault"), Path("/home/u")
    policies = {name: policy_of(_turn(vault, _rules(name), home)) for name in _rulesets()}
    hard = soft = asked = harmless = total = 0
    for file in (DATA / "corpus" / "shell.jsonl", *sorted((DATA / "permission").glob("shell_*.jsonl"))):
        for line in file.read_text("utf-8").splitlines():
            case = json.loads(line)
            if "gen" in case:
                continue
            mode = case.get("mode", "agent")
            verdict = judge_command(policies[case["ruleset"]], case["command"]).verdict
            decision = settle(verdict, mode="agent" if mode == "headless" else mode, headless=mode == "headless")
            looser = ORDER[decision] < ORDER[case["max"]]
            total += 1
            hard += looser and decision == "allow"
            soft += looser and decision == "ask"
            harmless += case["kind"] == "benign"
            asked += case["kind"] == "benign" and decision != "allow"
    rows: list[Figure] = [(f"hard bypasses of {total} examples", float(hard), "", 0.0), ("soft bypasses", float(soft), "", 5.0)]
    return [*rows, ("false asks on harmless commands", 100 * asked / harmless, "%", 9.0)]


def _day(vault: Path) -> list[Figure]:
    """Count the questions of a day: commands of everyday work in their order, and harmless ones of the examples."""
    lines = (DATA / "permission" / "day.txt").read_text("utf-8").splitlines()[1:]
    rows = (json.loads(line) for line in (DATA / "permission" / "shell_extra.jsonl").read_text("utf-8").splitlines())
    harmless = [
        row["command"] for row in rows if row["kind"] == "benign" and row["ruleset"] == "readonly" and "mode" not in row
    ]
    day = [*lines, *harmless[: 300 - len(lines)]]

    def questions(rules: list[Rule], confined: bool) -> float:
        turn = _turn(vault, rules)
        policy = policy_of(turn)
        verdicts = (judge_command(policy, command) for command in day)
        asked = (one for one in verdicts if one.verdict.decision != "allow")
        # In the sandbox a question of the defaults is dropped, unless it is about a file of the vault that is named.
        left = [
            one for one in asked if not confined or any(part.domain != "bash" for part in one.parts if part.decision == "ask")
        ]
        return 100 * len(left) / len(day)

    stored: list[Rule] = []
    for command in day:
        remembered = judge_command(policy_of(_turn(vault, stored)), command).remember
        stored += [Rule(domain=one.domain, pattern=one.wider or one.pattern, decision="allow") for one in remembered]
    name = f"questions in a day of {len(day)} commands"
    return [
        (f"{name}, sandbox", questions([], confined=True), "%", 2.0),
        (f"{name}, preset look", questions(PRESETS["look"].rules, confined=False), "%", 15.0),
        (f"{name}, after one always each", questions(stored, confined=False), "%", 5.0),
    ]


def _milliseconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _rulesets() -> dict[str, Any]:
    return json.loads((DATA / "corpus" / "shell_rulesets.json").read_text("utf-8"))


def _rules(name: str) -> list[Rule]:
    return [Rule(**row, file="config.jsonc", line=line) for line, row in enumerate(_rulesets()[name]["rules"], 1)]


def _turn(vault: Path, rules: list[Rule], user_home: Path | None = None) -> Any:
    """What the gate uses of a turn."""
    home = user_home or vault.parent
    return SimpleNamespace(
        vault=vault,
        home=home / ".moryflow",
        files=PathResolver(vault, home, case_sensitive=True),
        rules=SimpleNamespace(all=lambda: tuple(rules)),
        agent=SimpleNamespace(rules=()),
        config=SimpleNamespace(servers={}),
        watched=(),
    )


def _call(domain: str, kind: str, given: str) -> ToolCall:
    target = Target.model_validate({"domain": domain, "kind": kind, "text": f"{kind}:{given}", "given": given})
    return ToolCall(id="1", tool=domain, args={}, domain=domain, targets=(target,))


def _file(turn: Any, path: str) -> ToolCall:
    return ToolCall(id="1", tool="read", args={}, domain="read", targets=(turn.files.resolve(path),))


if __name__ == "__main__":
    for name, value, unit, bound in figures():
        print(f"{name:40} {value:10.2f} {unit:3} {'' if bound is None else f'≤ {bound:g}'}")

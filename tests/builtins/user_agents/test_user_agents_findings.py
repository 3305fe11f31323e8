"""What is said of agent files, and when: a run speaks only of what it uses (D42, D41)."""

from __future__ import annotations

import json
from typing import Any

SHADOWED = "permission:\n  bash:\n    'rm *': deny\n    'git push*': deny\n    '*': allow"


def put(bench: Any, name: str, fields: str) -> None:
    folder = bench.home / "agents"
    folder.mkdir(exist_ok=True, mode=0o700)
    (folder / f"{name}.md").write_text(f"---\n{fields}\n---\nx\n", "utf-8")
    (folder / f"{name}.md").chmod(0o600)


def test_a_run_speaks_of_the_agent_that_it_uses_and_the_check_of_all(bench):
    """Each kind once with a count, each broken file on a line, lost denies of agents each; foreign fields not at all (D42)."""
    for number in range(3):
        put(bench, f"broken{number}", "id: [x")
        put(bench, f"odd{number}", "description: d\nmodel: sonnet\ntools: Read, Gerp\ncolor: red\nversion: 1.0")
    put(bench, "dead", f"description: d\n{SHADOWED}")
    put(bench, "off", "description: d\ndisable: true")
    (bench.vault / "s.json").write_text(json.dumps(["fine"]))
    run = ("run", "-m", "script:s.json", "hi")
    assert bench.cli(*run).stderr == ""
    said = bench.cli(*run, "--agent", "odd1").stderr.splitlines()
    assert len(said) == 2 and all("odd1.md:" in line for line in said)
    assert bench.cli(*run, "-q", "--agent", "odd1").stderr == ""
    done = bench.cli("agent", "check")
    lines = done.stdout.splitlines()
    assert done.returncode == 3 and sum("not YAML" in line for line in lines) == 3
    assert [line.partition("(")[2] for line in lines if "sonnet" in line or "Gerp" in line] == ["and 2 more of this kind)"] * 2
    lost = [line for line in lines if "it has no effect" in line]
    assert ["dead.md:5:" in lost[0], "dead.md:6:" in lost[1], "always wins" in lost[0], len(lines)] == [True, True, True, 7]
    rows = {row["file"].rpartition("/")[2]: row for row in json.loads(bench.cli("agent", "check", "--json").stdout)}
    assert len(rows["odd2.md"]["problems"]) == 2 and rows["off.md"]["disabled"] and rows["off.md"]["ok"]
    doctor = bench.cli("doctor").stdout
    assert "it has no effect" in doctor and doctor.count("sonnet") == 1 and doctor.count("not YAML") == 3


def test_an_agent_that_is_not_there_is_explained_by_its_file(bench):
    """Broken, switched off or under another id: the file is named and why, and not only that the agent is unknown (D41)."""
    put(bench, "reviewer", "id: reviewer\nid: reviewer")
    put(bench, "off", "description: d\ndisable: true")
    put(bench, "called", "id: differently")
    run = ("run", "-m", "script:s.json", "hi", "--agent")
    for name, said in (
        ("reviewer", "reviewer.md:2: the agent 'reviewer' is broken: the frontmatter is not YAML"),
        ("off", "off.md: the agent 'off' is disabled in its file"),
        ("called", "called.md: unknown agent 'called'\n  next: --agent differently, which is its id"),
        ("nobody", "unknown agent 'nobody'\n  next: moryflow agent list"),
    ):
        done = bench.cli(*run, name)
        assert done.returncode == 2 and said in done.stderr
    assert "off" not in bench.cli("agent", "list").stdout

"""Skills: listed in the prompt, read on demand, harmless whatever is in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_command
import pytest
from moryflow import RunOptions, open_host
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.skills import read_page, read_skill, skills_for
from moryflow_sdk import ToolError

pytestmark = pytest.mark.usefixtures("person")

GOOD = "---\nname: {name}\ndescription: Use it for {name}.\n---\n# How\nDo {name}.\n"


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "vault").mkdir()
    return tmp_path / "vault"


@pytest.fixture
def home(vault: Path) -> Path:
    return vault.parent / "home"


def put(folder: Path, name: str, text: str | bytes | None = None) -> Path:
    """Write a skill."""
    file = folder / name / "SKILL.md"
    file.parent.mkdir(parents=True)
    content = GOOD.format(name=name) if text is None else text
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_the_persons_come_first_and_a_name_counts_once(vault, home):
    """From the home, then from the vault's folders; a second of the same name is named and not used (S2.5)."""
    put(home / "skills", "review")
    put(vault / ".claude/skills", "review")
    put(vault / ".agents/skills", "release")
    found = skills_for(vault, home)
    assert [(skill.name, skill.source, skill.usable) for skill in found] == [
        ("review", "user", True), ("release", "vault", True), ("review", "vault", False),
    ]  # fmt: skip
    assert "is taken by" in found[2].problem


def test_skills_that_a_person_has_for_claude_code_are_read(vault, home, person, tmp_path):
    """Behind Moryflow's own, before the vault's; links within the person's folder count, others do not (S2.5, R13)."""
    put(home / "skills", "review")
    put(person / ".claude/skills", "review")
    put(person / ".claude/skills", "release")
    put(person / "dotfiles", "linked")
    (person / ".claude/skills/linked").symlink_to(person / "dotfiles/linked")
    put(tmp_path / "elsewhere", "foreign")
    (person / ".claude/skills/foreign").symlink_to(tmp_path / "elsewhere/foreign")
    put(vault / ".claude/skills", "release")
    found = {(skill.name, skill.source): skill.problem for skill in skills_for(vault, home)}
    assert {name for name, problem in found.items() if not problem} == {("linked", "user"), ("release", "user")}
    assert "leads out of" in found["foreign", "user"] and "is taken by" in found["release", "vault"]
    assert "release" in read_skill("release", vault, home)
    assert [(skill.name, skill.source) for skill in skills_for(vault, home, claude=False) if skill.usable] == [
        ("review", "user"), ("release", "vault"),
    ]  # fmt: skip


def test_the_files_of_a_skill_are_listed_without_hidden_and_secret_ones(vault, home):
    """The model is not sent to what it may not read (R13)."""
    folder = put(vault / ".claude/skills", "release").parent
    for name in ("notes.md", "lib/a.py", ".env", ".git/config", "lib/.cache/x", "id_rsa"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert read_skill("release", vault, home).endswith(":\n- lib/a.py\n- notes.md")


def test_a_vault_that_is_the_persons_own_folder_has_its_skills_once(home, person):
    """Both names lead to one folder."""
    put(person / ".claude/skills", "release")
    assert [skill.usable for skill in skills_for(person, home)] == [True]


@pytest.mark.parametrize("claude", [True, False])
async def test_the_switch_reaches_the_prompt(vault, home, person, claude):
    """`agents.runtime.skills.claude` and `agents.runtime.instructions.claude` turn them off (S2.5)."""
    put(person / ".claude/skills", "release")
    (person / ".claude/CLAUDE.md").write_text("be brief, says claude")
    section = {"claude": claude}
    (home / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"skills": section, "instructions": section}}}))
    (home / "config.jsonc").chmod(0o600)
    with LoopbackServer(replies.text("ok")) as server:
        environ = {"OPENAI_BASE_URL": server.url, "PATH": os.environ["PATH"]}
        async with await open_host(home, environ=environ) as host:
            session = await host.new_session(vault, model="openai/m")
            await session.prompt("go", options=RunOptions(on_ask="deny"))
        sent = json.dumps(server.requests[0].body)
    assert ("Use it for release" in sent) is claude and ("be brief, says claude" in sent) is claude


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("---\nname: good\n---\nx", "it has no description"),
        ("no frontmatter", "begins with a line"),
        ("---\nname: [\n---\n", "not YAML"),
        (b"---\nname: caf\xe9\n---\n", "not UTF-8"),
        (b"x" * (1024 * 1024 + 1), "larger than"),
    ],
)
def test_a_skill_that_is_wrong_is_named_and_the_others_work(vault, home, text, problem):
    """Left out, with the reason (S2.5)."""
    put(home / "skills", "broken", text)
    put(home / "skills", "fine")
    broken, fine = skills_for(vault, home)
    assert problem in broken.problem and not broken.usable and fine.usable


@pytest.mark.parametrize(
    "fields",
    [
        "description: Use it.",
        "name: A Title\ndescription: Use it.",
        "name: a--b\ndescription: Use it.",
        "name: " + "a" * 65 + "\ndescription: Use it.",
        "name: good\ndescription: Use it. When: always",
        "name: good\ndescription: Use it." + " x" * 600,
    ],
)
def test_the_folder_names_a_skill_that_only_describes_itself_oddly(vault: Path, home: Path, fields: str) -> None:
    """A title, a colon or a long text costs no skill (S2.5)."""
    put(home / "skills", "good", f"---\n{fields}\nlicense: x\n---\nx")
    (found,) = skills_for(vault, home)
    assert (found.name, found.usable) == ("good", True)
    assert found.description.startswith("Use it.") and len(found.description) <= 1024


def test_a_folder_that_is_no_name_needs_one_in_the_file(vault: Path, home: Path) -> None:
    """The model is given names that it can repeat (S2.5)."""
    put(home / "skills", "Bad Folder", "---\nname: good\ndescription: d\n---\nx")
    put(home / "skills", "Worse Folder", "---\nname: A Title\ndescription: d\n---\nx")
    assert [(found.name, found.usable) for found in skills_for(vault, home)] == [("good", True), ("Worse Folder", False)]


def test_a_link_out_of_the_vault_is_not_followed(vault, home):
    """A repository cannot make the host read another file of the person (R13)."""
    outside = vault.parent / "SKILL.md"
    outside.write_text(GOOD.format(name="secret"))
    (vault / ".claude/skills/secret").mkdir(parents=True)
    (vault / ".claude/skills/secret/SKILL.md").symlink_to(outside)
    (found,) = skills_for(vault, home)
    assert "leads out of" in found.problem and not found.characters


async def ask(vault: Path, home: Path, *answers) -> list[dict]:
    """Run a prompt; return the requests."""
    with LoopbackServer(*answers) as server:
        environ = {"OPENAI_BASE_URL": server.url, "PATH": os.environ["PATH"]}
        async with await open_host(home, environ=environ) as host:
            session = await host.new_session(vault, model="openai/m")
            await session.prompt("go", options=RunOptions(on_ask="deny"))
        return [request.body for request in server.requests]


async def test_the_head_is_in_the_prompt_and_the_body_on_demand(vault, home):
    """Name and description in every request; the body, and where its files are, through the tool (S2.5)."""
    put(home / "skills", "release")
    (home / "skills/release/tag.sh").write_text("touch marker")
    first, second = await ask(vault, home, replies.calls(("skill", {"name": "release"})), replies.text("ok"))
    system = first["messages"][0]["content"]
    assert "- release: Use it for release." in system and "Do release." not in system
    answer = second["messages"][-1]["content"]
    assert "Do release." in answer and "tag.sh" in answer
    assert not (vault / "marker").exists()


async def test_many_skills_are_found_by_a_search(vault, home):
    """A collection costs no more than the setting in each request; words find a skill, and its name reads it (S2.5, S0.82)."""
    for number in range(300):
        put(home / "skills", f"skill-{number}", f"---\nname: skill-{number}\ndescription: {'Long. ' * 30}\n---\nx")
    put(home / "skills", "zeta", "---\nname: zeta\ndescription: Use it when invoices are to be reconciled.\n---\nMatch them.")
    asked = [{"search": "reconcile the invoices"}, {"search": "zymurgy"}, {"name": "zeta"}]
    answers = [replies.calls(("skill", one)) for one in asked]
    requests = await ask(vault, home, *answers, replies.text("ok"))
    system = requests[0]["messages"][0]["content"]
    assert "There are 301; find one with `search`" in system and "Long." not in system and "skill-0, skill-1," in system
    assert len(system[system.index("Skills:") :]) < 3000
    said = [request["messages"][-1]["content"] for request in requests[1:]]
    assert said == ["- zeta: Use it when invoices are to be reconciled.", "no skill fits; try other words", "Match them."]
    config = {"agents": {"runtime": {"skills": {"searchAbove": 100_000}}}}
    (home / "config.jsonc").write_text(json.dumps(config))
    (home / "config.jsonc").chmod(0o600)
    (request,) = await ask(vault, home, replies.text("ok"))
    assert "- zeta: Use it when" in request["messages"][0]["content"]


def test_what_skills_cost_is_said(bench):
    """By ``session context``, for the plugin, and by ``skill list`` where it is too much (S2.5)."""
    for number in range(90):
        put(bench.home / "skills", f"skill-{number}", f"---\nname: skill-{number}\ndescription: {'Long. ' * 30}\n---\nx")
    assert "more than 2,000, so the model searches for skills" in bench.cli("skill", "list").stdout
    (bench.vault / "s.json").write_text(json.dumps(["fine"]))
    bench.cli("run", "-m", "script:s.json", "hi")
    assert 200 < json.loads(bench.cli("session", "context", "--json").stdout)["plugins"]["skills"] < 1000


async def test_an_unknown_skill_is_an_error_that_helps(vault, home):
    """The model is told what there is (S2.5)."""
    put(home / "skills", "release")
    _, second = await ask(vault, home, replies.calls(("skill", {"name": "relase"})), replies.text("ok"))
    assert "did you mean 'release'?" in second["messages"][-1]["content"]


async def test_without_skills_nothing_is_said_of_them(vault, home):
    """The system prompt stays as it was (S2.5)."""
    (request,) = await ask(vault, home, replies.text("ok"))
    assert "Skills:" not in request["messages"][0]["content"]
    assert "skill" not in [tool["function"]["name"] for tool in request["tools"]]


def test_the_command_lists_and_shows(vault, home):
    """For people and for programs; what cannot be used says why (CONTRACT §1)."""
    put(home / "skills", "release")
    put(home / "skills", "nameless", "---\nname: nameless\n---\n")

    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "moryflow", "skill", *words]
        environ = {**os.environ, "MORYFLOW_HOME": str(home)}
        return forked_command.run(command, cwd=vault, env=environ, text=True)

    assert "nameless" in cli("list").stdout and "not used: it has no description" in cli("list").stdout
    assert [row["usable"] for row in json.loads(cli("list", "--json").stdout)] == [False, True]
    assert "Do release." in cli("show", "release").stdout
    assert cli("show", "nope").returncode == 2


async def test_the_pages_that_a_skill_refers_to_are_read_without_a_question(vault, home):
    """They lie in the person's home, outside the vault; headless, nobody could be asked (S2.5, S3.2)."""
    put(home / "skills", "release")
    (home / "skills/release/references").mkdir()
    (home / "skills/release/references/how.md").write_text("Tag it.")
    calls = [
        replies.calls(("skill", {"name": "release", "file": file})) for file in ("references/how.md", "references/gone.md")
    ]
    *_, second, third = await ask(vault, home, *calls, replies.text("ok"))
    assert second["messages"][-1]["content"] == "Tag it."
    assert "has no file 'references/gone.md'" in third["messages"][-1]["content"]
    assert "references/how.md" in third["messages"][-1]["content"]


@pytest.mark.parametrize(
    "file", ["../../config.jsonc", "/etc/hostname", "link.md", ".env", "pipe", "folder", "bytes", "big", "../other/SKILL.md"]
)
def test_a_skill_opens_nothing_but_its_own_text(vault, home, file):
    """No way out of its folder, no secrets, nothing that hangs or is not text (R13)."""
    folder = put(home / "skills", "release").parent
    put(home / "skills", "other")
    (home / "config.jsonc").write_text("SECRET")
    (folder / "link.md").symlink_to(home / "config.jsonc")
    (folder / ".env").write_text("SECRET=1")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "bytes").write_bytes(b"caf\xe9")
    (folder / "big").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(ToolError) as refused:
        read_page("release", file, vault, home)
    assert "SECRET" not in str(refused.value)
    assert (refused.value.code == "outside") is (
        file in ("../../config.jsonc", "/etc/hostname", "link.md", ".env", "../other/SKILL.md")
    )


async def test_an_agent_that_cannot_read_a_skill_is_not_told_of_it(vault, home):
    """``explore`` has no such tool: a list of names would only cost (S2.3, S2.5)."""
    put(home / "skills", "release")
    script = vault.parent / "script.json"
    script.write_text(json.dumps([{"calls": [{"name": "task", "arguments": {"agent": "explore", "prompt": "x"}}]}, "a", "b"]))
    async with await open_host(home, environ={}) as host:
        session = await host.new_session(vault, model=f"script:{script}")
        await session.prompt("go", options=RunOptions(on_ask="deny"))
        provider: Any = next(item for item in host.plugin_set.providers if item.name == "script_model")
        requests = provider._scripts[str(script)].requests
    told = {request.purpose: "Skills:" in request.messages[0].text for request in requests}
    assert told == {"main": True, "child": False}


def test_a_link_in_a_circle_costs_itself(home: Path, vault: Path) -> None:
    """Every skill was lost with it, and a repository can bring one (invariant 5, S2.5)."""
    put(home / "skills", "good")
    loop = vault / ".agents" / "skills" / "loop"
    loop.mkdir(parents=True)
    (loop / "SKILL.md").symlink_to("SKILL.md")
    assert [(found.name, found.problem) for found in skills_for(vault, home)] == [
        ("good", ""),
        ("loop", "this is a link that leads nowhere: SKILL.md"),
    ]


def test_a_description_that_cannot_be_sent_is_no_skill(home: Path, vault: Path) -> None:
    """Half of a surrogate pair would end every turn (invariant 5, S2.5)."""
    put(home / "skills", "odd", '---\n{"name": "odd", "description": "\\ud800"}\n---\nx')
    (found,) = skills_for(vault, home)
    assert "not valid Unicode text" in found.problem

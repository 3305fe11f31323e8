"""The recipes of the cookbook, each in an isolated host: what it is for is what it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moryflow.testing import IsolatedHost, LoopbackServer, replies

COOKBOOK = Path(__file__).resolve().parents[2] / "user_examples" / "cookbook"


@pytest.fixture
def recipe(request: pytest.FixtureRequest, moryflow: IsolatedHost) -> IsolatedHost:
    """The isolated host, with the recipe that the test is named after; everything is allowed by rule."""
    moryflow.plugin(COOKBOOK / f"{request.function.__name__.removeprefix('test_recipe_')}.py")
    moryflow.allow_all()
    return moryflow


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A model's answer that calls a tool."""
    return {"calls": [{"name": name, "arguments": json.dumps(arguments)}]}


def seen(host: IsolatedHost) -> str:
    """What the model read last."""
    return host.model.requests[-1].messages[-1].text


def system(host: IsolatedHost) -> str:
    """The system prompt of the last request."""
    return host.model.requests[-1].messages[0].text


def slash(host: IsolatedHost, name: str, text: str = "") -> Any:
    """What a slash command answers."""
    command = host.host.plugin_set.commands[name]

    async def typed(scope: Any) -> Any:
        return await command.slash(text, scope.view(name.replace("-", "_")))

    return host.wait(host.session().scoped(typed))[0]


def test_every_recipe_has_a_test() -> None:
    """And each says in its docstring why, and how to try it."""
    for path in COOKBOOK.glob("*.py"):
        assert f"test_recipe_{path.stem}" in globals(), path
        assert "\nTry it: " in path.read_text(encoding="utf-8"), path


@pytest.mark.slow
def test_the_recipes_pass_the_checks_for_authors(tmp_path: Path) -> None:
    """They are copied more than any others (S2.21)."""
    copied = [Path(shutil.copy(path, tmp_path)) for path in sorted(COOKBOOK.glob("*.py")) if path.stem != "create_ticket"]
    for path in copied:
        path.chmod(0o600)
    options = [word for path in copied for word in ("--moryflow-plugin", str(path))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_recipe_create_ticket(recipe: IsolatedHost) -> None:
    """Rules are asked about the configured address; the service is sent the key, the model is sent the number."""
    with LoopbackServer(replies.Reply(b'{"id": 7}'), replies.failure(503)) as server:
        settings = {"plugins": {"create_ticket": {"api_key": "k-swordfish", "url": f"{server.url}/tickets"}}}
        rules = [{"domain": "web_fetch", "pattern": f"{server.url}/**", "decision": "allow"}]
        recipe.configure({**settings, "agents": {"runtime": {"permission": {"rules": rules}}}})
        assert recipe.call_tool("create_ticket", title="It rains in").result.output == "ticket 7"
        assert server.requests[0].headers["authorization"] == "Bearer k-swordfish"
        assert server.requests[0].body == {"title": "It rains in"}
        assert recipe.call_tool("create_ticket", title="Again").result.status == "error"


def test_recipe_csv_query(recipe: IsolatedHost) -> None:
    """It adds up; it opens no other file, and says which columns there are."""
    (recipe.vault / "sales.csv").write_text("city,amount\nRome,3\nOslo,4\nRome,5\n", encoding="utf-8")
    sql = "select city, sum(amount) as total from data group by city order by city"
    found = recipe.call_tool("csv_query", path="sales.csv", sql=sql).result
    assert json.loads(found.output) == [{"city": "Oslo", "total": 4}, {"city": "Rome", "total": 8}]
    wrong = recipe.call_tool("csv_query", path="sales.csv", sql="select town from data").result
    assert "the columns are city, amount" in wrong.output
    assert "too many attached" in recipe.call_tool("csv_query", path="sales.csv", sql="attach 'x.db' as x").result.output


def test_recipe_count_words(recipe: IsolatedHost) -> None:
    """The model reads the sum, a person sees the progress."""
    (recipe.vault / "a.md").write_text("one two", encoding="utf-8")
    (recipe.vault / "b.md").write_text("three", encoding="utf-8")
    recipe.run("count", [call("count_words", folder="."), "done"])
    assert json.loads(seen(recipe)) == {"files": 2, "words": 3}
    assert any("2 files" in event.data["text"] for event in recipe.events if event.type == "tool.delta")


def test_recipe_bar_chart(recipe: IsolatedHost) -> None:
    """A real PNG, in the result and in a file."""
    result = recipe.call_tool("bar_chart", values=[3, 1, 4]).result
    path = Path(result.output.partition("kept as ")[2])
    assert (recipe.vault / path).read_bytes().startswith(b"\x89PNG")
    assert (result.images[0].media_type, result.images[0].width) == ("image/png", 36)


def test_recipe_no_push_to_main(recipe: IsolatedHost) -> None:
    """Wherever it stands in a line, and where no branch is named; other branches are free."""

    def decision(command: str) -> str:
        return recipe.fire("tool_gate", call={"tool": "bash", "args": {"command": command}}).value["decision"]

    forbidden = (
        "git push origin main",
        "git push -f origin HEAD:refs/heads/master",
        "cd x; git push origin +main",
        "cd x && git push",
        "git -C x push",
        "git -c a.b=c --no-pager push origin main",
        'sh -c "git push"',
        "echo $(sudo -u you git push origin HEAD)",
        "xargs git push origin < branches",
        "bash <<< 'git push'",
        "git push origin $BRANCH",
        "if true; then git push origin main",
    )
    assert [command for command in forbidden if decision(command) != "deny"] == []
    free = ("git push origin topic", "cd x && git push -u origin topic", "echo git push", "git log --grep 'git push'")
    assert [command for command in free if decision(command) == "deny"] == []


def test_recipe_ask_folder(recipe: IsolatedHost) -> None:
    """No spelling leads around it, and nobody being there means no."""
    assert recipe.call_tool("write", path="free.md", content="x").result.status == "ok"
    assert recipe.call_tool("write", path="x/../contracts/2026/a.md", content="x", mode="full_access").result.status != "ok"
    fired = recipe.fire("tool_gate", call={"tool": "write", "args": {"path": "contracts/a.md", "content": "x"}})
    assert (fired.value["decision"], fired.value["reason"]) == ("ask", "contracts are signed: vault:/contracts/a.md")


def test_recipe_generated_files(recipe: IsolatedHost) -> None:
    """What says of itself that it was generated stays as it is."""
    (recipe.vault / "api.py").write_text("# Generated by protoc. DO NOT EDIT!\n", encoding="utf-8")
    assert "run the generator" in recipe.call_tool("write", path="api.py", content="x").result.output
    assert recipe.call_tool("write", path="own.py", content="x").result.status == "ok"


def test_recipe_read_only(recipe: IsolatedHost) -> None:
    """Off by default; on, nothing changes in any mode, and the model is told."""
    recipe.configure({"plugins": {"read_only": {"on": True}}})
    (recipe.vault / "a.md").write_text("text", encoding="utf-8")
    steps = [call("bash", command="touch b.md"), call("write", path="b.md", content="x"), call("read", path="a.md"), "done"]
    recipe.run("look", steps, mode="full_access")
    assert "text" in seen(recipe) and not (recipe.vault / "b.md").exists()
    assert "You only read" in system(recipe)


def test_recipe_house_secrets(recipe: IsolatedHost) -> None:
    """The usual keys and those of the house."""
    (recipe.vault / "a.md").write_text("ACME-123456 and sk-abcdefghijklmnopqrstuvwxyz\n", encoding="utf-8")
    recipe.run("read it", [call("read", path="a.md"), "done"])
    assert "ACME" not in seen(recipe) and "sk-abc" not in seen(recipe)


def test_recipe_only_the_end(recipe: IsolatedHost) -> None:
    """Sixty lines stay."""
    recipe.run("count", [call("bash", command="seq 100"), "done"])
    assert "[41 lines left out]" in seen(recipe) or "[40 lines left out]" in seen(recipe)
    assert "\n100" in seen(recipe) and "\n39\n" not in seen(recipe)


def test_recipe_translate_results(recipe: IsolatedHost) -> None:
    """The model of the conversation reads the translation only."""
    recipe.configure({"plugins": {"translate_results": {"tools": ["read"]}}})
    (recipe.vault / "a.md").write_text("Guten Morgen", encoding="utf-8")
    recipe.run("read it", [call("read", path="a.md"), {"purpose": "complete", "text": "Good morning"}, "done"])
    assert seen(recipe) == "Good morning"


def test_recipe_format_after_edit(recipe: IsolatedHost) -> None:
    """The command gets the file, and the model a line about it."""
    tidy = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text().replace('=', ' = '))"
    recipe.configure({"plugins": {"format_after_edit": {"commands": {".py": [sys.executable, "-c", tidy]}}}})
    recipe.run("write", [call("write", path="a.py", content="x=1\n"), call("write", path="a.md", content="x=1\n"), "done"])
    assert (recipe.vault / "a.py").read_text(encoding="utf-8") == "x = 1\n"
    assert (recipe.vault / "a.md").read_text(encoding="utf-8") == "x=1\n"
    results = [message.text for message in recipe.model.requests[-1].messages if message.role == "tool"]
    assert ["read it again" in text for text in results] == [True, False]


def test_recipe_git_context(recipe: IsolatedHost) -> None:
    """Also where there is no repository."""
    recipe.run("hi", ["hello"])
    assert "Today is" in system(recipe) and "git branch" not in system(recipe)
    (recipe.vault / ".git").mkdir()
    (recipe.vault / ".git" / "HEAD").write_text("ref: refs/heads/feature/x\n", encoding="utf-8")
    recipe.run("hi", ["hello"])
    assert "The git branch is feature/x." in system(recipe)


def test_recipe_agent_temperature(recipe: IsolatedHost) -> None:
    """By agent; others keep theirs."""
    recipe.run("hi", ["hello"], session=recipe.session(agent="plan"))
    recipe.run("hi", ["hello"], session=recipe.session(agent="build"))
    assert [request.params.temperature for request in recipe.model.requests] == [0.7, 0.1]


def test_recipe_fallback_model(recipe: IsolatedHost) -> None:
    """The second service answers when the first cannot, and a wrong key is no reason to ask another."""
    with (
        LoopbackServer(replies.failure(503), replies.failure(401)) as first,
        LoopbackServer(replies.text("Here I am")) as second,
    ):
        services = [{"url": server.url, "model": "large"} for server in (first, second)]
        recipe.configure({"plugins": {"fallback_model": {"services": services}}})
        session = recipe.session(model="steady")
        assert recipe.run("hi", session=session).text == "Here I am"
        assert recipe.run("hi", session=session).end_reason == "model_error"
        assert (len(first.requests), len(second.requests)) == (2, 1)


def test_recipe_reviewer(recipe: IsolatedHost) -> None:
    """Another agent starts it; it has its own prompt and only tools that read."""
    task = call("task", agent="reviewer", prompt="Review a.py", description="Review")
    recipe.run("have it reviewed", [task, {"purpose": "child", "text": "a.py:1 divides by zero."}, "done"])
    child = next(request for request in recipe.model.requests if request.purpose == "child")
    assert child.messages[0].text.startswith("You review code")
    assert ({schema.name for schema in child.tools}, child.params.temperature) == ({"read", "grep", "glob", "ls"}, 0.1)
    assert any("divides by zero" in message.text for message in recipe.model.requests[-1].messages)


def test_recipe_run_tests(recipe: IsolatedHost) -> None:
    """Green is said; red is sent to the agent."""
    script = "import sys; print('3 passed' if not sys.argv[1:] else 'E  assert 1 == 2'); sys.exit(len(sys.argv) - 1)"
    recipe.configure({"plugins": {"run_tests": {"command": [sys.executable, "-c", script]}}})
    assert slash(recipe, "run-tests").text == "3 passed"
    assert "assert 1 == 2" in slash(recipe, "run-tests", "-x").prompt


def test_recipe_cost_per_day(recipe: IsolatedHost) -> None:
    """What is unknown is left out; the command adds up."""
    for day, cost in (("2026-11-22", 0.5), ("2026-11-23", 1.25), ("2026-11-23", 0.25), ("2026-11-23", None)):
        event = {"type": "step.finish", "session": "s", "ts": f"{day}T10:00:00.000Z", "data": {"cost": cost}}
        recipe.fire("event", event=event)
    environ = {"PATH": os.environ["PATH"], "HOME": str(recipe.home.parent), "MORYFLOW_HOME": str(recipe.home)}
    command = [sys.executable, "-m", "moryflow", "costs"]
    done = subprocess.run(command, env=environ, cwd=recipe.vault, capture_output=True, text=True, check=False)
    assert done.stdout == "2026-11-22  $0.50\n2026-11-23  $1.50\n", done.stderr


def test_recipe_notify(recipe: IsolatedHost) -> None:
    """The command is told how the turn ended."""
    told = recipe.home.parent / "told"
    script = f"import os, sys; open({f'{told}.new'!r}, 'w').write(sys.argv[1]); os.rename({f'{told}.new'!r}, {str(told)!r})"
    recipe.configure({"plugins": {"notify": {"command": [sys.executable, "-c", script]}}})
    recipe.run("hi", ["hello"])
    subprocess.run(["sh", "-c", f"until [ -e '{told}' ]; do sleep 0.05; done"], check=True, timeout=60)
    assert told.read_text(encoding="utf-8") == "completed"


def test_recipe_call_budget(recipe: IsolatedHost) -> None:
    """The count belongs to the session: another turn of it goes on counting, another session begins anew."""
    recipe.configure({"plugins": {"call_budget": {"most": 1}}})
    session = recipe.session()
    recipe.run("go", [call("bash", command="echo one"), "done"], session=session)
    assert "one" in seen(recipe)
    recipe.run("go", [call("bash", command="echo two"), "done"], session=session)
    assert "was called 1 times" in seen(recipe)
    recipe.run("go", [call("bash", command="echo three"), "done"])
    assert "three" in seen(recipe)

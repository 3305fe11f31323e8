"""Agents at the command line: change them, hand a plan over, call a sub-agent, look in on it, count what it cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def finder(cli: Any) -> Any:
    """A sub-agent with a script of its own."""
    script = cli.vault.parent / "finder.json"
    script.write_text(json.dumps([cli.calls("hello", name="Ann"), "Found Ann.", "Still Ann."]), "utf-8")
    file = cli.home / "agents" / "finder.md"
    file.parent.mkdir(mode=0o700)
    file.write_text(
        json.dumps({"id": "finder", "mode": "subagent", "model": f"script:{script}"}).join(["---\n", "\n---\nFind.\n"])
    )
    file.chmod(0o600)
    return cli


def task(**order: Any) -> dict[str, Any]:
    """A model's answer that starts a sub-agent."""
    return {"calls": [{"name": "task", "arguments": {"agent": "finder", "prompt": "find Ann", **order}}]}


def shown(cli: Any, *arguments: str) -> Any:
    """What a command prints as JSON."""
    return json.loads(cli(*arguments, "--json").stdout)


def test_a_plan_is_handed_over_with_one_word(cli: Any) -> None:
    """/plan, a plan, then `build`: the same session, another agent, the agreed plan as the prompt (S2.18, D23)."""
    done = cli("chat", "-m", cli.script("The plan.", "Built."), stdin="/plan how?\nbuild\n")
    assert (done.returncode, done.stdout) == (0, "The plan.\nBuilt.\n")
    session = shown(cli, "session", "show")
    texts = [node["payload"].get("text") for node in session["nodes"] if node["kind"] == "user"]
    assert texts == ["how?", "The plan above is agreed. Carry it out step by step, and check each step."]
    assert [turn["agent"] for turn in session["turns"]] == ["plan", "build"] and session["agent"] == "build"
    assert [node["payload"] for node in session["nodes"] if node["kind"] == "marker"] == [{"agent": "plan"}, {"agent": "build"}]


def test_a_run_goes_on_with_another_agent(cli: Any) -> None:
    """--agent with -c changes the session's agent for good (S2.18)."""
    model = cli.script("The plan.", "Built.")
    cli("run", "-m", model, "--agent", "plan", "how?")
    cli("run", "-m", model, "-c", "--agent", "build", "go")
    assert shown(cli, "session", "show")["agent"] == "build"
    wrong = cli("run", "-m", model, "-c", "--agent", "biuld", "go")
    assert wrong.returncode == 2 and "did you mean 'build'" in wrong.stderr


def test_tab_at_an_empty_prompt_changes_the_agent(cli: Any, at_prompt: Callable[..., Any]) -> None:
    """Tab goes from agent to agent; with text before it, it completes (issue 6)."""
    terminal = at_prompt("-m", cli.script("The plan."))
    terminal.type("\t")
    terminal.expect("[plan] >")
    terminal.type("how?\r")
    terminal.expect("The plan.")
    terminal.type("/switch\r")  # is carried out when the turn has ended; while it runs, Tab does nothing
    terminal.expect("/switch NODE")
    terminal.expect("[plan] >")
    terminal.type("\t")
    terminal.type("/qui\t\r")
    assert terminal.end() == 0
    session = shown(cli, "session", "show")
    assert ([turn["agent"] for turn in session["turns"]], session["agent"]) == (["plan"], "build")
    assert "⠋" not in terminal.text.rpartition("/switch NODE")[2]


def test_a_sub_agent_is_called_by_its_name(finder: Any) -> None:
    """`@finder …` is a call of task, judged and recorded; then the session's own agent goes on (S2.19)."""
    done = finder("run", "-m", finder.script("Ann it is."), "@finder who is there?", "--output", "json")
    result = json.loads(done.stdout)
    assert (result["text"], result["steps"], result["exit_code"]) == ("Ann it is.", 4, 0)
    kinds = [node["kind"] for node in shown(finder, "session", "show")["nodes"]]
    assert kinds == ["user", "assistant", "tool", "note", "assistant"]
    wrong = finder("run", "-m", finder.script("x"), "@findr who?")
    assert wrong.returncode == 2 and "did you mean @finder?" in wrong.stderr
    for prompt, told in (("@plan who?", "--agent plan, or /plan in chat"), ("@finder", "needs a task")):
        wrong = finder("run", "-m", finder.script("x"), prompt)
        assert wrong.returncode == 2 and told in wrong.stderr
    for prompt in ("@everybody hello", "@title of it", "@everybody"):
        assert finder("run", "-m", finder.script("Hello to you."), prompt).stdout == "Hello to you.\n"


def test_run_waits_for_what_works_in_the_background(finder: Any) -> None:
    """The agent goes on with the result, and everything is counted together (S2.3)."""
    model = finder.script(task(background=True), "Started it.", "It found Ann.")
    result = json.loads(finder("run", "-m", model, "go", "--output", "json").stdout)
    assert (result["text"], result["steps"], result["usage"]["input"]) == ("It found Ann.", 5, 50)


def test_a_conversation_goes_to_a_sub_agent_and_back(finder: Any) -> None:
    """/children lists, /children ID goes there, a prompt is answered by the sub-agent, /parent leads back (S2.3)."""
    model = finder.script(task(description="Look for Ann"), "Done.", "Back again.")
    finder("run", "-m", model, "go")
    kid = shown(finder, "session", "tree")["children"][0]["session"]
    lines = ["/children", f"/children {kid}", "/parent", "/parent", "/quit"]
    done = finder("chat", "-c", stdin="\n".join(lines))
    assert f"{kid}  finder  completed, 2 steps  Look for Ann" in done.stderr
    assert f"session {kid} · finder · /parent leads back" in done.stderr
    assert "this session has no parent" in done.stderr
    there = finder("chat", "-c", stdin=f"/children {kid}\n/agent build\n")
    assert "stays with its agent" in there.stderr


def test_what_works_in_the_background_is_stopped_from_the_prompt(finder: Any, at_prompt: Callable[..., Any]) -> None:
    """No turn runs, and still a person can stop it (S4.15)."""
    (finder.vault.parent / "finder.json").write_text(json.dumps([{"text": "never", "delay": 600}]))
    terminal = at_prompt("-m", finder.script(task(background=True), "Started."))
    terminal.type("go\r")
    terminal.expect("Started.")
    terminal.type("/stop\r")
    terminal.expect("1 stopped")
    terminal.type("/children\r")
    terminal.expect("finder  stopped, 1 step")
    terminal.type("\x1b")  # leaves the list
    terminal.rest(0.5)
    assert terminal.quit() == 0


def test_the_tree_shows_sub_agents_below_their_call(finder: Any) -> None:
    """session tree: parent, child, how it ended; and from the child, who started it (S2.3)."""
    finder("run", "-m", finder.script(task(description="Look for Ann"), "Done."), "go")
    kid = shown(finder, "session", "tree")["children"][0]
    assert (kid["agent"], kid["end_reason"], kid["steps"]) == ("finder", "completed", 2)
    lines = finder("session", "tree").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "tool: task ok" in line)
    assert lines[at + 1].strip() == f"└ finder {kid['session']} “Look for Ann”: completed, 2 steps"
    assert "is a session of finder, started by" in finder("session", "tree", kid["session"]).stdout


def test_a_question_of_a_sub_agent_names_it_at_the_terminal(finder: Any, at_terminal: Callable[..., Any]) -> None:
    """The parent's person sees whose question it is (D66)."""
    (finder.vault.parent / "finder.json").write_text(json.dumps([finder.calls("danger", what="it"), "did it"]))
    terminal = at_terminal("run", "-m", finder.script(task(), "Done."), "go")
    terminal.expect("? finder: danger wants to")
    terminal.type("once\n")
    terminal.expect("Done.")
    assert terminal.end() == 0


def test_a_question_from_the_background_needs_no_id_and_takes_the_same_words(
    finder: Any, at_prompt: Callable[..., Any]
) -> None:
    """/reply without a word answers nothing, a turn asks it again with the same keys, a reason refuses it (R33, D66)."""
    turns = [finder.holding(), finder.calls("danger", what="it"), "did without"]
    (finder.vault.parent / "finder.json").write_text(json.dumps(turns))
    terminal = at_prompt("-m", finder.script(task(background=True), "Started.", {"text": "Late.", "delay": 3.0}, "x"))
    terminal.type("go\r")
    terminal.expect("Started.")
    terminal.expect("\n>")
    finder.let_go()
    terminal.expect("finder: danger wants to run")
    [question] = shown(finder, "approval", "list")
    terminal.expect("answer with /reply once|always|reject|stop, or why not")
    assert question["id"] not in terminal.text and question["session"] not in terminal.text.partition("danger wants")[2]
    terminal.type(f"/reply {question['id']}\r")
    terminal.expect("nothing was answered")
    terminal.expect("\n>")
    terminal.type("/show\r")
    terminal.expect("finder: danger wants to run")
    terminal.expect("\n>")
    terminal.type("hello\r")
    terminal.expect("[o]nce  [a]lways  [r]efuse  [s]top  or why not >")
    terminal.expect("Late.")
    terminal.expect("answer with /reply once")
    terminal.expect("\n>")
    terminal.type("/reply leave it\r")
    terminal.expect("has ended: completed")
    assert terminal.quit() == 0
    [answered] = shown(finder, "approval", "list", "--all")
    assert (answered["reply"], answered["message"]) == ("reject", "leave it")


def test_an_export_carries_the_sub_agents_along_and_a_fork_leaves_them(finder: Any, tmp_path: Any) -> None:
    """Imported, the tree stands as before and the child can be gone on with; a fork says where they stayed (S2.3, S2.14)."""
    finder("run", "-m", finder.script(task(), "Done."), "go")
    tree = shown(finder, "session", "tree")
    (kid,) = tree["children"]
    file = tmp_path / "family.jsonl"
    assert ", with 1 sub-agent\n" in finder("session", "export", "-o", str(file)).stderr
    copy = json.loads(finder("session", "import", str(file), "--json").stdout)
    assert len(copy["sub_agents"]) == 1 and copy["id"] != tree["session"]
    again = task(task_id=kid["session"], prompt="and now?")
    finder("run", "-r", copy["id"], "-m", finder.script(again, "Done."), "more")
    assert shown(finder, "session", "tree", copy["id"])["children"][0]["steps"] > kid["steps"]
    drawn = finder("session", "tree", copy["id"]).stdout.splitlines()
    assert drawn.index(next(line for line in drawn if copy["sub_agents"][0] in line)) == 3
    fork = finder("session", "fork", tree["session"])
    assert f"1 sub-agent stays with {tree['session']}" in fork.stderr
    assert shown(finder, "session", "tree", fork.stdout.strip())["children"] == []
    finder("run", "-r", fork.stdout.strip(), "-m", finder.script(again, "Done."), "more")
    told = [
        node["payload"] for node in shown(finder, "session", "show", fork.stdout.strip())["nodes"] if node["kind"] == "tool"
    ]
    assert told[-1]["code"] == "unknown_session" and "stay with the original" in told[-1]["output"]
    listed = [row["id"] for row in shown(finder, "session", "list")]
    lone = finder("session", "fork", kid["session"]).stdout.strip()
    assert lone not in listed and lone in [row["id"] for row in shown(finder, "session", "list")]


def test_nothing_is_written_over_a_question_that_stands(finder: Any, at_terminal: Callable[..., Any]) -> None:
    """What another sub-agent does meanwhile is shown when the question is answered: it could push it away (R33)."""
    (finder.vault.parent / "finder.json").write_text(json.dumps([finder.calls("danger", what="it"), "Found."]))
    other = finder.vault.parent / "other.json"
    other.write_text(json.dumps([finder.holding(), finder.calls("hello", name="Ann"), "Said."]))
    file = finder.home / "agents" / "other.md"
    file.write_text(
        json.dumps({"id": "other", "mode": "subagent", "model": f"script:{other}"}).join(["---\n", "\n---\nSay.\n"])
    )
    file.chmod(0o600)
    both = [{"name": "task", "arguments": {"agent": name, "prompt": "go"}} for name in ("finder", "other")]
    terminal = at_terminal("run", "-m", finder.script({"calls": both}, "Done."), "go")
    terminal.expect("[s]top  or why not > ")
    finder.let_go()
    while "completed" not in [kid["end_reason"] for kid in shown(finder, "session", "tree")["children"]]:
        terminal.rest(0.2)
    assert terminal.text.endswith("[s]top  or why not > ")
    terminal.type("once\n")
    terminal.expect("[other] • hello Ann")
    terminal.expect("Done.")
    assert terminal.end() == 0

"""Which calls do the same: a loop is noticed by what calls do, not by how they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.base.builtins import BUILTINS
from moryflow.cli.contributed import prepared_call
from moryflow.services import View, effect_of
from moryflow_sdk import Target, tool
from pydantic import BaseModel


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin, in a vault with two names for each file."""
    bench = replace(bench, builtins=BUILTINS)
    bench.config(permission={"rules": [{"domain": "bash", "pattern": "*", "decision": "allow"}]})
    (bench.vault / "sub").mkdir()
    (bench.vault / "a.md").write_text("a")
    (bench.vault / "sub/b.md").write_text("b")
    (bench.vault / "link.md").symlink_to("a.md")
    (bench.vault / "way").symlink_to("sub")
    return bench


async def test_twelve_calls_that_differ_in_their_description_are_a_loop(bench):
    """A remark makes no call another one (S0.60)."""
    calls = [("bash", {"command": "true", "description": f"try number {number}"}) for number in range(12)]
    outcome = await bench.run(bench.calls(*calls))
    assert (outcome.result.end_reason, len(outcome.tools())) == ("doom_loop", 5)


async def test_a_question_about_a_loop_comes_for_remarks_as_well(bench):
    """A person is asked at the fifth (S0.61)."""
    calls = [("bash", {"description": "x" * number, "command": "true"}) for number in range(8)]
    outcome = await bench.run(bench.calls(*calls), replies=["once"])
    assert [question["call_id"] for question in outcome.named("permission.asked")] == ["call_5_1"]


async def test_a_call_that_is_written_in_many_ways_is_one_call(bench):
    """Key order, defaults that are written out, other names of a path, other forms of a number (S0.60)."""
    forms = [
        {"path": "a.md"},
        {"path": "./a.md", "offset": 1},
        {"offset": 1.0, "path": "sub/../a.md"},
        {"path": str(bench.vault / "a.md")},
        {"path": "link.md"},
    ]
    outcome = await bench.run(bench.calls(*[("read", form) for form in forms]))
    assert outcome.result.end_reason == "doom_loop"


SAME = [
    ("bash", {"command": "ls"}, {"command": "ls", "workdir": "."}),
    ("bash", {"command": "ls"}, {"command": "ls", "workdir": None, "timeout": 120, "description": ""}),
    ("bash", {"command": "ls", "workdir": "sub"}, {"command": "ls", "workdir": "./way/", "description": "look"}),
    ("bash", {"command": "ls", "timeout": 5}, {"timeout": 5.0, "command": "ls "}),
    ("read", {"path": "a.md"}, {"path": "link.md"}),
    ("read", {"path": "new.md"}, {"path": "way/../new.md"}),
    ("write", {"path": "a.md", "content": "x"}, {"content": "x", "path": "./a.md"}),
    ("grep", {"pattern": "x"}, {"pattern": "x", "path": "."}),
    ("task", {"agent": "a", "prompt": "p"}, {"agent": "a", "prompt": "p", "description": "d", "background": False}),
]
OTHER = [
    ("bash", {"command": "ls"}, {"command": "ls", "workdir": "sub"}),
    ("bash", {"command": "ls"}, {"command": "ls -l"}),
    ("bash", {"command": "ls"}, {"command": "ls", "timeout": 5}),
    ("read", {"path": "a.md"}, {"path": "sub/b.md"}),
    ("read", {"path": "a.md"}, {"path": "a.md", "offset": 2}),
    ("write", {"path": "a.md", "content": "x"}, {"path": "a.md", "content": "y"}),
    ("write", {"path": "a.md", "content": "a.md"}, {"path": "a.md", "content": "b.md"}),
    ("write", {"path": "a.md", "content": "1"}, {"path": "a.md", "content": "1.0"}),
    ("task", {"agent": "a", "prompt": "p"}, {"agent": "a", "prompt": "q"}),
]


@pytest.mark.parametrize(("name", "one", "two", "same"), [*((*row, True) for row in SAME), *((*row, False) for row in OTHER)])
async def test_what_a_call_does_tells_calls_apart(bench, name, one, two, same):
    """Calls are the same where they do the same, and only there (S0.60)."""
    async with bench.host() as host, host.read_only(vault=bench.vault) as scope:
        turn = View(scope, "permission")
        first, second = (prepared_call(turn, name, args) for args in (one, two))
    assert (first.effect == second.effect) is same
    assert first.hash != second.hash, "what was judged stays what was written"


class Step(BaseModel):
    """A part of the arguments."""

    path: str
    again: bool = False
    weight: float = 1


@tool(remarks=("why",), targets=lambda args: [step["path"] for step in args["steps"]], domain="read")
def steps(steps: list[Step], limit: int | None = None, why: str = "") -> str:
    """Do all of it."""
    return why


def effect(args, places=None):
    args = steps.validate(args)
    texts = places or {}
    found = [step["path"] for step in args["steps"]]
    return effect_of(steps, args, [Target(domain="read", kind="file", text=texts.get(p, p), given=p) for p in found])


@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), max_size=4),
    other=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), max_size=4),
    why=st.text(max_size=8),
)
def test_any_spelling_of_the_same_steps_is_the_same(rows, other, why):
    """In lists and members too: numbers, paths, remarks and key order make no difference; all else does (S0.60)."""
    long = {"why": why, "limit": None, "steps": [{"weight": float(w), "again": a, "path": f"./{p}"} for p, a, w in rows]}
    short = {"steps": [{"path": p, "again": a, "weight": w} for p, a, w in rows]}
    places = {f"./{name}": name for name in "abc"}
    assert effect(long, places) == effect(short)
    assert (effect({"steps": [{"path": p, "again": a, "weight": w} for p, a, w in other]}) == effect(short)) is (rows == other)


@pytest.mark.parametrize(("remarks", "said"), [(("whi",), "not a parameter of f"), ("why", 'remarks=\\("why",\\)')])
def test_a_remark_that_is_no_parameter_is_refused(remarks, said):
    """A slip would count every call as another one (S3, D26)."""
    with pytest.raises(TypeError, match=said):

        @tool(remarks=remarks)
        def f(why: str) -> str:
            """Do it."""
            return why


async def test_a_tool_of_a_person_may_have_remarks(bench):
    """Authors declare them as the built-in tools do (S0.60)."""
    bench = replace(bench, builtins=type(bench)(bench.home, bench.vault).builtins)
    bench.tool("""
    @tool(domain="read", remarks=("why",))
    def ping(x: int = 0, why: str = "") -> str:
        "Ping."
        return "pong"
    """)
    outcome = await bench.run(bench.calls(*[("ping", {"x": 1, "why": f"{number}"}) for number in range(9)]))
    assert (outcome.result.end_reason, len(outcome.tools())) == ("doom_loop", 5)

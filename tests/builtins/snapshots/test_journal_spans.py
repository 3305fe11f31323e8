"""Many calls joined to one span per file: what the agent did is brought back, what a person did in between is noticed."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.snapshots.journal import Change, FoundChanges, add, changes_in, spans
from moryflow_builtins.snapshots.shadow import Shadow, SnapshotSettings

FILES = ("a", "b")
STEPS = st.lists(
    st.tuples(st.sampled_from(["call", "command", "person"]), st.sampled_from(FILES), st.sampled_from([*FILES, ""])), max_size=6
)


class World:
    """A vault in which an agent and a person write, and what a fair witness would say of each file."""

    def __init__(self, base: Path) -> None:
        self.vault = base / "vault"
        self.vault.mkdir(parents=True)
        self.shadow = Shadow(base / "data", self.vault, SnapshotSettings())
        self.found, self._new = FoundChanges(), count()
        self.first: dict[str, str] = {}
        self.last: dict[str, str] = {}
        self.mixed: set[str] = set()

    def text(self, name: str) -> str:
        file = self.vault / name
        return file.read_text() if file.exists() else ""

    def write(self, name: str) -> None:
        (self.vault / name).write_text(f"{next(self._new)} {'x' * next(self._new)}")

    def person(self, name: str) -> None:
        """A person saves a file while nothing runs."""
        self.write(name)

    def agent(self, name: str, meanwhile: str, command: bool) -> None:
        """The agent writes a file, and perhaps a person another one in the same moment."""
        before = {file: self.text(file) for file in FILES}
        taken = self.shadow.snapshot()
        self.write(name)
        if meanwhile and meanwhile != name:
            self.write(meanwhile)
        after = self.shadow.snapshot()
        commands = ("bash",) if command else ()
        named = () if command else (name,)
        self.found.changes.append(
            Change(f"t:{taken.number}", "n", "", taken.tree, taken.number, after.tree, after.number, named, commands)
        )
        for file in FILES if command else (name,):
            if self.text(file) == before[file]:
                continue
            if file in self.last and self.last[file] != before[file]:
                self.mixed.add(file)
            self.first.setdefault(file, before[file])
            self.last[file] = self.text(file)


@settings(max_examples=25)
@given(steps=STEPS)
def test_spans_say_what_a_fair_witness_says(tmp_path_factory, steps):
    """Of every file the calls changed: the content before the first of them, and whether somebody wrote in between (S4.8)."""
    world = World(tmp_path_factory.mktemp("world").resolve())
    for kind, name, meanwhile in steps:
        if kind == "person":
            world.person(name)
        else:
            world.agent(name, meanwhile, kind == "command")
    joined, others = spans(world.shadow, world.found)
    assert {span.path for span in joined} == world.last.keys() and not set(others) & world.last.keys()
    for span in joined:
        wanted = [blob.hash for blob in (span.before, span.after) if blob is not None]
        contents = world.shadow.contents(wanted)
        before = contents[span.before.hash].decode() if span.before else ""
        after = contents[span.after.hash].decode() if span.after else ""
        assert (before, after) == (world.first[span.path], world.last[span.path])
        assert span.broken == (span.path in world.mixed)


def test_a_line_that_was_cut_off_is_left_out_and_the_last_line_of_a_thing_stands(tmp_path):
    """A crash in the middle of a line costs that line (SECURITY §3)."""
    file = tmp_path / "sessions" / "s.jsonl"
    whole = Change("t:1", "n", "", "b", 1, "a", 2, named=("x",))
    add(file, whole._replace(after="", ended=0), whole)
    with file.open("a") as out:
        out.write('[1]\n{"is": "spell"}\nnot json\n{"id": "t:2", "nod')
    assert changes_in(file) == {"t:1": whole}

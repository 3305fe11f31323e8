"""Many calls joined to one span per file: what the agent did is brought back, what a person did in between is noticed."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.snapshots.journal import Change, add, changes_in, spans
from moryflow_builtins.snapshots.shadow import Shadow, SnapshotSettings

FILES = ("a", "b")
STEPS = st.lists(
    st.tuples(st.sampled_from(["call", "user"]), st.sampled_from(FILES), st.sampled_from([*FILES, ""])), max_size=6
)


class World:
    """A vault in which an agent and a person write, and what a fair witness would say of each file."""

    def __init__(self, base: Path) -> None:
        self.vault = base / "vault"
        self.vault.mkdir(parents=True)
        self.shadow = Shadow(base / "data", self.vault, SnapshotSettings())
        self.changes, self._new = list[Change](), count()
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

    def agent(self, name: str, also: str) -> None:
        """A call writes one or two files."""
        before = {file: self.text(file) for file in FILES}
        taken = self.shadow.snapshot()
        for each in {name, also} - {""}:
            self.write(each)
        self.changes.append(Change(f"t:{taken.number}", "n", "", taken.tree, taken.number, self.shadow.snapshot().tree))
        for file in {name, also} - {""}:
            if file in self.last and self.last[file] != before[file]:
                self.mixed.add(file)
            self.first.setdefault(file, before[file])
            self.last[file] = self.text(file)


@settings(max_examples=25)
@given(steps=STEPS)
def test_spans_say_what_a_fair_witness_says(tmp_path_factory, steps):
    """Of every file the calls changed: the content before the first of them, and whether somebody wrote in between (S4.8)."""
    world = World(tmp_path_factory.mktemp("world").resolve())
    for kind, name, also in steps:
        if kind == "user":
            world.person(name)
        else:
            world.agent(name, also)
    joined = spans(world.shadow, world.changes)
    assert {span.path for span in joined} == world.last.keys()
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
    whole = Change("t:1", "n", "", "b", 1, "a")
    add(file, whole._replace(after=""), whole)
    with file.open("a") as out:
        out.write('[1]\n{"is": "spell"}\nnot json\n{"id": "t:2", "nod')
    assert changes_in(file) == {"t:1": whole}

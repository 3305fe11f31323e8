"""The two parts of a file of the bank: one that tools keep, one that belongs to the person."""

from __future__ import annotations

from dataclasses import dataclass

MACHINE = ("<!-- MACHINE_BLOCK_START -->", "<!-- MACHINE_BLOCK_END -->")
USER = ("<!-- USER_BLOCK_START -->", "<!-- USER_BLOCK_END -->")
MARKERS = (*MACHINE, *USER)


@dataclass(frozen=True)
class Blocks:
    """A file cut at its markers: ``head + machine + between + user + tail`` is the file, byte for byte."""

    head: str
    machine: str
    between: str
    user: str
    tail: str

    @property
    def around(self) -> tuple[str, str, str, str]:
        """All that no tool may change."""
        return self.head, self.between, self.user, self.tail

    def with_machine(self, inner: str) -> str:
        """Return the file with other text between the machine markers."""
        return f"{self.head}{MACHINE[0]}\n{inner.strip(chr(10))}\n{MACHINE[1]}{self.between}{self.user}{self.tail}"

    @property
    def machine_text(self) -> str:
        """What stands between the machine markers."""
        return self.machine.removeprefix(MACHINE[0]).removesuffix(MACHINE[1])


def split(text: str) -> Blocks | None:
    """Return the blocks of a file; ``None`` unless each marker stands in it once, in order."""
    if any(text.count(marker) != 1 for marker in MARKERS):
        return None
    places = [text.index(marker) for marker in MARKERS]
    if places != sorted(places):
        return None
    machine_end = places[1] + len(MACHINE[1])
    user_end = places[3] + len(USER[1])
    return Blocks(
        head=text[: places[0]],
        machine=text[places[0] : machine_end],
        between=text[machine_end : places[2]],
        user=text[places[2] : user_end],
        tail=text[user_end:],
    )


def problem_of(text: str) -> tuple[str, int] | None:
    """Return what is wrong with the markers of a file and the line it stands on; ``None`` when they are as they must be."""
    lines = text.splitlines()
    for marker in MARKERS:
        found = [number for number, line in enumerate(lines, 1) if marker in line]
        if not found:
            return f"{marker} is missing", 1
        if len(found) > 1 or text.count(marker) > 1:
            return f"{marker} stands there more than once", found[-1]
    if split(text) is None:
        return "the markers are not in order: machine block first, then the user's", 1
    return None

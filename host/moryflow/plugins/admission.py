"""Which code may be imported: the policy that loading asks before it runs a plugin."""

from __future__ import annotations

from typing import Protocol

from .code_units import Fingerprints
from .discovery import Candidate


class Admission(Protocol):
    """Says no by raising :class:`~moryflow.hooks.plugin_set.LoadFailure`, or ``Pending`` for not yet.

    :ivar prints: content hashes of installed code.
    """

    prints: Fingerprints

    def place(self, candidate: Candidate) -> None:
        """Judge where a candidate lies, before it is read."""
        ...

    def code(self, candidate: Candidate, digest: str) -> None:
        """Judge code that was not loaded before, by its content hash."""
        ...


class _AdmitAll:
    """Lets everything be imported: for built-in plugins, tests, and the probe itself."""

    def __init__(self) -> None:
        self.prints = Fingerprints()

    def place(self, candidate: Candidate) -> None:
        """Any place will do."""

    def code(self, candidate: Candidate, digest: str) -> None:
        """So will any code."""


admit_all: Admission = _AdmitAll()

"""The probe: code that was not seen before, by its content hash, is tried in a child process with limits first.

It detects faults and is not a sandbox: an endless loop, ``os._exit`` or a crash ends the probe, not the host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .policy import AdmissionPolicy

# The beginning of the line with the verdict in what a child reports.
VERDICT = "="


class PreflightStatus:
    """The admission policy of a host, made once there is a third-party plugin.

    :ivar news: whether a probe has ended that nobody waited for; the code that takes up its result resets this.
    :ivar tell: called then, from any thread.
    """

    def __init__(self) -> None:
        self._policy: AdmissionPolicy | None = None
        self.news = False
        self.tell: Callable[[], None] = lambda: None

    def policy(self, home: Path) -> AdmissionPolicy:
        """Return the policy, updated to what is installed now."""
        from .policy import AdmissionPolicy

        if self._policy is None:
            self._policy = AdmissionPolicy(home, news=self._tell)
        else:
            self._policy.look_again()
        return self._policy

    def _tell(self) -> None:
        self.news = True
        self.tell()

"""The probe: code not seen before, by content hash, goes first through a child process with limits.

It is a fault detector, not a sandbox: an endless loop, ``os._exit`` or a crash costs the probe and not the host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .policy import AdmissionPolicy


class PreflightStatus:
    """The admission policy of a host, made when there is a third-party plugin.

    :ivar news: whether a probe has ended that nobody had waited for; who takes in what it found sets it back.
    """

    def __init__(self) -> None:
        self._policy: AdmissionPolicy | None = None
        self.news = False
        self.listeners: list[Callable[[], None]] = []

    def policy(self, home: Path) -> AdmissionPolicy:
        """Return the policy, as things are installed now."""
        from .policy import AdmissionPolicy

        if self._policy is None:
            self._policy = AdmissionPolicy(home, news=self._tell)
        else:
            self._policy.look_again()
        return self._policy

    def _tell(self) -> None:
        self.news = True
        for listener in self.listeners:
            listener()

"""Which of the files below a judged folder may be shown in results (D3).

The person has agreed to the folder. A file in it is left out when its name looks like secrets and no rule allows it, or
when a rule, the person's or the agent's, asks or denies; and counted, so that nobody wonders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moryflow_sdk import Target, ToolContext
from moryflow_sdk.sensitive import sensitive, sensitive_among


@dataclass
class Reader:
    """Answers for one search and counts what it refused."""

    ctx: ToolContext
    target: Target
    secrets: int = 0
    by_rule: int = 0
    _policy: Any = None

    def refused(self, paths: Sequence[str]) -> set[str]:
        """Return those of `paths` (relative to the folder) that may not be shown, and count them."""
        suspects = paths if self._judges_all else sensitive_among(paths)
        return {path for path in suspects if not self.shows(path)}

    def shows(self, path: str) -> bool:
        """Whether one file may be shown; each that may not is counted, so ask once."""
        secret = sensitive(path)
        if not (secret or self._judges_all) or self._judge(path, secret=secret):
            return True
        self.secrets += secret
        self.by_rule += not secret
        return False

    @property
    def notes(self) -> list[str]:
        """What to say about the files that were left out."""
        counts = (
            (self.secrets, "sensitive", "their names look like secrets"),
            (self.by_rule, "other", "a rule asks or denies"),
        )
        return [f"{count} {kind} file{'s' * (count != 1)} not searched: {why}" for count, kind, why in counts if count]

    @cached_property
    def _judges_all(self) -> bool:
        """Whether there are rules that could refuse an ordinary file, or the host's own folder is inside."""
        rules = (*self.ctx.rules.all(), *self.ctx.agent.rules)
        home, folder = str(self.ctx.home), (self.target.path or "/").rstrip("/") + "/"
        return any(rule.domain == "read" for rule in rules) or home.startswith(folder) or folder.startswith(home + "/")

    def _judge(self, path: str, *, secret: bool) -> bool:
        """Judge a file as ``read`` would be judged; the folder's own place has been agreed to."""
        # The one matcher of rules; a search that read them differently would show what read refuses.
        from moryflow_builtins.permission.defaults import PLACES
        from moryflow_builtins.permission.files import judge_file
        from moryflow_builtins.permission.gate import policy_of

        if self._policy is None:
            self._policy = policy_of(self.ctx)
        text = f"{self.target.text.rstrip('/')}/{path}" if self.target.text != "vault:/" else f"vault:/{path}"
        whole = f"{(self.target.path or '').rstrip('/')}/{path}"
        answer = judge_file(self._policy, Target(domain="read", kind="file", text=text, path=whole))
        if answer.decision == "allow":
            return True
        if answer.decision == "ask" and answer.bypass == "mode" and self.ctx.mode == "full_access":
            return True
        by_place = answer.rule is not None and answer.rule.source == "default" and answer.rule.pattern in PLACES
        return by_place and not secret

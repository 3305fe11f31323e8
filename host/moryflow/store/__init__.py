"""The session store: the append-only node tree, who may append to it, and everything recorded beside it."""

from .errors import Outdated, SessionBusy, StaleEpoch, StoreError
from .records import (
    CALL_STATES,
    KINDS,
    ROOT,
    ApprovalRow,
    CallRow,
    Commit,
    Committed,
    Hit,
    HookCallRow,
    NewNode,
    Node,
    RunRow,
    SessionRow,
)
from .sqlite.session_lock import Hold
from .sqlite.store import Store
from .tree import Branch, Unfinished, labels, path_to, tree, unfinished

__all__ = [
    "CALL_STATES",
    "KINDS",
    "ROOT",
    "ApprovalRow",
    "Branch",
    "CallRow",
    "Commit",
    "Committed",
    "Hit",
    "Hold",
    "HookCallRow",
    "NewNode",
    "Node",
    "Outdated",
    "RunRow",
    "SessionBusy",
    "SessionRow",
    "StaleEpoch",
    "Store",
    "StoreError",
    "Unfinished",
    "labels",
    "path_to",
    "tree",
    "unfinished",
]

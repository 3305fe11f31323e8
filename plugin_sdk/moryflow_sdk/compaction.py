"""What the ``compaction`` hook may change before a long conversation is summarised."""

from __future__ import annotations

from ._frozen import Frozen


class CompactionPlan(Frozen):
    """A compaction that is about to run.

    :param covered: ids of the nodes the summary will stand for, oldest first.
    :param first_kept: id of the first node that stays verbatim (inclusive).
    :param protect: ids of nodes that must stay verbatim although they are covered.
    :param instructions: the prompt of the summarizer.
    :param context: extra text it is given as data.
    :param summary: a ready summary; the summarizer is then not called.
    :param decline: a reason not to compact now; empty means go on.
    :param tokens_before: what the conversation takes now, estimated.
    :param previous_summary: the summary that the new one takes in.
    """

    covered: tuple[str, ...]
    first_kept: str
    tokens_before: int
    previous_summary: str = ""
    protect: tuple[str, ...] = ()
    instructions: str = ""
    context: tuple[str, ...] = ()
    summary: str | None = None
    decline: str = ""

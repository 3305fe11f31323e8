"""What plugins may do to a compaction; each example of user_examples/compaction is run."""

from __future__ import annotations

from pathlib import Path

from compaction_paths import compact, kinds, talk, texts, user

EXAMPLES = Path(__file__).resolve().parents[3] / "user_examples" / "compaction"
ANSWER = {"text": "the answer"}


def install(bench, name: str) -> None:
    bench.plugin(name, (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").replace("from __future__ import annotations", ""))


async def prompted(bench, *turns, nodes=None, **options):
    """Run one prompt on a long session; return the path and the scripted model."""
    async with bench.host(*turns, **options) as host:
        session = await bench.session(host, nodes or talk(14, 1000))
        result = await session.prompt("and now?")
        return result, await host.store.path(session.id), host.scripted


async def test_a_plugin_keeps_messages_word_for_word(bench):
    """`protect`: covered nodes stay verbatim before the kept tail (S2.6)."""
    install(bench, "keep_pinned")
    nodes = [user("PIN: never touch main.py"), *talk(14, 1000)]
    _, path, _ = await prompted(bench, compact(), ANSWER, nodes=nodes)
    node = next(node for node in path if node.kind == "compaction")
    assert node.payload["details"]["protected"] == ("n0",)
    assert texts(path)[1] == "PIN: never touch main.py"


async def test_a_plugin_adds_context(bench):
    """`context`: the summarizer is given it as data (S2.6)."""
    install(bench, "tell_open_tasks")
    (bench.vault / "TODO.md").write_text("- [x] old\n- [ ] write the release notes\n")
    _, _, scripted = await prompted(bench, compact(), ANSWER)
    asked = scripted.requests[0].messages[1].text
    assert "write the release notes" in asked.split("<context>")[1] and "old" not in asked.split("<context>")[1]


async def test_a_plugin_changes_the_instructions(bench):
    """`instructions`: the summarizer's prompt is the plugin's (S2.6)."""
    install(bench, "legal_summary")
    _, _, scripted = await prompted(bench, compact(), ANSWER)
    assert "## Clauses" in scripted.requests[0].messages[0].text


async def test_a_plugin_supplies_the_summary(bench):
    """`summary`: no model is asked, and the host's checks still hold (S2.6, D22)."""
    install(bench, "outline_summary")
    _, path, scripted = await prompted(bench, ANSWER)
    assert [request.purpose for request in scripted.requests] == ["main"]
    assert "The user said, in order:" in texts(path)[0]


async def test_a_plugin_declines(bench):
    """`decline`: no summary, an event that says why, and the turn goes on (S2.6, S0.25)."""
    install(bench, "not_while_debugging")
    (bench.vault / "KEEP_CONTEXT").touch()
    result, path, _ = await prompted(bench, ANSWER)
    assert result.text == "the answer" and "compaction" not in kinds(path)
    assert bench.compactions("failed")[0]["reason"] == "declined: KEEP_CONTEXT is in the vault"


async def test_a_plugins_tokenizer_counts(bench):
    """`compaction.estimator` names a plugin with `count_tokens`; one that breaks counts as characters / 4 (S0.17)."""
    install(bench, "count_words")
    bench.config(estimator="count_words")
    _, path, _ = await prompted(bench, compact(), ANSWER, nodes=talk(14, 820))
    assert "compaction" in kinds(path)
    bench.plugin("count_words", "def count_tokens(text):\n    raise ValueError('no tokenizer')\n")
    _, path, _ = await prompted(bench, compact(), ANSWER, nodes=talk(14, 820))
    assert "compaction" not in kinds(path)


BAD = {
    "raises": "raise ValueError('broken')",
    "wrong type": "return 'a summary'",
    "unknown node": "return plan.replace(first_kept='elsewhere')",
    "between a call and its result": "return plan.replace(first_kept=plan.covered[-1] + 'x', protect=('nowhere',))",
}


async def test_rubbish_of_a_plugin_is_left_out(bench):
    """A failing hook is skipped; what it may not ask for is ignored and said; the compaction happens (S2.6, S0.95, D22)."""
    for body in BAD.values():
        bench.events.clear()
        bench.plugin("bad", f"@hookimpl\ndef compaction(plan):\n    {body}\n")
        result, path, _ = await prompted(bench, compact(), ANSWER)
        assert result.text == "the answer" and "compaction" in kinds(path)
        failed = [event.data for event in bench.events if event.type == "plugin.failed"]
        assert failed or bench.compactions("done")[0].get("remarks"), body


async def test_bad_summaries_of_plugins_are_refused(bench):
    """Empty, or larger than what it replaces: refused like a model's; history untouched, one event (D22)."""
    for summary, why in (("", "empty"), ("【会话摘要】", "empty"), ("x" * 60_000, "shrink")):
        bench.events.clear()
        bench.plugin("bad", f"@hookimpl\ndef compaction(plan):\n    return plan.replace(summary={summary!r})\n")
        result, path, _ = await prompted(bench, ANSWER)
        assert result.text == "the answer" and "compaction" not in kinds(path)
        (failed,) = bench.compactions("failed")
        assert why in failed["reason"]

"""Checks: a host lives with it: turns end as they should, and it can go and come back."""

from __future__ import annotations

from moryflow.testing.isolated import IsolatedHost

from .subject import Subject


def test_a_turn_works_with_it(plugin_subject: Subject) -> None:
    """A turn with a tool call ends as it should, and no hook of the plugin fails on the way."""
    plugin_subject.need()
    with plugin_subject.fresh("turn") as host:
        (host.vault / "a.md").write_text("hello", encoding="utf-8")
        result = host.run("go", [{"calls": [{"name": "read", "arguments": {"path": "a.md"}}]}, "done"])
        _check_failures(plugin_subject, host)
        if result.end_reason not in ("completed", "denied"):
            plugin_subject.fail(f"a turn that reads a file ends as {result.end_reason}", "moryflow trace shows who did what")


def test_a_turn_whose_tools_fail_works_with_it(plugin_subject: Subject) -> None:
    """A file that is not there, no arguments, a tool that is not there, arguments that are no JSON."""
    plugin_subject.need()
    calls = [("read", '{"path": "no-such-file"}'), ("read", "{}"), ("no_such_tool", "{}"), ("read", "{broken")]
    script = [{"calls": [{"name": name, "arguments": text} for name, text in calls]}, "done"]
    with plugin_subject.fresh("failing") as host:
        result = host.run("go", script)
        _check_failures(plugin_subject, host)
        if result.end_reason not in ("completed", "denied"):
            plugin_subject.fail(f"a turn whose tools fail ends as {result.end_reason}", "moryflow trace shows who did what")


def test_it_can_be_unloaded_and_loaded_again(plugin_subject: Subject) -> None:
    """Hosts come and go in one process; what it sets up twice must not be there twice."""
    plugin_subject.need()
    for _ in range(2):
        with plugin_subject.fresh("again") as host:
            if plugin_subject.name not in host.host.plugin_set.plugins:
                to_do = "keep nothing at module level that works only once"
                plugin_subject.fail("it does not load a second time in one process", to_do)
        failed = [event.data for event in host.events if event.type == "plugin.failed"]
        if failed:
            plugin_subject.fail(f"unloading fails: {failed[0]}", "let the disposer of plugin_start not raise")


def test_it_survives_a_reload(plugin_subject: Subject) -> None:
    """A new generation with the same code has the same hooks and tools, each once."""
    plugin_subject.need()
    with plugin_subject.fresh("reload") as host:
        before = _shape(host, plugin_subject.name)
        host.wait(host.host.refresh())
        host.wait(host.host.refresh())
        if _shape(host, plugin_subject.name) != before:
            plugin_subject.fail("after a reload it has other hooks or tools", "let the contribute hooks answer the same twice")


def test_it_passes_the_probe(plugin_subject: Subject) -> None:
    """Every host puts code it has not seen before through the probe, in a process with limits."""
    refusal = plugin_subject.refusal
    if refusal is not None and refusal.fatal:
        to_do = refusal.hint or "moryflow plugin check says more"
        plugin_subject.fail(f"the probe refuses it ({refusal.stage}): {refusal.error}", to_do, refusal.place)
    plugin_subject.need()


def _shape(host: IsolatedHost, name: str) -> tuple[list[str], list[str]]:
    plugin_set = host.host.plugin_set
    hooks = [hook for hook, items in plugin_set.hooks.items() for item in items if item.plugin == name]
    return hooks, sorted(tool for tool, owned in plugin_set.tools.items() if owned.plugin == name)


def _check_failures(subject: Subject, host: IsolatedHost) -> None:
    for event in host.events:
        if event.type in ("plugin.failed", "plugin.quarantined") and event.data.get("plugin") == subject.name:
            data = event.data
            place = f"{data.get('file')}:{data.get('line')}" if data.get("line") else data.get("file")
            subject.fail(f"{data.get('hook', 'it')} fails in a turn: {data.get('error')}", "mend that line", place)

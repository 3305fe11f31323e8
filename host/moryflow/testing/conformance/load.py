"""Checks: the plugin is found, loads completely, describes itself correctly, and works in turns, reloads and a second host."""

from __future__ import annotations

import inspect
import json
import threading
import tomllib
from typing import Any, cast

from moryflow_sdk import API, APIS, HOOKS, Tool
from moryflow_sdk.support.texts import nearest

from moryflow.testing.isolated import IsolatedHost

from . import Subject


def test_it_is_found(plugin_subject: Subject) -> None:
    """There is a plugin at the path: a file, a package, or a project with an entry point."""
    refusal = plugin_subject.refusal
    if refusal is not None and refusal.stage == "discover":
        plugin_subject.fail(refusal.error, refusal.hint or "name a file, a package, or a project's folder", refusal.place)


def test_it_loads(plugin_subject: Subject) -> None:
    """The plugin is imported, registered, configured and started without an error."""
    refusal, record = plugin_subject.refusal, plugin_subject.record
    if refusal is not None and refusal.stage != "discover" and not refusal.fatal:
        plugin_subject.fail(f"it fails at {refusal.stage}: {refusal.error}", refusal.hint or "fix that line", refusal.place)
    if record is not None and record.status != "loaded":
        plugin_subject.fail(f"it fails at {record.stage}: {record.error}", record.hint or "fix that line", record.place)


def test_nothing_of_it_is_left_out(plugin_subject: Subject) -> None:
    """The host accepts every hook and every item of the plugin."""
    plugin_subject.skip_unless_loaded()
    record = plugin_subject.record
    if record.error:
        plugin_subject.fail(f"the host leaves something out: {record.error}", record.hint or "fix or remove it")


LOOKED_FOR = ("count_tokens", "check_rules")
"""Functions of a plugin that are not hooks: an estimator for compaction, a check of permission rules."""


def test_it_does_something(plugin_subject: Subject) -> None:
    """The plugin implements at least one hook, or has a function that the host looks for by its name."""
    contents: Any = plugin_subject.plugin.object
    if plugin_subject.implementations() or any(hasattr(contents, name) for name in LOOKED_FOR):
        return
    if any(isinstance(value, Tool) for value in cast("dict[str, Any]", vars(contents)).values()):
        to_do = "move it to the tools folder and try moryflow tool check, or return its tools in a hook tools()"
        plugin_subject.fail("it is a file with tools, not a plugin", to_do)
    plugin_subject.fail("no function is marked with @hookimpl", f"name one after a hook: {', '.join(HOOKS)}")


def test_no_function_is_nearly_a_hook(plugin_subject: Subject) -> None:
    """A hook with a misspelt name, or without ``@hookimpl``, would never be called."""
    marked = {function for _, function in plugin_subject.functions()}
    plugin: Any = plugin_subject.plugin.object
    for name, value in cast("dict[str, Any]", vars(plugin)).items():
        function = inspect.unwrap(value) if callable(value) else None
        if not inspect.isfunction(function) or function in marked or name.startswith("_"):
            continue
        near = nearest(name, HOOKS, 0.85)
        if near and function.__module__ == getattr(plugin, "__name__", ""):
            what = f"{name} is named like a hook" if name == near else f"{name} is nearly the hook {near}"
            plugin_subject.fail(f"{what}, and is never called", "mark it with @hookimpl, or rename it", function)


def test_its_manifest_agrees(plugin_subject: Subject) -> None:
    """People read the manifest before they install the plugin: what it says of hooks, tools, version and ``api`` is so."""
    plugin_subject.skip_unless_loaded()
    file, project = plugin_subject.manifest, plugin_subject.project
    if file is None:
        if project is not None:
            is_module = "make the module a package: a folder with __init__.py and plugin.toml"
            to_do = "add one" if plugin_subject.package.is_dir() else is_module
            plugin_subject.fail("the package has no plugin.toml", to_do, plugin_subject.package)
        return
    manifest = tomllib.loads(file.read_text(encoding="utf-8"))
    hooks, tools = {item.hook for item in plugin_subject.implementations()}, {tool.name for tool in plugin_subject.tools}
    for key, found in (("hooks", hooks), ("tools", tools)):
        if key not in manifest:  # read from the code
            continue
        declared = {name.replace(".", "_") if key == "hooks" else name for name in map(str, manifest.get(key, ()))}
        if declared != found:
            missing, idle = ", ".join(sorted(found - declared)) or "-", ", ".join(sorted(declared - found)) or "-"
            text = f"{key} in the manifest differ from the code: not named: {missing}; not there: {idle}"
            plugin_subject.fail(text, f"take {key} out, or write {key} = {json.dumps(sorted(found))}", file)
    if manifest.get("api") not in APIS:
        plugin_subject.fail(f"api = {manifest.get('api')!r}", f"write api = {API}", file)
    if project is not None and str(manifest.get("version", project.version)) != project.version:
        difference = f"version = {manifest.get('version')!r}, and pyproject.toml says {project.version!r}"
        plugin_subject.fail(difference, "take it out", file)


def test_a_turn_works_with_it(plugin_subject: Subject) -> None:
    """A turn ends normally, and no hook of the plugin fails in it: a call that works, and calls that cannot work."""
    plugin_subject.skip_unless_loaded()
    calls = [("read", '{"path": "a.md"}'), ("read", '{"path": "no-such-file"}'), ("read", "{}"), ("no_such_tool", "{}")]
    calls.append(("read", "{broken"))
    with plugin_subject.fresh("turn") as host:
        (host.vault / "a.md").write_text("hello", encoding="utf-8")
        result = host.run("go", [{"calls": [{"name": name, "arguments": text} for name, text in calls]}, "done"])
        _check_failures(plugin_subject, host)
        if result.end_reason not in ("completed", "denied"):
            plugin_subject.fail(f"a turn that reads files ends as {result.end_reason}", "moryflow trace shows who did what")


def test_it_can_be_unloaded_and_loaded_again(plugin_subject: Subject) -> None:
    """Hosts open and close in one process: the plugin loads each time, unloads without an error, and leaves no thread."""
    plugin_subject.skip_unless_loaded()
    before = set(threading.enumerate())
    for _ in range(2):
        with plugin_subject.fresh("again") as host:
            if plugin_subject.name not in host.host.plugin_set.plugins:
                to_do = "keep nothing at module level that works only once"
                plugin_subject.fail("it does not load a second time in one process", to_do)
        failed = [event.data for event in host.events if event.type == "plugin.failed"]
        if failed:
            plugin_subject.fail(f"unloading fails: {failed[0]}", "let the disposer of plugin_start not raise")
    for thread in threading.enumerate():
        if thread not in before and not thread.name.startswith(("moryflow", "asyncio")):
            thread.join(1)
            if thread.is_alive():
                to_do = "end it in the function that plugin_start returns"
                plugin_subject.fail(f"thread {thread.name} goes on after it was unloaded", to_do)


def test_it_survives_a_reload(plugin_subject: Subject) -> None:
    """After a reload with the same code, the plugin has the same hooks and tools, each once."""
    plugin_subject.skip_unless_loaded()
    with plugin_subject.fresh("reload") as host:
        before = _shape(host, plugin_subject.name)
        host.wait(host.host.refresh())
        host.wait(host.host.refresh())
        if _shape(host, plugin_subject.name) != before:
            plugin_subject.fail("after a reload it has other hooks or tools", "let the contribute hooks answer the same twice")


def test_it_passes_the_probe(plugin_subject: Subject) -> None:
    """The plugin passes the probe, in which every host first runs new code: a separate process with limits."""
    refusal = plugin_subject.refusal
    if refusal is not None and refusal.fatal:
        to_do = refusal.hint or "moryflow plugin check says more"
        plugin_subject.fail(f"the probe refuses it ({refusal.stage}): {refusal.error}", to_do, refusal.place)
    plugin_subject.skip_unless_loaded()


def _shape(host: IsolatedHost, name: str) -> tuple[list[str], list[str]]:
    plugin_set = host.host.plugin_set
    hooks = [hook for hook, items in plugin_set.hooks.items() for item in items if item.plugin == name]
    return hooks, sorted(tool for tool, owned in plugin_set.tools.items() if owned.plugin == name)


def _check_failures(subject: Subject, host: IsolatedHost) -> None:
    for event in host.events:
        if event.type in ("plugin.failed", "plugin.quarantined") and event.data.get("plugin") == subject.name:
            data = event.data
            place = f"{data.get('file')}:{data.get('line')}" if data.get("line") else data.get("file")
            subject.fail(f"{data.get('hook', 'it')} fails in a turn: {data.get('error')}", "fix that line", place)

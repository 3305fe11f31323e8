"""Checks: the plugin is found, loads completely, describes itself correctly, and works in turns, reloads and a second host."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from moryflow_sdk import API, HOOKS, Frozen, Tool
from moryflow_sdk.services import SERVICES
from moryflow_sdk.support.texts import nearest

from moryflow.plugins.sources import compiler_warnings
from moryflow.testing.isolated import IsolatedHost

from . import Subject

_VIEWS = ("Turn", "ToolContext")


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


def test_it_says_what_it_is_for(plugin_subject: Subject) -> None:
    """The plugin has a docstring, which the list of plugins shows."""
    if not inspect.getdoc(plugin_subject.plugin.object):
        plugin_subject.fail("it has no docstring", "give the module a docstring that says what the plugin is for", 1)


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


def test_python_warns_of_nothing_in_it(plugin_subject: Subject) -> None:
    """Code such as an invalid escape, or ``is`` with a number, fails in a later Python or does not do what its author meant."""
    plugin_subject.skip_unless_loaded()
    for warning in compiler_warnings(plugin_subject.trees):
        place, _, what = warning.partition(": ")
        plugin_subject.fail(what, "fix that line", place)


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


def test_its_manifest_names_its_hooks(plugin_subject: Subject) -> None:
    """People read the manifest before they install the plugin, so its list of hooks must be correct."""
    _compare_manifest(plugin_subject, "hooks", {item.hook for item in plugin_subject.implementations()})


def test_its_manifest_names_its_tools(plugin_subject: Subject) -> None:
    """The manifest lists exactly the plugin's tools, for the same reason."""
    _compare_manifest(plugin_subject, "tools", {tool.name for tool in plugin_subject.tools})


def test_its_manifest_names_version_and_contract(plugin_subject: Subject) -> None:
    """In the manifest, ``version`` is the version of the package, and ``api`` that of the SDK."""
    manifest = _manifest(plugin_subject)
    if manifest is None:
        return
    if manifest.get("api") != API:
        plugin_subject.fail(f"api = {manifest.get('api')!r}", f"write api = {API}", plugin_subject.manifest)
    project = plugin_subject.project
    if project is not None and str(manifest.get("version", project.version)) != project.version:
        difference = f"version = {manifest.get('version')!r}, and pyproject.toml says {project.version!r}"
        plugin_subject.fail(difference, "make them the same", plugin_subject.manifest)


def test_it_declares_the_services_it_uses(plugin_subject: Subject) -> None:
    """The host refuses a service that is not declared, but only when it is used, perhaps in a rare branch."""
    declared = set(plugin_subject.plugin.services)
    for path, tree in plugin_subject.trees.items():
        for name, line in _used_services(tree):
            if name not in declared:
                where = plugin_subject.manifest or "services = (...) in the module"
                plugin_subject.fail(f"it uses turn.{name} without declaring it", f"add {name!r} to {where}", f"{path}:{line}")


def test_it_uses_the_services_it_declares(plugin_subject: Subject) -> None:
    """People are asked to consent to each declared service, so none is declared for nothing."""
    nodes = (node for tree in plugin_subject.trees.values() for node in ast.walk(tree))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for name in plugin_subject.plugin.services:
        if name not in names:
            text = f"it declares the service {name!r} and never uses it"
            plugin_subject.fail(text, "take it off the list", plugin_subject.manifest)


def test_its_settings_cannot_be_changed_by_a_hook(plugin_subject: Subject) -> None:
    """The settings are frozen, because all turns, also concurrent ones, share one object."""
    model = getattr(plugin_subject.plugin.object, "config_model", None)
    if model is not None and not issubclass(model, Frozen) and not model.model_config.get("frozen"):
        plugin_subject.fail(f"{model.__name__} is not frozen", "write model_config = ConfigDict(frozen=True) in it")


def test_its_settings_are_json(plugin_subject: Subject) -> None:
    """Settings come from a file and can be shown, so they are equal after conversion to JSON and back."""
    config = plugin_subject.plugin.config
    if not hasattr(config, "model_dump_json"):
        return
    try:
        model = cast("Any", type(config))
        text = config.model_dump_json(by_alias=True)
        again = model.model_validate_json(text)
        same = bool(again == config) or again.model_dump_json(by_alias=True) == text  # secrets are dumped masked
    except ValueError:
        same = False
    if not same:
        plugin_subject.fail("its settings change on the way to JSON and back", "use plain types in config_model")


def test_it_is_typed(plugin_subject: Subject) -> None:
    """A package has the empty file ``py.typed``, so that type checkers use its types."""
    plugin_subject.skip_unless_loaded()
    _require_file(plugin_subject, "py.typed", "add an empty file py.typed to it")


def _manifest(subject: Subject) -> Mapping[str, Any] | None:
    """Return the manifest's content; a project without one fails here."""
    subject.skip_unless_loaded()
    if subject.manifest is not None:
        return tomllib.loads(subject.manifest.read_text(encoding="utf-8"))
    _require_file(subject, "plugin.toml", "add one, and the entry point moryflow.manifest")
    return None


def _require_file(subject: Subject, name: str, to_do: str) -> None:
    """Fail if the package of a project lacks the file `name`. Only a package can have such files, not a single module."""
    if subject.project is None or (subject.package / name).is_file():
        return
    if not subject.package.is_dir():
        to_do = "make the module a package: a folder with __init__.py, plugin.toml and py.typed"
    subject.fail(f"the package has no {name}", to_do, subject.package)


def _compare_manifest(subject: Subject, key: str, found: set[str]) -> None:
    manifest = _manifest(subject)
    if manifest is None:
        return
    declared = {
        str(name).replace(".", "_") if key == "hooks" else str(name) for name in cast("list[Any]", manifest.get(key, ()))
    }
    if declared != found:
        missing, idle = ", ".join(sorted(found - declared)) or "-", ", ".join(sorted(declared - found)) or "-"
        text = f"{key} in the manifest differ from the code: not named: {missing}; not there: {idle}"
        subject.fail(text, f"write {key} = {sorted(found)!r}".replace("'", '"'), subject.manifest)


def _used_services(tree: ast.Module) -> list[tuple[str, int]]:
    """Return the services that functions use through a turn, each with its line."""
    found: list[tuple[str, int]] = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        views = {argument.arg for argument in function.args.args + function.args.kwonlyargs if _is_view(argument)}
        reads = (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr in SERVICES)
        found += [(node.attr, node.lineno) for node in reads if isinstance(node.value, ast.Name) and node.value.id in views]
    return found


def _is_view(argument: ast.arg) -> bool:
    annotation = ast.unparse(argument.annotation).strip("'\"") if argument.annotation else ""
    return annotation.split(" ")[0].rpartition(".")[2] in _VIEWS or (argument.arg == "turn" and not annotation)


def test_a_turn_works_with_it(plugin_subject: Subject) -> None:
    """A turn with a tool call ends normally, and no hook of the plugin fails in it."""
    plugin_subject.skip_unless_loaded()
    with plugin_subject.fresh("turn") as host:
        (host.vault / "a.md").write_text("hello", encoding="utf-8")
        result = host.run("go", [{"calls": [{"name": "read", "arguments": {"path": "a.md"}}]}, "done"])
        _check_failures(plugin_subject, host)
        if result.end_reason not in ("completed", "denied"):
            plugin_subject.fail(f"a turn that reads a file ends as {result.end_reason}", "moryflow trace shows who did what")


def test_a_turn_whose_tools_fail_works_with_it(plugin_subject: Subject) -> None:
    """A turn ends normally although its calls fail: a missing file, no arguments, an unknown tool, arguments without JSON."""
    plugin_subject.skip_unless_loaded()
    calls = [("read", '{"path": "no-such-file"}'), ("read", "{}"), ("no_such_tool", "{}"), ("read", "{broken")]
    script = [{"calls": [{"name": name, "arguments": text} for name, text in calls]}, "done"]
    with plugin_subject.fresh("failing") as host:
        result = host.run("go", script)
        _check_failures(plugin_subject, host)
        if result.end_reason not in ("completed", "denied"):
            plugin_subject.fail(f"a turn whose tools fail ends as {result.end_reason}", "moryflow trace shows who did what")


def test_it_can_be_unloaded_and_loaded_again(plugin_subject: Subject) -> None:
    """Several hosts may open and close in one process, so that the plugin is loaded and unloaded more than once."""
    plugin_subject.skip_unless_loaded()
    for _ in range(2):
        with plugin_subject.fresh("again") as host:
            if plugin_subject.name not in host.host.plugin_set.plugins:
                to_do = "keep nothing at module level that works only once"
                plugin_subject.fail("it does not load a second time in one process", to_do)
        failed = [event.data for event in host.events if event.type == "plugin.failed"]
        if failed:
            plugin_subject.fail(f"unloading fails: {failed[0]}", "let the disposer of plugin_start not raise")


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

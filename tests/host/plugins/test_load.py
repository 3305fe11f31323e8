"""Loading: each stage can fail, each failure is one record with its place, and nothing half-loaded stays."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import pytest

GOOD = """
@hookimpl
def tool_after(result):
    return None
"""


def names(plugin_set: Any, hook: str) -> list[str]:
    return [item.plugin for item in plugin_set.ordered(hook)]


def test_plugins_of_all_three_tiers_are_found_and_named(bench: Any):
    """Built-in tuple, entry points and the user's files are all places of plugins (S0.94)."""
    bench.builtin("inside", GOOD)
    bench.installed("from-package", GOOD)
    bench.user("own", GOOD)
    loaded = bench.load()
    ours = [(item.name, item.tier, item.status) for item in loaded.records if item.name in ("inside", "from-package", "own")]
    assert ours == [("inside", "builtin", "loaded"), ("from-package", "installed", "loaded"), ("own", "user", "loaded")]
    assert bench.record("from-package", loaded).version == "1.0"


def test_a_folder_with_an_init_file_is_a_plugin_with_submodules(bench: Any):
    folder = bench.home / "plugins" / "big"
    folder.mkdir(mode=0o755)
    for name, text in (
        ("__init__.py", "from .part import tool_after\n"),
        ("part.py", "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_after(result): ...\n"),
    ):
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o644)
    assert bench.record("big").hooks == ("tool_after",)


def test_a_file_may_name_another_encoding(bench: Any):
    """As Python reads it (SECURITY §4)."""
    bench.user("odd", GOOD)
    file = bench.home / "plugins" / "odd.py"
    file.write_bytes(b"# coding: latin-1\n# caf\xe9\n" + file.read_bytes())
    assert bench.record("odd").status == "loaded"


def test_a_built_in_may_say_its_own_name(bench: Any):
    bench.builtin("module_name", 'name = "own_name"\n' + GOOD)
    assert [item.name for item in bench.load().records if item.tier == "builtin"] == ["own_name"]


def test_files_that_begin_with_an_underscore_or_a_dot_are_no_plugins(bench: Any):
    bench.user("_helper", "raise RuntimeError")
    bench.user(".hidden", "raise RuntimeError")
    assert not [item for item in bench.load().records if item.tier == "user"]


# ---------------------------------------------------------------- failures, stage by stage

BROKEN: dict[str, tuple[str, str, str, int, str]] = {
    "syntax": ("def x(:\n", "import", "invalid syntax", 2, ""),
    "raises": ("\nraise ValueError('at import')\n", "import", "ValueError: at import", 3, ""),
    "missing": ("import not_there_at_all\n", "import", "No module named 'not_there_at_all'", 2, "not_there_at_all"),
    "exits": ("import sys\nsys.exit(3)\n", "import", "sys.exit(3)", 3, ""),
    "base": ("class Odd(BaseException): ...\nraise Odd('x')\n", "import", "Odd: x", 3, ""),
    "deep": ("def f(): f()\nf()\n", "import", "RecursionError", 2, ""),
    "api": ("api = 2\n" + GOOD, "manifest", "api = 2", 0, "update"),
    "service": ("services = ['fils']\n" + GOOD, "manifest", "unknown service 'fils'", 0, "did you mean 'files'?"),
    "service_type": ("services = 'files'\n" + GOOD, "manifest", "must be a list", 0, ""),
    "gate_type": ("gate = 'yes'\n" + GOOD, "manifest", "`gate`", 0, ""),
    "hook": ("@hookimpl\ndef tool_gat(call): ...\n", "register", "unknown hook 'tool_gat'", 2, "did you mean 'tool_gate'?"),
    "argument": ("@hookimpl\ndef tool_gate(cal): ...\n", "register",
                 "unknown argument cal; the hook gives call, turn", 2, ""),
    "timeout": ("@hookimpl(timeout=-1)\ndef tool_gate(call): ...\n", "register", "timeout=-1", 2, ""),
    "endless": ("@hookimpl(timeout=float('inf'))\ndef tool_gate(call): ...\n", "register", "timeout=inf", 2, ""),
    "withholding": ("@hookimpl(on_failure='withhold')\ndef tool_gate(call): ...\n", "register", "is for transforms", 2, ""),
    "itself": ("@hookimpl(before='itself')\ndef tool_gate(call): ...\n", "register", "after itself", 2, "other plugins"),
    "contrary": ("@hookimpl(specname='tool_gate', before='fine')\ndef one(call): ...\n\n"
                 "@hookimpl(specname='tool_gate', after='fine')\ndef two(call): ...\n",
                 "register", "both before and after 'fine'", 5, "drop one"),
    "generator": ("@hookimpl\ndef tool_gate(call):\n    yield 1\n", "register", "a generator", 2, "return"),
    "model": ("config_model = dict\n" + GOOD, "config", "not a pydantic model", 0, ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_becomes_a_record_with_stage_place_and_reason(bench: Any, kind: str):
    """A bad plugin never stops the host: it becomes a load record that says why and where (invariant 5)."""
    source, stage, error, line, hint = BROKEN[kind]
    path = bench.home / "plugins" / f"{kind}.py"
    path.write_text("from moryflow_sdk import *\n" + source, "utf-8")
    path.chmod(0o644)
    bench.user("fine", GOOD)
    loaded = bench.load()
    found = bench.record(kind, loaded)
    assert (found.status, found.stage, found.file) == ("failed", stage, str(path))
    assert error in found.error
    assert hint in found.hint
    assert not line or found.line == line
    assert bench.record("fine", loaded).status == "loaded"


def test_loading_is_all_or_nothing(bench: Any):
    """One wrong hook and no hook of the plugin is registered (ARCHITECTURE §4)."""
    bench.user("half", "@hookimpl\ndef aaa_first(call): ...\n\n@hookimpl\ndef tool_after(result): ...\n")
    loaded = bench.load()
    assert loaded.plugins == {} and names(loaded, "tool_after") == []
    assert not [name for name in sys.modules if name.startswith("moryflow_plugins.half")]


@pytest.mark.parametrize("option", ["tryfirst", "trylast", "hookwrapper", "wrapper", "optionalhook"])
def test_the_ordering_of_pluggy_is_refused_with_an_explanation(bench: Any, option: str):
    """pluggy's own ordering options are a load error with an explanation (ARCHITECTURE §4)."""
    bench.user("old", f"import pluggy\n@pluggy.HookimplMarker('moryflow')({option}=True)\ndef tool_after(result):\n    yield\n")
    found = bench.record("old")
    assert (found.status, found.stage, found.line) == ("failed", "register", 3)
    assert option in found.error and "before=" in found.hint


@pytest.mark.parametrize(("option", "said"), [("tryfirst", "use before= and after="), ("prioriti", "it has specname, before")])
def test_an_option_that_our_own_marker_lacks_is_explained(bench: Any, option: str, said: str):
    """Whoever brings habits from pluggy is told what to write instead (ARCHITECTURE §4)."""
    bench.user("old", f"@hookimpl({option}=True)\ndef tool_after(result):\n    return None\n")
    found = bench.record("old")
    assert found.status == "failed" and option in found.error and said in found.error


def test_a_function_named_like_a_hook_but_not_marked_is_pointed_out(bench: Any):
    bench.user("forgot", "def tool_gate(call):\n    return Deny('x')\n")
    found = bench.record("forgot")
    assert found.status == "loaded" and "tool_gate" in found.error and "@hookimpl" in found.error


def test_a_plugin_that_implements_nothing_says_so(bench: Any):
    bench.user("empty", "x = 1\n")
    assert "implements no hook" in bench.record("empty").error
    bench.user("counts", "def count_tokens(text):\n    return len(text)\n")
    assert not bench.record("counts").error  # compaction.estimator may name it


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_gives_no_code(bench: Any, mode: int):
    """Group- or world-writable plugin files are not run, and the record has the command that helps (R17)."""
    path = bench.user("loose", "raise SystemError('it ran')\n")
    path.chmod(mode)
    found = bench.record("loose")
    assert (found.status, found.stage) == ("failed", "discover")
    assert "can write to it" in found.error and found.hint == f"chmod go-w {path}"


def test_a_package_with_one_file_that_others_may_write_gives_no_code(bench: Any):
    """Every file of a plugin counts, not only the first (R17)."""
    folder = bench.home / "plugins" / "pack"
    folder.mkdir(mode=0o755)
    (folder / "__init__.py").write_text("", "utf-8")
    (folder / "__init__.py").chmod(0o644)
    (folder / "helper.py").write_text("", "utf-8")
    (folder / "helper.py").chmod(0o666)
    found = bench.record("pack")
    assert found.status == "failed" and found.file == str(folder / "helper.py")


@pytest.mark.usefixtures("shared_group")
def test_a_package_whose_folder_others_may_write_gives_no_code(bench: Any):
    """Whoever may add a module to a package may run code in it (R17)."""
    folder = bench.home / "plugins" / "pack"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemError('it ran')\n", "utf-8")
    (folder / "__init__.py").chmod(0o644)
    folder.chmod(0o755)
    (folder / "inner").chmod(0o775)
    found = bench.record("pack")
    assert found.status == "failed" and found.file == str(folder / "inner") and "its group" in found.error


def test_a_plugins_folder_that_others_may_write_gives_no_code(bench: Any):
    """Who may add a file to the folder may run code, so the folder is checked too (R17)."""
    bench.user("own", "raise SystemError('it ran')\n")
    for folder in (bench.home / "plugins", bench.home):
        folder.chmod(0o777)
        (found,) = [item for item in bench.load().records if item.tier == "user"]
        assert found.status == "failed" and "everybody can write to" in found.error
        assert found.hint == f"chmod go-w {folder}"
        folder.chmod(0o755)


def test_a_file_of_somebody_else_gives_no_code(bench: Any, monkeypatch: pytest.MonkeyPatch):
    """A foreign owner is refused (R17). Seen from the other side: the file is ours, the process is somebody else's."""
    bench.user("foreign", "raise SystemError('it ran')\n")
    path = bench.home / "plugins" / "foreign.py"
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    records = [item for item in bench.load().records if item.tier == "user"]
    assert records and all("belongs to another user" in item.error for item in records)


def test_a_pipe_in_the_plugins_folder_holds_up_nobody(bench: Any):
    os.mkfifo(bench.home / "plugins" / "pipe.py", 0o600)
    assert "not a regular file" in bench.record("pipe").error


def test_the_same_name_twice_is_named_and_the_earlier_tier_wins(bench: Any):
    """Built-in before installed before user; the later one is a failed record that says who has the name."""
    bench.installed("twice", GOOD)
    bench.user("twice", GOOD)
    first, second = [item for item in bench.load().records if item.name == "twice"]
    assert (first.tier, first.status, second.tier, second.status) == ("installed", "loaded", "user", "failed")
    assert "taken by the installed plugin" in second.error
    bench.builtin("twice", GOOD)
    found = [(item.tier, item.status) for item in bench.load().records if item.name == "twice"]
    assert found == [("builtin", "loaded"), ("installed", "failed"), ("user", "failed")]


def test_wanted_and_unwanted_plugins(bench: Any):
    """Disabled by name, safe mode, and a list of names: each skips with a reason that says which it was."""
    bench.builtin("inside", GOOD)
    bench.user("one", GOOD)
    bench.user("two", GOOD)
    assert bench.record("one", disabled=["one"]).reason == "disabled"
    assert "safe mode" in bench.record("one", safe_mode=True).reason
    assert bench.record("inside", safe_mode=True).status == "loaded"
    assert bench.record("one", only=["two"]).status == "skipped"
    assert bench.record("two", only=["two"]).status == "loaded"
    missing = bench.record("tow", only=["tow"])
    assert missing.status == "failed" and missing.hint == "did you mean 'two'?"


# ---------------------------------------------------------------- installed packages


def test_an_entry_point_to_nothing_is_named_with_the_file_that_declares_it(bench: Any):
    bench.installed("ghost", GOOD, value="no_such_module_anywhere:plugin")
    found = bench.record("ghost")
    assert (found.status, found.stage, found.line) == ("failed", "import", 0)
    assert found.file.endswith("entry_points.txt") and "no_such_module_anywhere" in found.error


def test_an_entry_point_to_a_class_is_refused(bench: Any):
    bench.installed("klass", "class Plugin:\n    pass\n", value=f"{bench.package}_klass:Plugin")
    found = bench.record("klass")
    assert found.stage == "import" and "a class" in found.error and "instance" in found.hint


def test_an_entry_point_may_name_an_object(bench: Any):
    source = "class Plugin:\n    @hookimpl\n    def tool_after(self, result):\n        return None\n\nplugin = Plugin()\n"
    bench.installed("thing", source, value=f"{bench.package}_thing:plugin")
    found = bench.load().ordered("tool_after")
    assert [(item.plugin, item.arguments) for item in found if item.plugin == "thing"] == [("thing", ("result",))]


def test_a_manifest_is_read_without_importing_the_package(bench: Any):
    """``plugin.toml`` speaks for a package whose code must not be run (CONTRACT §3)."""
    bench.installed("told", "raise SystemError('it ran')\n", manifest="api = 7\n")
    found = bench.record("told")
    assert (found.stage, found.line) == ("manifest", 1)
    assert found.file.endswith("plugin.toml") and f"{bench.package}_told" not in sys.modules


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("gone")], ids=["a pipe", "a folder", "a broken link"]
)
def test_a_manifest_that_is_no_file_is_not_as_if_there_were_none(bench: Any, make: Any):
    """What it says about the code, such as a gate, is not known, so the code does not run (CONTRACT §3, R37)."""
    folder = bench.home / "plugins" / "big"
    folder.mkdir(mode=0o755)
    (folder / "__init__.py").write_text("raise SystemError('it ran')\n", "utf-8")
    make(folder / "plugin.toml")
    found = bench.record("big")
    assert (found.stage, found.file) == ("manifest", str(folder / "plugin.toml"))


@pytest.mark.parametrize(
    ("manifest", "error", "line"),
    [
        ("api = [\n", "not valid TOML", 0),
        ('name = "other"\n', "name = 'other'", 1),
        ('version = "2"\nservices = ["nope"]\n', "unknown service 'nope'", 2),
        ("[services]\nnope = true\n", "unknown service 'nope'", 1),
        ("hooks = 5\n", "`hooks`", 1),
    ],
)
def test_a_wrong_manifest_is_named_with_file_and_line(bench: Any, manifest: str, error: str, line: int):
    bench.installed("told", GOOD, manifest=manifest)
    found = bench.record("told")
    assert (found.status, found.stage, found.line) == ("failed", "manifest", line)
    assert error in found.error


def test_the_manifest_has_the_last_word_over_the_module(bench: Any):
    bench.installed("told", "version = '9'\nservices = ('watch',)\n" + GOOD,
                    manifest='version = "2.1"\n[services]\nfiles = true\n')  # fmt: skip
    found = bench.record("told")
    # The version of what is installed is the package's, whatever a manifest says.
    assert (found.version, found.services, found.status) == ("1.0", ("files",), "loaded")


def test_a_submodule_with_the_name_of_an_attribute_says_nothing(bench: Any):
    """Python puts a submodule where the attribute was; that is not a wrong value."""
    bench.installed("told", "from . import services\n" + GOOD, manifest="")
    (bench.site / f"{bench.package}_told" / "services.py").write_text("", "utf-8")
    found = bench.record("told")
    assert (found.status, found.services, found.error) == ("loaded", (), "")


def test_an_unreadable_manifest_file_is_named(bench: Any):
    bench.installed("told", GOOD, manifest="api = 1\n")
    (bench.site / f"{bench.package}_told" / "plugin.toml").unlink()
    assert bench.record("told").stage == "manifest"


# ---------------------------------------------------------------- settings


class TestSettings:
    source = """
        from pydantic import BaseModel, ConfigDict
        from pydantic.alias_generators import to_camel

        class Inner(BaseModel):
            depth: int = 3

        class Config(BaseModel):
            model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
            max_lines: int = 10
            name: str = "x"
            inner: Inner = Inner()

        config_model = Config

        @hookimpl
        def tool_after(result): ...
    """

    def test_are_an_instance_of_the_declared_model(self, bench: Any):
        bench.config.values["plugins.mine"] = {"maxLines": 5}
        bench.user("mine", self.source)
        assert bench.load().plugins["mine"].config.max_lines == 5

    def test_without_a_model_are_a_frozen_mapping(self, bench: Any):
        bench.config.values["plugins.mine"] = {"list": [1]}
        bench.user("mine", GOOD)
        config = bench.load().plugins["mine"].config
        assert config == {"list": (1,)}
        with pytest.raises(TypeError):
            config["list"] = 2

    def test_that_are_wrong_fail_a_third_party_plugin_with_file_and_line(self, bench: Any):
        bench.config.values["plugins.mine"] = {"maxLines": "many"}
        bench.config.lines["plugins.mine.maxLines"] = 12
        bench.user("mine", self.source)
        found = bench.record("mine")
        assert (found.status, found.stage, found.file, found.line) == ("failed", "config", "config.jsonc", 12)
        assert "plugins.mine.maxLines" in found.error and "many" in found.error

    def test_that_are_wrong_leave_a_built_in_running_on_its_defaults(self, bench: Any):
        """A config key never stops the host; what is wrong is replaced by its default, the rest counts (invariant 5)."""
        bench.config.values["agents.runtime.inside"] = {"maxLines": "many", "name": "kept", "inner": {"depth": "x"}}
        bench.builtin("inside", 'config_path = "agents.runtime.inside"\n' + textwrap.dedent(self.source))
        loaded = bench.load()
        found, config = bench.record("inside", loaded), loaded.plugins["inside"].config
        assert (config.max_lines, config.name, config.inner.depth) == (10, "kept", 3)
        assert (found.status, found.stage) == ("loaded", "config") and "agents.runtime.inside.maxLines" in found.error

    def test_that_are_no_object_are_named(self, bench: Any):
        bench.config.values["plugins.mine"] = 5
        bench.user("mine", self.source)
        assert "must be an object" in bench.record("mine").error


def test_a_module_that_a_package_lacks_is_named_as_the_person_wrote_it(bench: Any):
    """Not by the name that a version of a plugin is imported under."""
    folder = bench.home / "plugins" / "pack"
    folder.mkdir(mode=0o700)
    (folder / "__init__.py").write_text("from .lib import x\n")
    (folder / "__init__.py").chmod(0o600)
    found = bench.record("pack")
    assert found.error == "ModuleNotFoundError: No module named 'pack.lib'"
    assert found.hint == "its folder has no lib.py; write it, or take the import away"

"""New code is tried after the yes, and put back if it does not load; a killed installation is named (R18)."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

ALLOW = {"agents": {"runtime": {"permission": {"rules": [{"domain": "read", "pattern": "*", "decision": "allow"}]}}}}
BROKEN = {
    "raises": "raise RuntimeError('no')\n",
    "hangs": "while True: pass\n",
    "exits": "import os; os._exit(0)\n",
    "fills": "kept = [bytearray(1 << 24) for _ in range(1 << 16)]\n",
    "does_not_parse": "def (\n",
    "misses": "import not_there_at_all\n",
    "tools_raise": "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    raise RuntimeError('no')\n",
    "agents_raise": "from moryflow_sdk import hookimpl\n@hookimpl\nasync def agents():\n    raise RuntimeError('no')\n",
    "models_return_nonsense": "from moryflow_sdk import hookimpl\n@hookimpl\ndef models():\n    return 5\n",
    "commands_hang": "import time\nfrom moryflow_sdk import hookimpl\n@hookimpl\ndef commands():\n    time.sleep(60)\n",
}
GOOD = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    return []\n"


def state(place: Any) -> dict[str, bytes]:
    """Every file of the environment that is neither byte code nor names a temporary folder, and the lock."""
    found = (path for path in place.site.rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = {str(path): path.read_bytes() for path in found if path.name not in ("RECORD", "direct_url.json")}
    return {**files, "lock": json.dumps(place.lock if (place.home / "plugins.lock").exists() else {}).encode()}


def says(place: Any, text: str) -> None:
    """Assert that the plugin which was there before works, and that nothing is left of the attempt."""
    assert place.run("tool", "run", "sayer_says").stdout == f"{text}\n"
    assert "installing" not in json.loads((place.home / "plugins.lock").read_bytes())


def test_a_version_that_does_not_load_is_taken_back(place: Any) -> None:
    """Exit code 3 with what the probe said; files, lock and tool are those of the version before (R18, invariant 5)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    extra = {"sayer/more.py": "", "sayer_extra/__init__.py": ""}
    place.wheels.add("sayer", "2.0", source=BROKEN["raises"], files=extra)
    done = place.run("plugin", "update", "sayer", "-y", "--json", code=3)
    assert "sayer 2.0 does not load" in done.stderr and "sayer failed (import)" in done.stderr and "next: " in done.stderr
    assert "Traceback" not in done.stderr
    [document] = json.loads(done.stdout)
    assert (document["action"], document["plugins"][0]["name"]) == ("taken_back", "sayer")
    assert state(place) == before
    says(place, "1.0")


@pytest.mark.parametrize("kind", [kind for kind in BROKEN if "_" in kind and kind != "does_not_parse"])
def test_a_version_whose_hooks_give_nothing_is_taken_back(place: Any, kind: str) -> None:
    """A plugin that loads but whose tools, agents, models or commands cannot be had does not work (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    place.wheels.add("sayer", "2.0", source=BROKEN[kind])
    done = place.run("plugin", "update", "sayer", "-y", code=3)
    assert f"sayer failed (contribute): {place.site}/sayer/__init__.py:" in done.stderr
    assert kind.partition("_")[0] in done.stderr and "Traceback" not in done.stderr and "plugin check" not in done.stderr
    assert state(place) == before
    says(place, "1.0")


@pytest.mark.parametrize("way", ["wheel", "editable"])
def test_a_first_installation_that_does_not_load_leaves_nothing(place: Any, way: str) -> None:
    """From wherever it comes, nothing of it is there afterwards, and the exit code is 3 (R18)."""
    before = state(place)
    given = ("sayer",)
    if way == "wheel":
        place.wheels.add("helper", plugin=False)
        place.wheels.add("sayer", source=BROKEN["raises"], requires=["helper"])
    else:
        given = ("-e", str(project(place, BROKEN["raises"])))
    done = place.run("plugin", "install", *given, "-y", code=3)
    assert "RuntimeError: no" in done.stderr
    assert state(place) == before


def project(place: Any, code: str, version: str = "1.0") -> Path:
    """Write the project of a plugin."""
    source = place.work / "project"
    package = source / "src" / "sayer"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(code, "utf-8")
    text = f"""
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "sayer"
        version = "{version}"
        [project.entry-points."moryflow.plugins"]
        sayer = "sayer"
        [tool.hatch.build.targets.wheel]
        packages = ["src/sayer"]
    """
    (source / "pyproject.toml").write_text(textwrap.dedent(text), "utf-8")
    return source


def test_settings_that_are_missing_are_told_and_keep_nothing_from_being_installed(place: Any) -> None:
    """A new plugin may need a key; an update may not break the version that had all it needs (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    needy = """
        from pydantic import BaseModel
        from moryflow_sdk import hookimpl
        class Settings(BaseModel):
            api_key: str
        config_model = Settings
        @hookimpl
        def tools():
            return []
    """
    place.wheels.add("sayer", "2.0", source=needy)
    done = place.run("plugin", "update", "sayer", "-y", code=3)
    assert "plugins.sayer.api_key: it is needed and is not set" in done.stderr
    says(place, "1.0")
    place.run("plugin", "uninstall", "sayer")
    done = place.run("plugin", "install", "sayer", "-y")
    assert "plugins.sayer.api_key: it is needed and is not set" in done.stderr and place.lock["sayer"]["version"] == "2.0"


def test_an_older_version_is_shown_before_the_yes(place: Any) -> None:
    """The screen says from which version to which; the lock has what was installed (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.9")
    place.wheels.add("sayer", "1.10")
    place.run("plugin", "install", "sayer", "-y")
    done = place.json("plugin", "install", "sayer==1.9", "-y")
    assert done["version"] == "1.9" and "version 1.10 -> 1.9" in done["changes"]
    says(place, "1.9")


def test_an_update_whose_companion_runs_at_every_start_leaves_the_version_before(place: Any) -> None:
    """It was removed again together with the plugin that worked (R31)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    place.wheels.add("sneaky", plugin=False, files={"sneaky.pth": "import sys\n"})
    place.wheels.add("sayer", "2.0", requires=["sneaky"])
    assert "sneaky.pth" in place.run("plugin", "update", "sayer", "-y", code=1).stderr
    assert state(place) == before
    says(place, "1.0")


def test_a_folder_that_has_a_broken_version_now_is_named_with_what_helps(place: Any) -> None:
    """The version before cannot be had from it any more; the lock keeps its line, and the next command is named (R18)."""
    place.run("plugin", "install", str(project(place, GOOD, "1.0")), "-y")
    project(place, BROKEN["raises"], "2.0")
    done = place.run("plugin", "update", "sayer", "-y", code=1)
    assert "sayer 2.0 does not load" in done.stderr and "no longer matches" in done.stderr and "plugin sync" in done.stderr
    assert place.lock["sayer"]["version"] == "1.0"


def test_no_plugin_takes_from_another_what_that_one_needs(place: Any) -> None:
    """pip looks only at what it installs, so it is told what the other plugins and what they use require (R31)."""
    place.wheels.add("helper", "1.0", plugin=False)
    place.wheels.add("helper", "2.0", plugin=False)
    place.wheels.add("between", requires=["helper<2"], plugin=False)
    place.wheels.add("first", requires=["between"])
    place.wheels.add("second", requires=["helper>=2"])
    place.run("plugin", "install", "first", "-y")
    before = state(place)
    done = place.run("plugin", "install", "second", "-y", code=1)
    assert "second cannot be installed" in done.stderr and "helper<2" in done.stderr
    assert state(place) == before


@pytest.mark.parametrize("moment", ["first", "update"])
def test_after_a_kill_the_next_command_names_it_and_sync_repairs(place: Any, moment: str) -> None:
    """kill -9 while the new code is tried: said by every command until `plugin sync` (R18, invariant 5)."""
    place.configure(**ALLOW)
    if moment == "update":
        place.wheels.add("sayer", "1.0")
        place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    place.wheels.add("helper", plugin=False)
    place.wheels.add("sayer", "2.0", source="import time; time.sleep(8)\n", requires=["helper"])
    command = [str(place.python), "-m", "moryflow", "plugin", "install", "sayer", "-y"]
    with subprocess.Popen(command, cwd=place.work, env=place.environment, stderr=subprocess.DEVNULL) as process:
        awaited((place.site / "sayer-2.0.dist-info" / "REQUESTED").exists)
        time.sleep(1.5)
        process.send_signal(signal.SIGKILL)
    awaited(lambda: not installing(place))
    for given in (("tool", "list"), ("plugin", "list")):
        said = place.run(*given).stderr
        assert "the installation of sayer was interrupted" in said and "moryflow plugin sync" in said
    if moment == "update":
        place.wheels.add("sayer", "1.0")
    assert "would " in place.run("plugin", "sync", "--dry-run").stdout and state(place) != before
    place.run("plugin", "sync")
    assert state(place) == before and "interrupted" not in place.run("plugin", "list").stderr


def installing(place: Any) -> bool:
    """Whether an installer still holds the lock."""
    held = subprocess.run(["flock", "-n", str(place.home / ".installing.lock"), "true"], check=False)
    return held.returncode != 0


def awaited(condition: Any) -> None:
    """Wait until something has happened."""
    for _ in range(1500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_update_of_all_goes_on_and_ends_with_three(place: Any) -> None:
    """One does not load and stays as it is; the other is new (R18)."""
    for name in ("sayer", "other"):
        place.wheels.add(name, "1.0")
        place.run("plugin", "install", name, "-y")
    place.wheels.add("sayer", "2.0", source=BROKEN["raises"])
    place.wheels.add("other", "2.0")
    found = {item["name"]: item for item in place.json("plugin", "update", "-y", code=3)}
    assert found["sayer"]["action"] == "taken_back" and found["other"]["action"] == "updated"
    assert (place.lock["sayer"]["version"], place.lock["other"]["version"]) == ("1.0", "2.0")


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_does_not_load_is_not_copied(place: Any, kind: str) -> None:
    """Whatever its import does, the command lives, and the one that is there goes on (R18, invariant 5)."""
    source = place.work / "hello.py"
    source.write_text(GOOD, "utf-8")
    source.chmod(0o600)
    place.run("plugin", "install", "hello.py", "-y")
    lock = place.lock
    source.write_text(BROKEN[kind], "utf-8")
    done = place.run("plugin", "update", "hello", "-y", code=3)
    assert "hello does not load" in done.stderr and "Traceback" not in done.stderr
    assert (place.home / "plugins" / "hello.py").read_text("utf-8") == GOOD and place.lock == lock

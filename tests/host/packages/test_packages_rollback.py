"""What was installed works: tried after the yes, taken back when it does not load, whatever ends the installation (R18)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from moryflow.packages import InstallError
from moryflow.packages.rollback import Rollback

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
    """Every file of the environment that is not byte code, and the lock."""
    found = {str(path): path.read_bytes() for path in place.site.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    lock = place.home / "plugins.lock"
    return {**found, "lock": lock.read_bytes() if lock.exists() else b""}


def says(place: Any, text: str) -> None:
    """Assert that the plugin which was there before works, and that nothing is left of the attempt."""
    assert place.run("tool", "run", "sayer_says").stdout == f"{text}\n"
    assert not (place.home / "installing").exists()


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


def test_an_editable_installation_that_does_not_load_gives_the_package_back(place: Any) -> None:
    """The wheel that was there is there again, also where the new one was only a link (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    place.run("plugin", "install", "-e", str(project(place, BROKEN["raises"], "1.1")), "-y", code=3)
    assert state(place) == before
    says(place, "1.0")


def test_the_same_version_with_other_bytes_is_tried_too(place: Any) -> None:
    """Reinstalling is no way around it, and what was there comes back byte by byte (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    place.wheels.add("sayer", "1.0", source=BROKEN["misses"])
    assert "not_there_at_all" in place.run("plugin", "install", "sayer", "-y", code=3).stderr
    assert state(place) == before
    says(place, "1.0")


def test_a_package_with_one_broken_plugin_is_taken_back_whole(place: Any) -> None:
    """The message names the broken one and how to have the other alone; then that works (R18)."""
    points = "[moryflow.plugins]\ngood = pair.good\nbad = pair.bad\n"
    files = {"pair/good.py": GOOD, "pair/bad.py": BROKEN["raises"]}
    place.wheels.add("pair", source="", files=files, points=points)
    done = place.run("plugin", "install", "pair", "-y", code=3)
    assert "bad failed (import)" in done.stderr and "good failed" not in done.stderr
    assert "disabledPlugins" in done.stderr and not (place.site / "pair").exists()
    place.run("config", "set", "disabledPlugins", '["bad"]')
    done = place.run("plugin", "install", "pair", "-y")
    assert "bad is disabled, so it was not tried" in done.stderr and set(place.lock["pair"]["plugins"]) == {"good", "bad"}


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


def test_an_older_version_is_said_and_needs_its_own_yes(place: Any) -> None:
    """`-y` does not answer it; with `--allow-downgrade` it is installed, and the lock says so (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.9")
    place.wheels.add("sayer", "1.10")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    done = place.run("plugin", "install", "sayer==1.9", "-y", code=2)
    assert "DOWNGRADE: sayer 1.10 -> 1.9" in done.stderr and "--allow-downgrade" in done.stderr and state(place) == before
    done = place.json("plugin", "install", "sayer==1.9", "-y", "--allow-downgrade")
    assert done["version"] == "1.9" and any("DOWNGRADE" in line for line in done["changes"])
    says(place, "1.9")
    assert "1.10" in place.run("plugin", "install", "sayer==1.10", "-y").stderr  # up needs no word


def test_an_update_that_leads_to_an_older_version_needs_it_too(place: Any) -> None:
    """A folder whose version went back (R18)."""
    place.run("plugin", "install", str(project(place, GOOD, "2.0")), "-y")
    project(place, GOOD, "1.0")
    done = place.run("plugin", "update", "sayer", "-y", code=2)
    assert "sayer 1.0 is older than sayer 2.0" in done.stderr and place.lock["sayer"]["version"] == "2.0"
    place.run("plugin", "update", "sayer", "-y", "--allow-downgrade")
    assert place.lock["sayer"]["version"] == "1.0"


def test_a_dependency_that_would_become_older_needs_it_too(place: Any) -> None:
    """It is shown with both versions, whoever else uses it (R18)."""
    place.wheels.add("helper", "1.0", plugin=False)
    place.wheels.add("helper", "2.0", plugin=False)
    place.wheels.add("first", requires=["helper>=1"])
    place.wheels.add("second", requires=["helper<2"])
    place.run("plugin", "install", "first", "-y")
    assert "DOWNGRADE: helper 2.0 -> 1.0" in place.run("plugin", "install", "second", "-y", code=2).stderr
    place.run("plugin", "install", "second", "-y", "--allow-downgrade")


def test_no_plugin_takes_from_another_what_that_one_needs(place: Any) -> None:
    """pip looks at what it installs only; the refusal says who needs what (R31)."""
    place.wheels.add("helper", "1.0", plugin=False)
    place.wheels.add("helper", "2.0", plugin=False)
    place.wheels.add("between", requires=["helper<2"], plugin=False)
    place.wheels.add("first", requires=["between"])
    place.wheels.add("second", requires=["helper>=2"])
    place.run("plugin", "install", "first", "-y")
    before = state(place)
    done = place.run("plugin", "install", "second", "-y", code=1)
    assert "between 1.0 (of the plugin first) needs helper<2, but helper 2.0 would be installed" in done.stderr
    assert state(place) == before


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


def test_an_installer_that_dies_half_way_changes_nothing(place: Any) -> None:
    """pip is killed after it has written some of the files: the version before works, without another start (R18)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    place.wheels.add("sayer", "2.0", files={f"sayer/part{number}.py": "" for number in range(50)})
    sabotage(place, "os.kill(os.getpid(), 9)")
    done = place.run("plugin", "update", "sayer", "-y", code=1)
    assert "sayer cannot be installed" in done.stderr
    assert "it ended with exit code -9 and said nothing" in done.stderr
    assert state(place) == before
    says(place, "1.0")


def sabotage(place: Any, code: str) -> None:
    """Let every pip that installs run `code` once it has written a file of the second version."""
    where = place.work / "sitecustomize"
    where.mkdir()
    lines = """
        import os, sys
        if "install" in sys.argv and "--dry-run" not in sys.argv and "moryflow" not in sys.argv[0]:
            def heard(event, arguments):
                if event == "open" and str(arguments[0]).endswith("part20.py") and "w" in str(arguments[1]):
                    exec(CODE)
            sys.addaudithook(heard)
    """
    (where / "sitecustomize.py").write_text(f"CODE = {code!r}\n{textwrap.dedent(lines)}", "utf-8")
    place.environ["PYTHONPATH"] = str(where)


@pytest.mark.parametrize("moment", ["pip", "probe"])
def test_after_a_kill_the_next_start_has_the_version_before(place: Any, moment: str) -> None:
    """kill -9 while pip writes or while the new code is tried: said once, and everything is as it was (R18, invariant 5)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    before = state(place)
    source = "import time; time.sleep(8)\n" if moment == "probe" else GOOD
    place.wheels.add("sayer", "2.0", source=source, files={f"sayer/part{number}.py": "" for number in range(50)})
    mark, go = place.work / "mark", place.work / "go"
    wait = f"import time; open({str(mark)!r}, 'x').close()\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    sabotage(place, wait if moment == "pip" else "pass")
    command = [str(place.python), "-m", "moryflow", "plugin", "update", "sayer", "-y"]
    with subprocess.Popen(command, cwd=place.work, env=place.environment, stderr=subprocess.DEVNULL) as process:
        new = place.site / "sayer-2.0.dist-info" / "RECORD"
        awaited(mark.exists if moment == "pip" else new.exists)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    assert state(place) != before
    del place.environ["PYTHONPATH"]
    if moment == "pip":  # it lives on, and nobody puts anything back below its hands
        assert "another installation is running" in place.run("plugin", "update", "sayer", "-y", code=1).stderr
        go.touch()
        awaited(new.exists)
        awaited(lambda: not installing(place))
    first = place.run("tool", "run", "sayer_says")
    assert first.stdout == "1.0\n" and "an interrupted installation was undone" in first.stderr and "sayer" in first.stderr
    assert state(place) == before
    assert place.run("tool", "run", "sayer_says").stderr == ""
    says(place, "1.0")


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


def test_a_full_disk_changes_nothing_and_says_what_helps(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy can be made of what is there: nothing is installed, and nothing is left of the attempt (R18)."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(InstallError, match="No space left") as raised:
        Rollback(place.home, ["pytest"], (), None, "pytest")
    assert raised.value.next_step == "free some space, then try again"
    assert not (place.home / "installing").exists()


def test_a_start_goes_on_where_nothing_can_be_put_back(place: Any) -> None:
    """The note cannot be used: said, and the host runs (invariant 5)."""
    place.configure(**ALLOW)
    place.wheels.add("sayer", "1.0")
    place.run("plugin", "install", "sayer", "-y")
    folder = place.home / "installing" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "note.json").write_text("{", "utf-8")  # of another environment, and broken
    assert place.run("tool", "run", "sayer_says").stdout == "1.0\n"
    shutil.rmtree(place.home / "installing")


def test_uv_takes_back_what_does_not_load(with_uv: Any) -> None:
    """Another installer, the same promise (R18)."""
    with_uv.wheels.add("sayer", "1.0")
    with_uv.run("plugin", "install", "sayer", "-y")
    before = state(with_uv)
    with_uv.wheels.add("sayer", "2.0", source=BROKEN["raises"], files={"sayer/more.py": ""})
    with_uv.run("plugin", "update", "sayer", "-y", code=3)
    assert state(with_uv) == before


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

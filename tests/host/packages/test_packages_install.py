"""``plugin install``: what it is comes first, then the question, then that very thing (R18, R25, R26, R31)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from moryflow.base.builtins import BUILTINS
from moryflow.packages.installer import MAX_OUTPUT, Installer
from moryflow.plugins.discovery import is_reserved

from .conftest import PLUGIN

ASKS = {"hooks": ["tools"], "tools": ["sayer_says"], "services": {"files": True}, "capabilities": {"network": True}}


def test_a_package_is_shown_asked_about_and_installed_as_shown(place: Any) -> None:
    """Nobody to ask: refused with the command; `-y`: installed, locked by hash with what was agreed to (R18, R25)."""
    helper = place.wheels.add("a_helper", plugin=False)
    assert helper.exists()
    place.wheels.add("sayer", manifest=ASKS, requires=["a_helper"])
    refused = place.run("plugin", "install", "sayer", code=2)
    for words in ("sayer 1.0", "hooks: tools", "services: files", "uses the network", "declared, not enforced"):
        assert words in refused.stderr
    assert "would also be installed: a_helper 1.0" in refused.stderr.replace("a-helper", "a_helper")
    assert "moryflow plugin install sayer -y" in refused.stderr
    assert not (place.site / "sayer").exists() and not (place.home / "plugins.lock").exists()

    done = place.json("plugin", "install", "sayer", "-y")
    entry = place.lock["sayer"]
    assert done["action"] == "installed" and entry["hash"].startswith("sha256:")
    assert entry["plugins"]["sayer"]["services"] == ["files"] and entry["plugins"]["sayer"]["capabilities"] == {"network": True}
    assert (place.home / "plugins.lock").stat().st_mode & 0o077 == 0
    place.configure(agents={"runtime": {"permission": {"rules": [{"domain": "read", "pattern": "*", "decision": "allow"}]}}})
    assert place.run("tool", "run", "sayer_says").stdout == "1.0\n"
    assert place.row("sayer")["status"] == "loaded"
    again = place.run("plugin", "install", "sayer", "-y")
    assert "installed already" in again.stdout


def test_what_the_host_runs_on_cannot_be_moved(place: Any) -> None:
    """The refusal says which package wanted what; no file of the folder one stands in takes pip's place (R31, R13)."""
    (place.work / "pip.py").write_text("raise SystemExit('a file of the folder was run')", "utf-8")  # (R13)
    place.wheels.add("go_between", requires=["pydantic<2"], plugin=False)
    place.wheels.add("pydantic", "1.0", plugin=False)
    place.wheels.add("quiet", requires=["go_between"])
    done = place.run("plugin", "install", "quiet", "-y", code=1)
    assert "go-between 1.0 depends on pydantic<2" in done.stderr.replace("_", "-")
    assert "(constraint) pydantic==2" in done.stderr and "next: ask for a version that fits" in done.stderr
    assert not (place.site / "quiet").exists() and not (place.site / "pydantic").exists()


def test_no_file_that_runs_at_every_start_creeps_in(place: Any) -> None:
    """One that a dependency brings is named, and all is removed again (R31)."""
    place.wheels.add("sneaky", plugin=False, files={"sneaky.pth": "import sys\n"})
    place.wheels.add("carrier", requires=["sneaky"])
    done = place.run("plugin", "install", "carrier", "-y", code=1)
    assert "sneaky.pth" in done.stderr and "the installation undone" in done.stderr
    assert sorted(path.name for path in place.site.glob("*.pth")) == ["outer.pth"]
    assert not (place.site / "carrier").exists() and place.lock == {}


@pytest.mark.parametrize("name", ["start.pth", "sitecustomize.py", "usercustomize/__init__.py"])
def test_no_package_runs_at_every_start(place: Any, name: str) -> None:
    """Whatever Python would run it by; it is refused before anything is installed (R31)."""
    place.wheels.add("sneaky", files={name: "import sys\n"})
    done = place.run("plugin", "install", "sneaky", "-y", code=1)
    assert f"sneaky brings {name}, which Python would run at every start" in done.stderr


def test_what_an_installer_leaves_running_is_not_waited_for(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it holds the output open and is not found any more (R31)."""
    monkeypatch.setattr("moryflow.packages.installer.end_marked", lambda marks: None)
    output = Installer(os.environ)._run(["sh", "-c", "sleep 600 & echo $!"], "it failed")  # it waited for the sleep
    stray = int(output)
    assert Path(f"/proc/{stray}").exists()
    os.kill(stray, signal.SIGKILL)


def test_a_plugin_name_that_is_taken_is_refused_with_the_next_step(place: Any) -> None:
    """By another package or a file of the home: only the first one would be loaded (R25)."""
    place.wheels.add("sayer")
    place.wheels.add("another", points="[moryflow.plugins]\nsayer = another\n")
    place.run("plugin", "install", "sayer", "-y")
    done = place.run("plugin", "install", "another", "-y", code=1)
    assert "'sayer' is taken by the package sayer" in done.stderr and "next: moryflow plugin uninstall sayer" in done.stderr
    file = place.work / "sayer.py"
    file.write_text(PLUGIN.format(name="sayer", version="1.0"))
    assert "is taken by the package sayer" in place.run("plugin", "install", str(file), "-y", code=1).stderr
    place.run("plugin", "uninstall", "sayer", "-y")
    place.run("plugin", "install", str(file), "-y")
    assert "is taken by" in place.run("plugin", "install", "another", "-y", code=1).stderr


def test_packages_may_share_a_folder_that_is_no_package(place: Any) -> None:
    """Modules with other names beside those of another plugin replace none of them (R31)."""
    for name in ("one", "two"):
        place.wheels.add(name, files={f"shared/{name}.py": "", "LICENSE": ""})
        place.run("plugin", "install", name, "-y")
    assert sorted(path.name for path in (place.site / "shared").glob("*.py")) == ["one.py", "two.py"]


def test_a_package_brings_its_own_commands_again(place: Any) -> None:
    """An update replaces the commands of the version before (R31)."""
    for version in ("1.0", "2.0"):
        points = "[moryflow.plugins]\nmine = mine\n[console_scripts]\nmine = mine:main\n"
        place.wheels.add("mine", version, points=points)
        place.run("plugin", "install", "mine", "-y")
    assert place.lock["mine"]["version"] == "2.0" and place.python.with_name("mine").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--", "--index-url=x"), "is not the name of a package"),
        (("./nowhere",), "there is nothing to install"),
        (("notes.txt",), "notes.txt: this is neither a wheel, an archive nor a Python file"),
        (("http://example.invalid/x.zip",), "is not an address of a git repository"),
        (("git+ext::sh",), "is not fetched safely"),
        (("not-there-at-all", "-y"), "cannot be fetched"),
    ],
)
def test_what_cannot_be_installed_is_named(place: Any, given: tuple[str, ...], said: str) -> None:
    """An operand never becomes an option of pip, and git is spoken to by safe transports only (R26, R15)."""
    (place.work / "notes.txt").write_text("buy milk\n", "utf-8")
    done = place.run("plugin", "install", *given, code=None)
    assert done.returncode in (1, 2) and said in done.stderr


def test_a_folder_is_built_and_an_editable_one_is_linked(place: Any) -> None:
    """The example of a package, installed from its folder; then again so that edits count at once (CONTRACT §3)."""
    source = place.work / "wordcount"
    shutil.copytree(Path(__file__).parents[3] / "user_examples" / "plugins" / "moryflow-wordcount", source)
    done = place.run("plugin", "install", "./wordcount", "-y")
    assert "installed wordcount (moryflow-wordcount 0.1.0)" in done.stdout
    assert "touches files itself (reads the file it is asked to count)" in done.stderr
    place.run("plugin", "install", "-e", "./wordcount", "-y")
    entry = place.lock["moryflow-wordcount"]
    assert (entry["kind"], entry["origin"], entry["hash"]) == ("editable", str(source.resolve()), "")
    assert place.row("wordcount")["manifest"]
    assert place.run("plugin", "sync").stdout == "everything is as plugins.lock says\n"
    init = source / "src" / "moryflow_wordcount" / "__init__.py"
    init.write_text(init.read_text("utf-8").replace('words"', 'WORDS"'), "utf-8")
    (place.work / "a.txt").write_text("one two", "utf-8")
    assert "2 WORDS" in place.run("tool", "run", "wordcount", "--path", "a.txt").stdout


def test_a_git_address_is_pinned_to_its_commit(place: Any) -> None:
    """What is locked is the commit that was built, so that `sync` gets the same again (R18)."""
    source = place.work / "repository"
    shutil.copytree(Path(__file__).parents[3] / "user_examples" / "plugins" / "moryflow-wordcount", source)
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    place.run("plugin", "install", f"git+file://{source}", "-y")
    assert place.lock["moryflow-wordcount"]["commit"] == head


def test_a_plugin_installed_while_a_chat_runs_is_there_from_its_next_turn(place: Any) -> None:
    """Another terminal installs it; the conversation goes on with its tool (invariant 8)."""
    place.wheels.add("sayer", manifest=ASKS)
    place.configure(agents={"runtime": {"permission": {"rules": [{"domain": "read", "pattern": "*", "decision": "allow"}]}}})
    script = place.work / "script.json"
    script.write_text(json.dumps([{"calls": [{"name": "sayer_says", "arguments": {}}]}, "answered"]), "utf-8")
    command = [str(place.python), "-m", "moryflow", "chat", "-m", f"script:{script}"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=place.work, env=place.environment, text=True, **pipes) as chat:
        assert chat.stdin is not None and chat.stdout is not None
        chat.stdin.write("hi\n")
        chat.stdin.flush()
        assert "answered" in chat.stdout.readline()
        place.run("plugin", "install", "sayer", "-y")
        out, err = chat.communicate("again\n")
    assert "answered" in out and "tool sayer_says: added" in err
    (session,) = place.json("session", "list")
    shown = place.run("session", "show", session["id"]).stdout
    before, _, after = shown.partition("again")
    assert "unknown tool 'sayer_says'" in before and "[sayer_says] ok: 1.0" in after


@pytest.mark.parametrize("name", ["permission_", "_permission", "PERMISSION", "\uff50ermission", "doom-loop", "DOOM__LOOP"])
def test_a_name_that_looks_like_a_built_in_one_is_reserved(name: str) -> None:
    """In other letters, or with other dashes in or around it; a name that only holds one is free (invariant 4)."""
    assert is_reserved(name, BUILTINS)
    assert not any(is_reserved(free, BUILTINS) for free in ("permissions", "per_mission", "doomloop", "my_permission"))


def test_the_names_of_built_in_plugins_are_reserved(place: Any) -> None:
    """Such a package or file is not installed; one that pip brought is named, is harmless and can be removed (invariant 4)."""
    wheel = place.wheels.add("permission", source="from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_gate(call): ...\n")
    done = place.run("plugin", "install", "permission", "-y", code=1)
    assert "'permission' belongs to a built-in plugin" in done.stderr and not (place.site / "permission").exists()
    (place.work / "Shell.py").write_text("", "utf-8")
    assert "'Shell' belongs to a built-in plugin" in place.run("plugin", "install", "./Shell.py", "-y", code=1).stderr

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place.site)
    (place.work / "a.txt").write_text("one", "utf-8")
    assert place.run("tool", "run", "read", "--path", "a.txt").stdout.strip() == "one"
    said = place.run("doctor", code=None).stdout
    assert "'permission' belongs to a built-in plugin" in said and "plugin disable" not in said
    place.run("plugin", "uninstall", "permission", "-y")
    assert not (place.site / "permission").exists()


def test_an_installation_that_is_ended_leaves_no_process(place: Any) -> None:
    """Neither pip nor the build script of a folder that is only being fetched runs on; the exit code says so."""
    project = place.work / "slow"
    project.mkdir()
    started = place.work / "started"
    script = "import os, pathlib, time\npathlib.Path({!r}).write_text(f'{{os.getpid()}} {{os.getppid()}}')\ntime.sleep(600)\n"
    (project / "build_it.py").write_text(script.format(str(started)))
    backend = '[build-system]\nrequires = []\nbuild-backend = "build_it"\nbackend-path = ["."]\n'
    (project / "pyproject.toml").write_text(backend)  # a new environment has no setuptools since Python 3.12
    command = [str(place.python), "-m", "moryflow", "plugin", "install", str(project), "-y"]
    with subprocess.Popen(command, cwd=place.work, env=place.environment, stderr=subprocess.DEVNULL) as process:
        for _ in range(600):
            if started.exists() and started.read_text():
                break
            time.sleep(0.1)
        process.terminate()
        assert process.wait(20) == 130
    pids = started.read_text().split()
    for _ in range(100):  # whoever adopts a killed process takes a moment to wait for it
        if not any(Path("/proc", pid).exists() for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {pids}")


def test_a_build_script_may_print_without_end() -> None:
    """Of what an installer says, the end is read: no more memory than that is taken."""
    command = [sys.executable, "-c", f"print('x' * {3 * MAX_OUTPUT}); print('last')"]
    output = Installer(os.environ)._run(command, "it failed")
    assert len(output) == MAX_OUTPUT and output.endswith("\nlast\n")

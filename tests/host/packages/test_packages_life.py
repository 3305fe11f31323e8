"""What is installed stays what was agreed to: lock, sync, update, uninstall, and notices when it is not (R18)."""

from __future__ import annotations

import fcntl
import json
import shutil
from typing import Any

import pytest

MODEST = {"hooks": ["tools"], "tools": ["sayer_says"]}
MORE = {**MODEST, "hooks": ["tools", "event"], "services": {"files": True}, "capabilities": {"network": True}}
OTHER = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tools():\n    return []\n"


def test_an_update_says_what_changed_and_asks_when_a_plugin_wants_more(place: Any) -> None:
    """More tools are only told; more hooks, services or capabilities are asked about again (R18)."""
    place.wheels.add("sayer", "1.0", manifest=MODEST, source=OTHER)
    place.run("plugin", "install", "sayer", "-y")
    place.wheels.add("sayer", "1.1", manifest={**MODEST, "tools": ["sayer_says", "sayer_sings"]}, source=OTHER)
    done = place.json("plugin", "update", "sayer")
    changes = ["version 1.0 -> 1.1", "sayer: tools: +sayer_sings", "files: ~sayer/plugin.toml"]
    assert done[0]["changes"] == changes and place.lock["sayer"]["version"] == "1.1"

    place.wheels.add("sayer", "2.0", manifest=MORE)
    refused = place.run("plugin", "update", "sayer", code=2)
    for line in ("version 1.1 -> 2.0", "hooks: +event", "services: +files", "capabilities: network not declared -> yes"):
        assert line in refused.stderr
    assert "asks for more than you agreed to" in refused.stderr and place.lock["sayer"]["version"] == "1.1"
    place.run("plugin", "update", "sayer", "-y")
    assert place.lock["sayer"]["plugins"]["sayer"]["services"] == ["files"]
    assert place.row("sayer")["version"] == "2.0"


def test_a_plugin_is_known_by_the_name_of_its_package_too(place: Any) -> None:
    """What a person typed to install it is a name for ``info``, ``check``, ``disable`` and ``enable`` (CONTRACT §1)."""
    place.wheels.add("sayer", "1.0", manifest=MODEST)
    place.run("plugin", "install", "Sayer", "-y")
    assert place.json("plugin", "info", "Sayer")["lock"]["name"] == "sayer"
    assert "sayer: ok" in place.run("plugin", "check", "SAYER").stdout
    assert "sayer is disabled from the next turn on" in place.run("plugin", "disable", "Sayer").stdout
    assert place.run("plugin", "disable", "Sayer").stdout == "sayer is disabled already\n"
    assert "sayer: is enabled from the next turn on" in place.run("plugin", "enable", "Sayer").stdout


def test_what_no_longer_matches_the_lock_is_said_and_put_right(place: Any) -> None:
    """In `plugin list`, `doctor` and once per command; `sync` installs nothing but what was agreed to (R18)."""
    wheel = place.wheels.add("sayer", manifest=MODEST)
    agreed = wheel.read_bytes()
    place.run("plugin", "install", "sayer", "-y")
    init = place.site / "sayer" / "__init__.py"
    good = init.read_text("utf-8")
    init.write_text(OTHER, "utf-8")
    assert "its files differ from plugins.lock" in place.run("doctor", code=None).stdout
    assert "would reinstall sayer 1.0" in place.run("plugin", "sync", "--dry-run").stdout
    assert init.read_text("utf-8") == OTHER

    shutil.rmtree(place.site / "sayer")
    shutil.rmtree(place.site / "sayer-1.0.dist-info")
    for command in (("plugin", "list"), ("tool", "list")):
        assert "sayer 1.0 is in plugins.lock, but not installed: moryflow plugin sync" in place.run(*command).stderr
    place.wheels.add("sayer", manifest=MODEST, source=OTHER)  # the same version with other bytes
    done = place.run("plugin", "sync", code=1)
    assert "no longer matches plugins.lock" in done.stdout and "moryflow plugin update sayer" in done.stdout
    assert not (place.site / "sayer").exists()
    wheel.write_bytes(agreed)
    assert place.json("plugin", "sync")[0]["action"] == "install"
    assert init.read_text("utf-8") == good and place.run("plugin", "list").stderr == ""


def test_an_edit_of_an_installed_file_is_said_by_the_list(place: Any) -> None:
    """No folder changes with it: the content is compared (R18)."""
    place.wheels.add("sayer", manifest=MODEST)
    place.run("plugin", "install", "sayer", "-y")
    assert "plugins.lock" not in place.run("plugin", "list").stderr
    init = place.site / "sayer" / "__init__.py"
    with init.open("a", encoding="utf-8") as stream:
        stream.write("# mine\n")
    assert "is not what was agreed to: its files differ from plugins.lock" in place.run("plugin", "list").stderr


def test_a_package_that_came_another_way_is_named_until_somebody_agrees(place: Any) -> None:
    """`pip install` by hand, or a dependency that is a plugin too; `enable` is how a person says yes (R18)."""
    place.wheels.add("sayer", manifest=MODEST)
    place.wheels.add("carrier", requires=["sayer"])
    done = place.run("plugin", "install", "carrier", "-y")
    assert "sayer came along and is a plugin too" in done.stderr
    assert "sayer 1.0 is installed, but nobody agreed to it" in place.run("plugin", "list").stderr
    done = place.run("plugin", "enable", "sayer")
    assert "sayer 1.0 as it is now is noted in plugins.lock" in done.stdout
    assert place.run("plugin", "list").stderr == "" and set(place.lock) == {"carrier", "sayer"}


def test_a_plugin_is_uninstalled_with_all_that_was_known_of_it(place: Any) -> None:
    """The package, its line in the lock, its place among the disabled; a lost gate is not missed any more (invariant 4)."""
    gate = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_gate(call):\n    return None\n"
    place.wheels.add("guard", manifest={"hooks": ["tool_gate"]}, source=gate)
    place.run("plugin", "install", "guard", "-y")
    place.run("tool", "list")
    place.run("plugin", "disable", "guard")
    done = place.json("plugin", "uninstall", "guard")
    assert done["plugins"] == ["guard"] and place.lock == {}
    assert not (place.site / "guard").exists() and "guard" not in place.names()
    assert json.loads((place.home / "config.jsonc").read_text("utf-8"))["disabledPlugins"] == []
    assert "there is no plugin 'guard'" in place.run("plugin", "uninstall", "guard", code=2).stderr
    assert "is built in" in place.run("plugin", "uninstall", "files", code=1).stderr


def test_nothing_is_uninstalled_while_something_is_installed(place: Any) -> None:
    """One installer at a time works in an environment; the plugin stays (R18)."""
    place.wheels.add("sayer")
    place.run("plugin", "install", "sayer", "-y")
    with (place.home / ".installing.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = place.run("plugin", "uninstall", "sayer", code=1)
    assert "another installation is running" in done.stderr and "next: wait for it" in done.stderr
    assert set(place.lock) == {"sayer"} and (place.site / "sayer").exists()
    place.run("plugin", "uninstall", "sayer")


def test_a_file_is_copied_updated_and_moved_aside(place: Any) -> None:
    """`plugin install x.py`: agreed to by that command; going means aside, never gone (R18)."""
    source = place.work / "hello.py"
    source.write_text(OTHER, "utf-8")
    source.chmod(0o600)
    assert "moryflow plugin install hello.py -y" in place.run("plugin", "install", "hello.py", code=2).stderr
    place.run("plugin", "install", "hello.py", "-y")
    target = place.home / "plugins" / "hello.py"
    assert target.read_text("utf-8") == OTHER and target.stat().st_mode & 0o077 == 0
    assert place.lock["plugins/hello.py"]["hash"].startswith("sha256:")
    assert place.row("hello")["status"] == "pending" and "not loaded yet" in place.row("hello")["reason"]

    source.write_text(f"{OTHER}# new\n", "utf-8")
    assert "hello.py is up to date" not in place.run("plugin", "update", "hello", "-y").stdout
    assert target.read_text("utf-8").endswith("# new\n")
    assert next((place.home / "removed").glob("hello-*.py")).read_text("utf-8") == OTHER

    done = place.json("plugin", "uninstall", "hello")
    assert not target.exists() and done["aside"].startswith(str(place.home / "removed"))
    assert place.lock == {} and "hello" not in place.names()


OF_X = ": its entry 'x' is not as Moryflow writes it"
ENTRY = {"version": "1", "kind": "index", "origin": "x", "hash": "h", "plugins": {"x": {"hooks": []}}}


def lock_of(**changes: Any) -> str:
    """Return the text of a lock with one line that somebody has edited."""
    return json.dumps({"v": 1, "installed": {"x": {**ENTRY, **changes}}})


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('{\n "v": 1,\n', ":3", ": Expecting property name"),
        ("[" * 100_000, "", ""),
        (lock_of(origin=7), "", OF_X),
        (lock_of(kind="weird"), "", OF_X),
        (lock_of(plugins=["x"]), "", OF_X),
        (lock_of(plugins={"x": {"hooks": 5}}), "", OF_X),
        (lock_of(more=1), "", OF_X),
    ],
)
def test_a_lock_that_is_broken_is_named_and_nothing_stops(place: Any, text: str, line: str, why: str) -> None:
    """A sentence with file and command, everywhere; the host runs on (invariant 5)."""
    (place.home / "plugins.lock").write_text(text, "utf-8")
    said = f"moryflow: {place.home / 'plugins.lock'}{line}: plugins.lock cannot be read{why}"
    for command, code in ((("tool", "list"), 0), (("plugin", "list"), 0), (("plugin", "sync"), 2), (("plugin", "update"), 2)):
        assert place.run(*command, code=code).stderr.startswith(said)

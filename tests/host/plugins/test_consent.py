"""What appears in the folders of code while a host runs waits for a person's yes."""

from __future__ import annotations

import stat

import pytest
from moryflow.plugins.consent import Consents, items


@pytest.fixture
def home(tmp_path):
    for name in ("plugins", "tools"):
        (tmp_path / "home" / name).mkdir(parents=True, mode=0o700)
    return tmp_path / "home"


def test_a_held_file_waits_over_restarts_until_a_person_says_yes(home):
    """Recorded in the home, for its owner alone (ARCHITECTURE §7, R18)."""
    consents = Consents(home)
    consents.hold(home / "plugins" / "x.py")
    assert Consents(home).is_waiting("plugins/x.py")
    assert list(consents.waiting()) == ["plugins/x.py"]
    assert stat.S_IMODE((home / "consents.json").stat().st_mode) == 0o600
    assert Consents(home).give(home / "plugins" / "x.py")
    assert not consents.is_waiting(home / "plugins" / "x.py"), "another process got the yes"
    assert not consents.give("plugins/x.py")


def test_a_file_of_a_package_stands_for_the_package(home, tmp_path):
    """A link to the home is the home (R10); what is elsewhere is nobody's item."""
    consents = Consents(home)
    consents.hold("plugins/package/deep/module.py")
    (tmp_path / "link").symlink_to(home)
    assert consents.is_waiting(tmp_path / "link" / "plugins" / "package")
    assert consents.item(home / "config.jsonc") == ""
    assert consents.item(tmp_path / "elsewhere.py") == ""


@pytest.mark.parametrize("damage", ["", "{", '{"waiting": 3}', "[]", "[" * 100_000])
def test_a_damaged_list_means_that_everything_waits(home, damage):
    """Never looser than what it may have said (R17); a yes then leaves the rest waiting."""
    for name in ("plugins/a.py", "tools/b.py"):
        (home / name).write_text("")
    (home / "consents.json").write_text(damage)
    consents = Consents(home)
    assert consents.is_waiting("plugins/a.py") and consents.is_waiting("tools/b.py")
    assert consents.give("plugins/a.py")
    assert not consents.is_waiting("plugins/a.py") and consents.is_waiting("tools/b.py")


def test_a_home_that_cannot_be_written_still_holds_for_this_process(home):
    """Losing the list must not open the door (invariant 4)."""
    (home / "consents.json").mkdir()
    consents = Consents(home)
    consents.hold("tools/x.py")
    assert consents.is_waiting("tools/x.py")


def test_items_are_python_files_and_packages(home):
    """Editors' own files are none."""
    for name in ("a.py", ".a.py.swp", "_b.py", "a.py~", "4913", "notes.md"):
        (home / "tools" / name).write_text("")
    (home / "plugins" / "package").mkdir()
    (home / "plugins" / "package" / "__init__.py").write_text("")
    (home / "plugins" / "folder").mkdir()
    assert items(home) == {"tools/a.py", "plugins/package"}

"""The commands in a shell text, as gates of other plugins get them."""

from __future__ import annotations

import pytest
from moryflow_builtins.permission import simple_commands


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git push origin main", "git push origin main"),
        ("cd x && git push", "git push"),
        ("git -C x push", "git push"),
        ("A=1 git push", "git push"),
        ("/usr/bin/git push", "git push"),
        ("git 'pu'sh", "git push"),
        ('sh -c "git push"', "git push"),
        ("sudo bash -c 'cd x; git push'", "git push"),
        ("find . -exec git push ';'", "git push"),
        ("bash <<E\ngit push\nE", "git push"),
        ("for i in 1 2; do git push; done", "git push"),
        ("x=$(git push)", "git push"),
        ("f() { git push; }", "git push"),
        ("some-runner git push", "git push"),
        ("if git push", "git push"),
        ("eval " * 12 + "git push", "git push"),
    ],
)
def test_a_command_is_found_wherever_it_stands(text, expected):
    """It is what a rule `git push` would be matched against."""
    assert expected in simple_commands(text)


def test_what_is_only_said_is_no_command():
    """The words of a program that is known stay its words."""
    assert simple_commands("echo git push; true") == ("echo git push", "true")


def test_a_text_without_commands_has_none():
    """Neither have blanks, comments and assignments."""
    assert [simple_commands(text) for text in ("", "  # git push", "A=1")] == [(), (), ()]

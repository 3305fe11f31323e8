"""The sandbox for shell commands, with the real bubblewrap."""

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from moryflow_builtins import shell
from moryflow_sdk import Rule
from moryflow_sdk.support import sandbox
from moryflow_sdk.support.sandbox import FileRules, find_sandbox

SANDBOX = find_sandbox()
pytestmark = pytest.mark.skipif(SANDBOX is None, reason="no working bubblewrap on this machine (install bubblewrap)")


def run(vault, script, **options):
    argv = SANDBOX.command(["sh", "-c", script], vault=vault, **options)
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path):
    vault, home = tmp_path / "vault", tmp_path / "home"
    (vault / ".git").mkdir(parents=True)
    home.mkdir()
    (home / "config.jsonc").write_text("{}")
    return vault, home


def test_only_the_vault_can_be_written(place, tmp_path):
    """The vault is writable, the rest read-only (S0.36, R14)."""
    vault, _ = place
    assert run(vault, "echo hi > a.txt").returncode == 0
    assert (vault / "a.txt").read_text() == "hi\n"
    assert run(vault, f"echo hi > {tmp_path}/b.txt; echo x > /etc/zz").returncode != 0
    assert not (tmp_path / "b.txt").exists()


def test_the_hosts_home_is_hidden(place):
    """Moryflow's own home cannot be seen or changed from a command (R14)."""
    vault, home = place
    found = run(vault, f"ls -A {home}; echo x > {home}/config.jsonc", hidden=[home])
    assert "config.jsonc" not in found.stdout
    assert (home / "config.jsonc").read_text() == "{}"


def test_what_runs_later_is_read_only(place):
    """A command cannot plant a git hook (R21)."""
    vault, _ = place
    assert run(vault, "mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit").returncode != 0
    assert not list((vault / ".git" / "hooks").iterdir())


def test_a_commit_works_inside(place):
    """What does not run later in ``.git`` stays writable (R21)."""
    vault, _ = place
    subprocess.run(["git", "init", "-q", str(vault)], check=True)
    identity = "git -c user.name=a -c user.email=a@b"
    done = run(vault, f"echo hi > a && git add a && {identity} commit -qm hi && git log --oneline | wc -l")
    assert done.stdout.strip() == "1", done.stderr


def test_there_is_no_network_unless_it_is_opened(place):
    """Network is off unless a rule opens it (S0.36)."""
    vault, _ = place
    count = "cat /proc/net/dev | tail -n +3 | grep -vc ' lo:'"
    assert run(vault, count).stdout.strip() == "0"
    assert "lo" in run(vault, "cat /proc/net/dev", network=True).stdout


@pytest.mark.parametrize(
    "script",
    [
        "umount .git/hooks || mount -o remount,rw .git/hooks || unshare -Urm umount .git/hooks",
        "mv .git g || rm -rf .git/hooks || mv .git/hooks h",
        "echo x > /proc/sys/kernel/domainname",
        "echo x > /proc/sysrq-trigger",
        "test -e /run/user -o -e /run/docker.sock",
        "ls -A /run | grep -v -e resolv -e systemd -e NetworkManager -e nscd -e wrappers -e current-system",
        "setpriv --dump | grep -i cap_sys",
    ],
)
def test_root_has_no_powers_inside(place, script):
    """No mount is undone, no system setting changed and no socket of the system reached, also by root (R21, S0.36)."""
    vault, _ = place
    assert run(vault, f"{script} && echo it went").stdout.strip() == ""
    assert (vault / ".git/hooks").is_dir()
    assert Path("/proc/sys/kernel/domainname").read_text() != "x\n"


def test_a_hidden_folder_takes_no_writes(place):
    """What was written there would be gone without a word."""
    vault, home = place
    assert run(vault, f"echo x > {home}/y", hidden=[home]).returncode != 0


def test_a_socket_in_a_hidden_folder_below_a_link_stops_no_command(place, tmp_path):
    """The system names it by its real path, ``/var/home`` where ``/home`` is a link (R14)."""
    vault, _ = place
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        real = Path(folder) / "real"
        (real / "keys").mkdir(parents=True)
        (Path(folder) / "link").symlink_to("real")
        listener.bind(f"{real}/keys/agent")
        listener.listen()
        found = run(vault, f"ls {real}/keys; echo done", hidden=[Path(folder) / "link/keys"])
    assert found.stdout == "done\n", found.stderr


def test_a_folder_that_cannot_be_entered_hides_what_is_in_it(place, monkeypatch):
    """Its owner could open it from a command; nobody else can look, so nothing else stops (R10)."""
    vault, _ = place
    (vault / "shut/b").mkdir(parents=True)
    (vault / "shut/b/.env").write_text("token")
    lstat = os.lstat

    def refusing(path, **how):
        if f"{vault}/shut/" in os.fspath(path):
            raise PermissionError(13, "Permission denied")
        return lstat(path, **how)

    monkeypatch.setattr(os, "lstat", refusing)
    argv = SANDBOX.command(["sh", "-c", "ls shut; echo done"], vault=vault, hidden=[vault / "shut/b"])
    monkeypatch.undo()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_the_rules_say_which_files_are_open():
    """The last rule of a person decides, an agent's only narrows, the defaults are not asked (D4, R4)."""
    rows = [("read", "vault:**", "deny"), ("read", "vault:/.env", "allow"), ("edit", "vault:/.vscode/**", "allow")]
    rules = [Rule(domain=domain, pattern=pattern, decision=said) for domain, pattern, said in rows]
    default = Rule(domain="read", pattern="vault:**", decision="allow", source="default")
    agents = [Rule(domain="read", pattern="vault:/.env", decision="ask", source="agent")]
    open_, narrowed = FileRules([*rules, default]), FileRules(rules, agents)
    assert open_.allows("read", "vault:/.env") and not open_.allows("read", "vault:/a") and open_.allowing
    assert open_.allows("edit", "vault:/.vscode/a/b") and open_.decision("edit", "vault:/a") is None
    assert not narrowed.allows("read", "vault:/.env") and narrowed.restricting and not FileRules([default]).restricting


def test_doctor_says_why_the_bubblewrap_that_is_installed_does_not_work(tmp_path, monkeypatch):
    """Where user namespaces are off, nothing is left to install (S0.36)."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o700)
    for found, text, step in (
        ([str(broken)], f". {broken}: No permissions to create new namespace", "user.max_user_namespaces"),
        ([], "", "install bubblewrap"),
    ):
        monkeypatch.setattr(sandbox, "_found", [])
        monkeypatch.setattr(sandbox, "_candidates", lambda found=found: iter(found))
        [(state, said, next_step)] = shell.doctor()
        assert (state, said) == (
            "warning",
            f"no sandbox: a command that you allow can do what you can{text}",
        ) and step in next_step

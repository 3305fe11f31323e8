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
from moryflow_sdk.support.sandbox import FileRules, Sandbox, find_sandbox, starts_no_more

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


@pytest.fixture
def tries(monkeypatch):
    """The programs that were started to see whether they work, by what begins like a new process."""
    tried, starts = [], sandbox._starts
    monkeypatch.setattr(sandbox, "_starts", lambda program, **how: tried.append(program) or starts(program, **how))

    def find(memory):
        monkeypatch.setattr(sandbox, "_found", [])
        return find_sandbox(memory)

    return tried, find


def test_what_was_tried_is_not_tried_again(tries, tmp_path):
    """The sandbox is found by a start; a later process takes the answer as long as nothing is another (issue 3)."""
    tried, find = tries
    memory = tmp_path / "sandbox"
    assert find(memory) == find(memory) == SANDBOX and len(tried) == 1
    memory.write_text(memory.read_text()[:-1] + "?")  # the machine was started anew
    assert find(memory) == SANDBOX and len(tried) == 2
    assert find(None) == SANDBOX and len(tried) == 3


def test_only_a_good_answer_is_kept(tries, tmp_path, monkeypatch):
    tried, find = tries
    monkeypatch.setattr(sandbox, "_candidates", lambda: ["/bin/false"])
    assert find(tmp_path / "sandbox") is None and find(tmp_path / "sandbox") is None
    assert tried == ["/bin/false"] * 2 and not (tmp_path / "sandbox").exists()


def test_what_is_remembered_names_no_program(tries, tmp_path):
    """A file that was tampered with can keep a sandbox from being tried, and put nothing in its place."""
    _, find = tries
    memory = tmp_path / "sandbox"
    find(memory)
    memory.write_text(memory.read_text().replace(SANDBOX.program, "/bin/true"))
    assert find(memory) == SANDBOX


OTHER_THINGS = {
    "no text": lambda file: file.write_bytes(b"\xff\xfe"),
    "huge": lambda file: (file.touch(), os.truncate(file, 1 << 36)),
    "a pipe": os.mkfifo,
    "a folder": lambda file: (file / "x").mkdir(parents=True),
    "a link": lambda file: file.symlink_to(file.with_name("notes.md")),
    "a link to nothing": lambda file: file.symlink_to("nothing"),
}


@pytest.mark.parametrize("make", OTHER_THINGS.values(), ids=OTHER_THINGS)
def test_another_thing_in_the_place_of_the_memory_holds_nothing_up(tries, tmp_path, make):
    """A pipe would be waited for, and what a link leads to written over; the sandbox is just tried again."""
    tried, find = tries
    memory, notes = tmp_path / "sandbox", tmp_path / "notes.md"
    notes.write_text("mine")
    make(memory)
    assert find(memory) == SANDBOX == find(memory)
    assert len(tried) == (2 if memory.is_dir() else 1)
    assert notes.read_text() == "mine" and not (tmp_path / "nothing").exists()
    assert starts_no_more(Sandbox("/bin/false"), memory)


def test_a_program_below_a_name_that_is_no_text_is_remembered(tries, tmp_path, monkeypatch):
    tried, find = tries
    program = os.fsdecode(bytes(tmp_path) + b"/\xff")
    Path(program).symlink_to("/bin/true")
    monkeypatch.setattr(sandbox, "_candidates", lambda: [program])
    assert find(tmp_path / "sandbox") == find(tmp_path / "sandbox") == Sandbox(program) and tried == [program]


def test_a_sandbox_that_starts_no_more_is_forgotten(tmp_path):
    memory = tmp_path / "sandbox"
    memory.write_text("known")
    assert not starts_no_more(SANDBOX, memory) and memory.exists()
    assert starts_no_more(Sandbox("/bin/false"), memory) and not memory.exists()


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


def test_a_machine_that_is_too_busy_for_the_trial_says_nothing(tmp_path, monkeypatch):
    """A command that ran and printed what bubblewrap prints would else be told not to have run."""
    slow, memory = tmp_path / "bwrap", tmp_path / "sandbox"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    memory.write_text("known")
    monkeypatch.setattr(sandbox, "_PROBE_SECONDS", 0.2)
    assert not starts_no_more(Sandbox(str(slow)), memory) and memory.exists()
    monkeypatch.setattr(sandbox, "_candidates", lambda: [str(slow)])
    monkeypatch.setattr(sandbox, "_found", [])
    assert find_sandbox(tmp_path / "other") is None and not (tmp_path / "other").exists()

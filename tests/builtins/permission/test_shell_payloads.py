"""Patches are judged by the paths they change: of git, of patch, from files, redirections and here-documents."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell.effects import EffectUnknown, Patch
from moryflow_builtins.permission.shell.payloads import paths_in

from . import judging
from .judging import rules

MakePolicy = Callable[..., Policy]
RULES = ("+*", "+git *", "+patch *")


def added(path: str, old: str = "/dev/null", new: str = "") -> str:
    """Return a patch that makes or changes `path`, without the first folder in its names."""
    return f"--- {old}\n+++ {new or f'b/{path}'}\n@@ -0,0 +1 @@\n+x\n"


WORKFLOW = ".github/workflows/x.yml"
PATCHES = {
    "harmless": added("src/a.md"),
    "workflow": f"diff --git a/{WORKFLOW} b/{WORKFLOW}\nnew file mode 100644\n{added(WORKFLOW)}",
    "last": added("src/a.md") + added("src/b.md") + added(".vscode/settings.json"),
    "quoted": added("x", new='"b/.git\\150ub/workflows/x"'),
    "old name": added("x", old="a/.vscode/tasks.json", new="/dev/null"),
    "renamed": "diff --git a/gh b/.github/a\nsimilarity index 100%\nrename from gh\nrename to .github/workflows/a\n",
    "copied": "diff --git a/gh b/.github/a\nsimilarity index 100%\ncopy from gh\ncopy to .github/workflows/a\n",
    "mode": "diff --git a/.git/hooks/x b/.git/hooks/x\nold mode 100644\nnew mode 100755\n",
    "empty": "diff --git a/.mcp.json b/.mcp.json\nnew file mode 100644\nindex 0000000..e69de29\n",
    "binary": "diff --git a/my file/.mcp.json b/my file/.mcp.json\nnew file mode 100644\nGIT binary patch\nliteral 1\nIcmZPo\n",
    "link": "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+.env\n",
    "secret": added(".env", old="a/.env"),
    "outside": added("../x"),
    "timed": added("x", new="b/.mcp.json\t2026-01-01 00:00:00"),
    "spaced": added("x", new="b/.mcp.json 2026-01-01 00:00:00"),
    "context": "*** a/.mcp.json\t2026\n--- b/.mcp.json\t2026\n***************\n*** 0 ****\n--- 1 ----\n+ x\n",
    "index": "Index: .mcp.json\n===\n--- x\n+++ x\n@@ -0,0 +1 @@\n+x\n",
    "indented": "".join(f"  {line}\n" for line in added(".mcp.json").splitlines()),
    "other line ends": added(".mcp.json").replace("\n", "\r\n"),
    "nothing": "hello\n",
    "mail": f"From x\nSubject: y\nContent-Transfer-Encoding: base64\n\n{'QUJD' * 9}\n",
    "ed": "1d\n.\nw\n",
    "series": "# This series applies on GIT commit abc\nother.patch\n",
}


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault with a repository and a file for each patch."""
    vault = tmp_path / "vault"
    (vault / "src").mkdir(parents=True)
    for name, text in PATCHES.items():
        (vault / f"{name.replace(' ', '-')}.patch").write_bytes(text.encode())
    (vault / "src" / "in.patch").write_text(added("a.md"))
    return vault


@pytest.fixture
def decide(vault: Path, tmp_path: Path, make_policy: MakePolicy) -> Callable[..., str]:
    """Judge a command under wildcards that cover it."""
    policy = make_policy(rules(*RULES), vault=vault, user_home=tmp_path / "home")
    return partial(judging.decide, policy)


WAYS = (
    "git apply {}",
    "git apply < {}",
    "git am {}",
    "patch -p1 < {}",
    "patch -p1 -i {}",
    "git apply -p1 -- {}",
    "patch --inp={} -p1",
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_is_judged_by_every_path_in_it(name: str, way: str, decide: Callable[..., str]) -> None:
    """What runs later, secrets, places outside and what is not understood are not covered by a wildcard (R35, R21, R8)."""
    decision = decide(way.format(f"{name.replace(' ', '-')}.patch"))
    assert decision == "allow" if name == "harmless" else decision in ("ask", "deny")


@pytest.mark.parametrize("way", ["git apply", "git apply -", "patch -p1", "git -C src apply", "git am"])
def test_a_here_document_is_read_like_a_file(way: str, decide: Callable[..., str]) -> None:
    """The text is in the command (R35)."""
    assert decide(f"{way} <<'END'\n{PATCHES['harmless']}END") == "allow"
    assert decide(f"{way} <<'END'\n{PATCHES['workflow']}END") == "ask"
    assert decide(f'{way} <<< "$(cat harmless.patch)"') == "ask"


ASK = """
cat harmless.patch | git apply
git apply
patch -p1
git am
git apply none.patch
git apply src
git apply harmless.patch workflow.patch
git apply --dir=.github/workflows harmless.patch
git apply --directory .vscode harmless.patch
git -C src apply ../workflow.patch
git apply --build-fake=x harmless.patch
git apply --unsafe-p harmless.patch
git am --patch-format=stgit harmless.patch
patch -p0 .mcp.json harmless.patch
patch -p1 -o .mcp.json -i harmless.patch
patch -p1 -B.git/hooks/ -i harmless.patch
patch -p1 --ed -i harmless.patch
patch -e x harmless.patch
patch -d src -p1 < workflow.patch
patch -d .. -p1 < harmless.patch
cp workflow.patch harmless.patch; git apply harmless.patch
echo x > harmless.patch && git apply harmless.patch
cd src; git apply ../workflow.patch
timeout 9 git apply workflow.patch
bash -c 'git apply workflow.patch'
xargs git apply
git apply $x
git apply *.patch
git apply --stat --apply workflow.patch
git apply --stat --no-stat workflow.patch
git apply --check --appl workflow.patch
git apply workflow.patch - < harmless.patch
git apply --directory=src --directory=.vscode harmless.patch
git am --abort workflow.patch
git am workflow.patch --resolved
patch x workflow.patch -i harmless.patch
patch -i workflow.patch -i harmless.patch -p1
patch -p1 < harmless.patch < workflow.patch
patch -p1 0< workflow.patch
patch -p1 <&3 3< workflow.patch
exec < workflow.patch; git apply
{ git apply; } < workflow.patch
git apply /dev/stdin < workflow.patch
git apply <(cat workflow.patch)
git -C src am ../workflow.patch
cd src && git am ../workflow.patch
sh -c 'patch -p1 < workflow.patch'
find . -name x.patch -exec git apply {} +
git app workflow.patch
""".strip()
ALLOW = """
git apply --stat workflow.patch
git apply --check workflow.patch
git am --abort
git am --continue
patch --dry-run -p1 < workflow.patch
git apply -p2 harmless.patch
git apply --index -3 harmless.patch
git apply -R harmless.patch
cd src && git apply in.patch
git -C src apply in.patch
patch -d src -p1 < src/in.patch
patch src/a.md harmless.patch
timeout 9 git apply harmless.patch
git apply - < harmless.patch
patch -p1 < workflow.patch < harmless.patch
patch --directory=src -p1 -i in.patch
git apply --directory=.vscode --directory=src harmless.patch
sh -c 'patch -p1 < harmless.patch'
""".strip()


@pytest.mark.parametrize("command", ASK.splitlines())
def test_where_a_patch_comes_from_and_goes_to_counts(command: str, decide: Callable[..., str]) -> None:
    """A text that is piped in, may change or is not there asks, and so do folders that options name (R35, R34)."""
    assert decide(command) in ("ask", "deny")


@pytest.mark.parametrize("place", [".git/config", ".git/config.worktree", "../home/.gitconfig", "../home/.config/git/config"])
def test_mail_is_asked_about_where_it_may_be_merged(place: str, vault: Path, decide: Callable[..., str]) -> None:
    """With ``am.threeWay`` git follows renames to paths that stand in no patch (R35)."""
    assert decide("git am harmless.patch") == "allow"
    (vault / place).parent.mkdir(parents=True, exist_ok=True)
    (vault / place).write_text("[am]\n\tthreeWay = true\n")
    assert decide("git am harmless.patch") == "ask" and decide("git am --no-3way harmless.patch") == "allow"
    assert decide("git am --abort") == "allow" and decide("git apply harmless.patch") == "allow"


@pytest.mark.parametrize("command", ALLOW.splitlines())
def test_ordinary_patches_go_unasked(command: str, decide: Callable[..., str]) -> None:
    """Where all paths are known and harmless, and where nothing is changed (SECURITY §4)."""
    assert decide(command) == "allow"


@pytest.mark.parametrize(
    "program", ["git apply", "git apply -p0", "git apply -p2", "patch", "patch -p0", "patch -p1", "patch -p2"]
)
@pytest.mark.parametrize("names", ["a/d/e/f", "d/e/f", "f", '"a/d/e/\\146"', "  a/d/f", "a//d/f", "./d/f", "a/d/f g"])
def test_what_is_really_changed_is_among_the_paths(program: str, names: str, tmp_path: Path) -> None:
    """The real programs change nothing that was not judged (R35, R11)."""
    if shutil.which(program.partition(" ")[0]) is None:
        pytest.skip("the program is the reference")
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "e").mkdir()
    text = f"--- {names}\n+++ {names}\n@@ -0,0 +1 @@\n+x\n"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "GIT_CEILING_DIRECTORIES": "/"}
    subprocess.run(
        program.split(), cwd=tmp_path, input=text.encode(), env=environment, capture_output=True, timeout=300, check=False
    )
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    _, _, strip = program.partition("-p")
    patch = Patch(strip=int(strip) if strip else None, by_git=program.startswith("git"))
    judged = {os.path.normpath(path) for path in paths_in(text, patch)}
    assert {path for path in made if not path.endswith((".rej", ".orig"))} <= judged


def test_a_patch_of_too_many_files_is_not_read_to_its_end() -> None:
    """There is a limit, and past it a question (R27, R37)."""
    with pytest.raises(EffectUnknown):
        paths_in("".join(added(f"src/{number}") for number in range(3000)), Patch(by_git=True))

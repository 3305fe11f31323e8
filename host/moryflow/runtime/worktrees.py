"""Sessions in a git worktree of their own: create it from HEAD of the user's repository, merge it, drop it.

The worktrees are in a folder beside Moryflow's home, not in it, because no tool may change anything in the home. What is
known of them is in the home, because no tool may change that: the folder of git's own files above all. git is always told
where they are, so a ``.git`` that somebody puts into the worktree is not read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moryflow_sdk import ConfigError, MoryflowError

from moryflow.base.paths import make_folder, write_private
from moryflow.store import Commit

if TYPE_CHECKING:
    from moryflow.store import SessionLock, SessionRow, Store

FOLDER = "worktrees"
# Where in a repository the worktrees of a cluster are: all machines that have the repository have them too.
IN_REPOSITORY = ".worktrees"
# Letters of the session's id that name its worktree and its branch.
NAME = 8
# git runs no hook and no watcher of files; filters and merge drivers are the user's, and run as in any checkout.
_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


class GitFailed(MoryflowError):
    """git could not do what was asked; the message is its own."""

    code = "git"


class Worktree(NamedTuple):
    """A worktree of a session.

    :ivar folder: its top; `vault` is what the session has as its folder.
    :ivar repository: the top of the checkout that it was made from; `origin` is the session's folder after a merge or a drop.
    :ivar git_dir: where git keeps what it knows of this worktree.
    :ivar base: the commit that it began with.
    """

    name: str
    session: str
    folder: str
    vault: str
    repository: str
    origin: str
    git_dir: str
    base: str

    @property
    def branch(self) -> str:
        return f"moryflow/{self.name}"

    def git(self, *arguments: str) -> str:
        """Run git in the worktree; see :func:`git`."""
        return git(self.folder, f"--git-dir={self.git_dir}", f"--work-tree={self.folder}", *arguments)


def git(folder: Path | str, *arguments: str) -> str:
    """Return what git prints.

    :raises ConfigError: git is not installed.
    :raises GitFailed: it failed.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *_SETTINGS, *arguments]
    environ |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(command, cwd=folder, env=environ, stdin=nothing, capture_output=True, check=False)
    except FileNotFoundError as error:
        missing = "git" if Path(folder).is_dir() else str(folder)
        raise ConfigError(
            f"{missing} is not there", next_step="install git, or look at moryflow session worktree list"
        ) from error
    if done.returncode:
        said = os.fsdecode(done.stderr.strip() or done.stdout.strip()) or f"exit code {done.returncode}"
        raise GitFailed(" ".join(said.removeprefix("fatal: ").split()), where=str(folder))
    return os.fsdecode(done.stdout)


def create(home: Path, vault: Path, session: str, ref: str = "HEAD", named: str = "") -> Worktree:
    """Make a worktree for a session that is about to begin in `vault`, from the last commit or `ref`.

    :param named: what sessions of a cluster call `vault`; the worktree is then inside it, and they call that likewise.
    :raises ConfigError: `vault` is in no git repository, or there is no such commit.
    """
    without = "run it without --worktree"
    try:
        repository = git(vault, "rev-parse", "--show-toplevel").removesuffix("\n")
    except GitFailed as error:
        step = f"git init and commit first, or {without}"
        raise ConfigError("--worktree needs a git repository", where=str(vault), next_step=step) from error
    try:
        base = git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").strip()
    except GitFailed as error:
        step = f"commit first, or {without}"
        problem = "this git repository has no commit yet" if ref == "HEAD" else f"there is no commit {ref!r}"
        raise ConfigError(problem, where=repository, next_step=step) from error
    name = session[:NAME]
    folder = (vault / IN_REPOSITORY if named else home.with_name(f"{home.name}-{FOLDER}")) / name
    make_folder(folder.parent)
    if named:
        (folder.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    if folder.exists():  # whoever began it was killed before the session knew of it
        shutil.rmtree(folder)
        git(repository, "worktree", "prune")
    git(repository, "worktree", "add", "--quiet", "-B", f"moryflow/{name}", str(folder), base)
    below = vault.resolve().relative_to(Path(repository).resolve())
    inside = folder / below
    inside.mkdir(parents=True, exist_ok=True)  # a folder without a committed file is not in the worktree
    own = git(folder, "rev-parse", "--absolute-git-dir").removesuffix("\n")
    known = str(Path(named, IN_REPOSITORY, name, below) if named else inside)
    made = Worktree(name, session, str(folder), known, repository, named or str(vault), own, base)
    write_private(home / FOLDER / f"{name}.json", json.dumps(made._asdict()))
    return made


def worktrees(home: Path) -> list[Worktree]:
    """Return the worktrees that there are, the newest last."""
    found: list[tuple[float, Worktree]] = []
    for file in (home / FOLDER).glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            found.append((file.stat().st_mtime, Worktree(**json.loads(file.read_text(encoding="utf-8")))))
    return [worktree for _, worktree in sorted(found)]


def worktree_of(home: Path, vault: str) -> Worktree | None:
    """Return the worktree that a session in the folder `vault` works in, if it works in one."""
    return next((one for one in worktrees(home) if one.vault == vault), None)


def named(home: Path, name: str) -> Worktree:
    """Return a worktree by its name or its session's id, or the beginning of one.

    :raises ConfigError: there is none, or there are several.
    """
    found = [one for one in worktrees(home) if one.session.startswith(name)]
    if len(found) != 1:
        problem = f"there are {len(found)} worktrees" if found else "there is no worktree"
        raise ConfigError(f"{problem} called {name!r}", next_step="moryflow session worktree list")
    return found[0]


def uncommitted(repository: str) -> list[str]:
    """Return the files of a checkout that differ from its last commit, without ignored ones."""
    entries = git(repository, "status", "--porcelain", "-z", "--no-renames").split("\0")
    return [entry[3:] for entry in entries if entry]


def changes(worktree: Worktree) -> str:
    """Return the diff stat of everything that was changed in a worktree, committed or not; empty if nothing was.

    What was not committed is staged by this, so that new files count.

    :raises GitFailed: see :func:`_stage`.
    """
    _stage(worktree)
    return worktree.git("diff", "--cached", "--stat", "--no-ext-diff", worktree.base).rstrip()


def commit(worktree: Worktree, message: str) -> None:
    """Commit what was changed in a worktree on its branch, if anything was.

    :raises GitFailed: see :func:`_stage`.
    """
    _stage(worktree)
    if worktree.git("diff", "--cached", "--name-only", "--no-ext-diff", "HEAD"):
        worktree.git(*_identity(worktree.repository), "-c", "commit.gpgSign=false", "commit", "--quiet", "-m", message)


def _stage(worktree: Worktree) -> None:
    """Stage everything that is not ignored."""
    for place, folders, files in os.walk(worktree.folder):
        if ".git" in (*folders, *files) and place != worktree.folder:
            step = f"move {place} away, or remove {place}/.git"
            raise GitFailed("a folder in the worktree is a git repository of its own", where=place, next_step=step)
    worktree.git("add", "--all")


def merge(worktree: Worktree) -> str:
    """Merge the branch of a worktree into what is checked out in the user's folder; return the name of that.

    :raises GitFailed: git refused, or there are conflicts, which are left as git leaves them. The worktree is untouched.
    """
    place = worktree.repository
    try:
        git(place, *_identity(place), "merge", "--quiet", "--no-edit", worktree.branch)
    except GitFailed as error:
        files = git(place, "diff", "--name-only", "--diff-filter=U", "-z").split("\0")[:-1]
        if not files:
            step = f"see git -C {place} status, then moryflow session worktree merge {worktree.name}"
            raise GitFailed(f"{worktree.branch} was not merged: {error.message}", where=place, next_step=step) from error
        step = f"resolve and commit, or git merge --abort; then moryflow session worktree drop {worktree.name}"
        raise GitFailed(f"{worktree.branch} conflicts in {', '.join(files)}", where=place, next_step=step) from error
    return git(place, "rev-parse", "--abbrev-ref", "HEAD").strip()


def _identity(repository: str) -> Sequence[str]:
    """Return options that name an author, if the user has told git none."""
    try:
        git(repository, "var", "GIT_COMMITTER_IDENT")
    except GitFailed:
        return ("-c", "user.name=Moryflow", "-c", "user.email=moryflow@localhost")
    return ()


def remove(home: Path, worktree: Worktree) -> None:
    """Remove a worktree and its branch, with everything that was not merged."""
    with suppress(FileNotFoundError):
        shutil.rmtree(worktree.folder)  # git would not, if somebody has changed the file `.git` in it
    if Path(worktree.repository).is_dir():
        git(worktree.repository, "worktree", "prune")
        with suppress(GitFailed):  # the user has removed the branch
            git(worktree.repository, "branch", "--quiet", "-D", worktree.branch)
    (home / FOLDER / f"{worktree.name}.json").unlink(missing_ok=True)


@asynccontextmanager
async def moving_back(store: Store, worktree: Worktree) -> AsyncIterator[Sequence[SessionRow]]:
    """Hold the sessions of a worktree during a block that removes it; afterwards they work in the folder it was made from.

    :raises SessionBusy: one of them is at work.
    """
    async with AsyncExitStack() as stack:
        held: list[SessionLock] = []
        rows = await store.sessions(1_000_000, vault=worktree.vault, purpose=None)
        for row in rows:
            held.append(await store.hold(row.id))
            stack.callback(held[-1].release)
        yield rows
        for lock in held:
            await lock.commit(Commit(session={"vault": worktree.origin}))

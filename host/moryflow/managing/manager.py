"""What the commands of this room share: the home, the environment, and how a person is told and asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from .cards import Package
from .errors import InstallError
from .installer import Installer
from .lock import Lockfile
from .origins import Origin
from .packages import installed_packages, normal, start_files
from .pins import host_pins, refuse_bad, refuse_conflicts


@dataclass
class Manager:
    """Installs, and looks at what it has done.

    :param tell: shows a line or a screen to the person.
    :param ask: asks a question, and raises unless the answer is yes.
    :param building: whether a package of an index may be built from its sources.
    """

    home: Path
    environ: Mapping[str, str]
    tell: Callable[[str], None]
    ask: Callable[[str], None]
    building: bool = False

    @property
    def lock(self) -> Lockfile:
        return Lockfile(self.home)

    @cached_property
    def pins(self) -> dict[str, str]:
        return host_pins()

    @cached_property
    def installer(self) -> Installer:
        return Installer(self.environ, self.pins, self.building)

    def refuse(self, package: Package) -> None:
        """Refuse what is not installed whoever says yes.

        :raises InstallError: it brings no plugin, a file that Python would run at every start, a release known to be
            malicious, or it wants to move what the host runs on.
        """
        if not package.cards:
            hint = "if it is a library, install it with pip"
            raise InstallError(f"{package.name} brings no plugin: no entry point in moryflow.plugins", next_step=hint)
        refuse_conflicts(package, self.pins)
        refuse_bad([(package.name, package.version)])
        if package.start_files:
            names = ", ".join(package.start_files)
            problem = f"{package.name} brings {names}, which Python would run at every start (R31)"
            raise InstallError(problem, next_step="ask its author what it is for")

    def plan(self, origin: Origin) -> list[tuple[str, str]]:
        """Return what would be installed besides the plugin.

        :raises InstallError: it does not fit, or holds a release known to be malicious.
        """
        also = self.installer.plan(origin)
        refuse_bad(also)
        return also

    def put(self, origin: Origin, shown: Package) -> Package:
        """Install what was shown, check that it is there and that nothing else crept in; return what is installed.

        :raises InstallError: what is there is not what was shown, or a new ``.pth`` came along; it was removed again.
        """
        before, starts = set(installed_packages()), start_files()
        self.installer.install(origin)
        found = installed_packages().get(normal(shown.name))
        if found is not None and shown.digest and found.package().digest != shown.digest:
            self.installer.install(origin, again=True)
            found = installed_packages().get(normal(shown.name))
        if found is None:
            raise InstallError(f"{shown.name} is not there after its installation", next_step="moryflow doctor")
        package = found.package()
        if shown.digest and package.digest != shown.digest:
            self._undo(before, shown.name)
            raise InstallError(f"what was installed as {shown.name} is not what was shown; it was removed again")
        own = {found.site / name for name in found.start_files()} if found.editable else set()
        if crept := sorted(start_files() - starts - own):
            self._undo(before, shown.name)
            names = ", ".join(str(path) for path in crept)
            problem = f"{names} came along, which Python would run at every start; all was removed again (R31)"
            raise InstallError(problem, next_step="ask the author of the plugin what it is for")
        for name in sorted(set(installed_packages()) - before - {normal(shown.name)}):
            for card in installed_packages()[name].package().cards:
                self.tell(f"moryflow: {name} came along and is a plugin too: moryflow plugin info {card.name}")
        return replace(package, digest=shown.digest)

    def _undo(self, before: set[str], name: str) -> None:
        fresh = set(installed_packages()) - before | {normal(name)}
        self.installer.uninstall(*sorted(fresh))


__all__ = ["Manager"]

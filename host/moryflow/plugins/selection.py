"""Which plugins to load, and which of two with one name."""

from __future__ import annotations

from moryflow.hooks.plugin_set import LoadFailure, PluginSettings

from .discovery import Candidate

TAKEN_HINT = "rename one of them, or disable the name"


class NotWanted(Exception):
    """A plugin is not to be loaded; of a built-in that may show only after its import, which tells its name."""


class Wanted:
    """The choice for one generation. Of candidates with one name the first is taken."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._taken: dict[str, Candidate] = {}

    def check(self, candidate: Candidate, name: str) -> None:
        """Take `candidate` as the plugin called `name`.

        :raises NotWanted: with the reason.
        :raises LoadFailure: another one has that name.
        """
        settings, third = self._settings, candidate.tier != "builtin"
        if name in settings.disabled:
            raise NotWanted("disabled")
        if third and settings.safe_mode:
            raise NotWanted("safe mode loads built-in plugins only")
        if third and settings.only is not None and name not in settings.only:
            raise NotWanted("not among the plugins asked for (MORYFLOW_PLUGINS)")
        other = self._taken.setdefault(name, candidate)
        if other is not candidate:
            raise LoadFailure(
                "discover",
                f"the name {name!r} is taken by the {other.tier} plugin {other.source}, which comes first",
                file=candidate.file,
                line=candidate.line,
                hint=TAKEN_HINT if other.tier != "builtin" else "give it another name",
            )

"""Watch for saves, build a new generation, and let the next turn use it."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moryflow_sdk import Event, MoryflowError

from moryflow.base.events import now
from moryflow.base.foreign_errors import contain_exit, describe, place_of, root_of

from .consent import Consents, consent_command, items
from .entry_points import CODE_FOLDERS, TEXT_FOLDERS, editable_code, linked_settings, search_path
from .file_states import HOME_FILES, FilesSeen, FileStates, file_states, is_source
from .reload_report import ReloadReport, compare

if TYPE_CHECKING:
    from moryflow.base.events import Bus
    from moryflow.config import Config
    from moryflow.hooks.plugin_set import PluginSet, RegisteredTool

    from .lifecycle import WatchRegistry
    from .preflight import PreflightStatus


log = logging.getLogger(__name__)
# Seconds without a change after which a save counts as finished: an editor saves in several changes.
SETTLE = 0.025
# Seconds after which a series of saves is taken although it has no pause.
MAX_DEBOUNCE = 0.2
# Seconds the system may take to report a change of a path that a plugin watches. Code files are checked directly.
WATCH_DELAY = 0.01
# Seconds without a change after a package was installed: its files come one by one.
INSTALLING = 0.5
# Seconds after which to check an installation again: files written last, into an existing folder, are not reported.
INSTALLED = 5.0
# The least seconds between two generations that plugins ask for.
ASKED_INTERVAL = 1.0
# Seconds after the end of a shell command in which a change may still come from the command.
_LINGER = 0.2


class ReloadedHost(Protocol):
    """What the reloader uses of a host; see :class:`moryflow.runtime.host.Host`."""

    home: Path
    watch_registry: WatchRegistry
    preflight: PreflightStatus
    bus: Bus
    before_turn: Callable[[], Awaitable[None]] | None
    development: tuple[Path, ...]
    config: Config
    plugin_set: PluginSet
    code_files: frozenset[str]
    seen: FilesSeen

    @property
    def tools(self) -> Mapping[str, RegisteredTool]: ...
    async def refresh(self, *, wait: float | None = None) -> bool: ...


class Reloader:
    """Reloads a host after files were saved, until it is closed. Running turns keep their generation.

    :param tell: called on the event loop after each reload that changed something.
    """

    def __init__(self, host: ReloadedHost, tell: Callable[[ReloadReport], None] | None = None) -> None:
        self._host = host
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._consents = Consents(host.home)
        self._known = host.code_files - self._consents.waiting().keys()
        self._watcher = FileWatcher(self._on_change)
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._due = asyncio.Event()
        self._saved = self._taken = 0
        self._states: FileStates = {}
        self._reload_done = asyncio.Event()
        """Set, and replaced by a new event, each time that saved changes were taken."""
        self._outside_code: list[Path] = []
        self._outside_settings: list[Path] = []
        self._sites: set[Path] = set()
        self._since = 0.0
        self._asked = 0.0
        self._task: asyncio.Task[None] | None = None
        self._plugin_paths: dict[Path, list[tuple[str, Callable[[Path], None]]]] = {}
        self._failed: set[Callable[[Path], None]] = set()
        """The functions of plugins that failed when they were called; they are not called again."""
        self._shells: set[str] = set()
        self._appeared: list[str] = []
        self._unsubscribe = _nothing
        self.asking: list[str] = []
        """What began to wait for the user's consent since this was last emptied: items that appeared in the home, and
        paths of code elsewhere that changed while a shell command ran."""

    def start(self) -> None:
        """Begin to watch files."""
        # Old modules are cycles, and the command line starts with a collector that would never find them.
        gc.set_threshold(*map(min, gc.get_threshold(), (700, 10, 10)))
        self._host.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        watch_registry, preflight = self._host.watch_registry, self._host.preflight
        watch_registry.changed = lambda: self._on_loop(self._rewatch)
        watch_registry.asked = lambda: self._on_loop(self._on_invalidate)
        preflight.tell = self._on_probe_end
        self._unsubscribe = self._host.bus.subscribe(self._note_shell)
        self._host.before_turn = self.settled
        self._sites = {Path(entry) for entry in search_path() if any(Path(entry).glob("*.dist-info"))}
        self._rewatch()
        self._states = file_states(self._host.home, self._outside)
        self._task = asyncio.create_task(self._run())
        for path in self._host.seen.changed(self._states):  # saved after the host had read it and before anyone watched
            self._on_saved(path)

    async def aclose(self) -> None:
        """Stop watching; cancel a reload that runs and wait until it has ended."""
        self._watcher.stop()
        self._unsubscribe()
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()
        watch_registry, preflight = self._host.watch_registry, self._host.preflight
        watch_registry.changed = watch_registry.asked = preflight.tell = _nothing
        self._host.before_turn = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._note_reloaded(self._saved)

    async def settled(self) -> None:
        """Wait until files saved before this call are in use or were refused; later saves are not waited for."""
        await asyncio.sleep(WATCH_DELAY)
        known, written = self._states, self._outside
        states = await asyncio.to_thread(file_states, self._host.home, written)
        if self._states is known:  # else a generation is being built from these files, and the loop below waits for it
            for path in {path for path, _ in states.items() ^ known.items()}:  # a busy system reports changes late
                self._on_saved(path)
        saved = self._saved
        while self._task is not None and not self._task.done() and self._taken < saved:
            await self._reload_done.wait()

    async def give(self, item: str) -> None:
        """Record that the user consented to a waiting item; return when it is loaded.

        :raises ConfigError: the consent cannot be written.
        """
        if Path(item).is_absolute():
            self._host.preflight.policy(self._host.home).doubted.discard(Path(item))
        else:
            self._consents.give(item)
        self._schedule_reload(SETTLE)
        await self.settled()

    # ---------------------------------------------------------------- changes

    def _on_change(self, path: Path) -> None:
        for folder, callbacks in self._plugin_paths.items():
            if path.is_relative_to(folder):
                for plugin, callback in callbacks:
                    if callback not in self._failed and (problem := _call(plugin, callback, path)):
                        self._failed.add(callback)
                        log.warning("%s", problem)
        self._on_saved(path)

    def _on_saved(self, path: Path) -> None:
        home = self._host.home
        if not path.is_relative_to(home):
            root = next((root for root in self._outside_code if path.is_relative_to(root)), None)
            if root is not None:
                self._hold_changed(root)
                self._schedule_reload(SETTLE)
            elif any(path.is_relative_to(place) for place in self._outside_settings):
                self._schedule_reload(SETTLE)
            elif path.parent in self._sites and path.name.endswith((".dist-info", ".egg-info", ".pth")):
                self._schedule_reload(INSTALLING)
                if self._later is not None:
                    self._later.cancel()
                self._later = self._loop.call_later(INSTALLED, self._schedule_reload, SETTLE)
            return
        parts = path.relative_to(home).parts
        if parts and parts[0] not in (*HOME_FILES, *CODE_FOLDERS, *TEXT_FOLDERS):
            return
        if parts and parts[0] in CODE_FOLDERS:
            self._hold_new()
        self._schedule_reload(SETTLE)

    def _note_shell(self, event: Event) -> None:
        if event.type == "tool.start" and event.data["state"] == "running":
            owned = self._host.tools.get(event.data["tool"])
            if owned is not None and owned.tool.domain == "bash":
                self._shells.add(event.data["call_id"])
        elif event.type == "tool.result" and event.data["call_id"] in self._shells:
            self._loop.call_later(_LINGER, self._shells.discard, event.data["call_id"])

    def _hold_changed(self, root: Path) -> None:
        """Make the code in `root` wait for consent if it changed during a shell command, which may have written it."""
        policy = self._host.preflight.policy(self._host.home)
        if self._shells and root not in policy.doubted:
            policy.doubted.add(root)
            self.asking.append(str(root))

    def _hold_new(self) -> None:
        """Make new files in the home's code folders wait for consent, whoever wrote them.

        A file that is removed and comes back under its name, as editors save it, is not new: it might as well have been edited.
        """
        there = items(self._host.home)
        new = there - self._known - self._consents.waiting().keys()
        held = self._consents.hold(*new)
        self.asking += held
        self._appeared += [item for item in held if item.startswith("tools/")]  # a waiting plugin has a load record instead
        self._known |= there - self._consents.waiting().keys()

    def _schedule_reload(self, quiet: float) -> None:
        """Begin a reload after `quiet` seconds without a change, or once a series of changes lasts too long."""
        moment = time.monotonic()
        self._saved += 1
        self._since = self._since or moment
        if self._timer is not None:
            if moment - self._since > MAX_DEBOUNCE and quiet == SETTLE:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(quiet, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._due.set()

    def _on_invalidate(self) -> None:
        """Begin a reload that a plugin asked for, at most once per :data:`ASKED_INTERVAL` seconds."""
        wait = max(SETTLE, self._asked + ASKED_INTERVAL - time.monotonic())
        self._asked = time.monotonic() + wait
        self._schedule_reload(wait)

    def _on_probe_end(self) -> None:
        self._on_loop(lambda: self._schedule_reload(SETTLE))

    def _on_loop(self, work: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    # ---------------------------------------------------------------- watching

    @property
    def _outside(self) -> list[Path]:
        """The files and folders that a generation is made from, and that are not in Moryflow's folder or a link in it."""
        return [*self._outside_code, *self._outside_settings]

    def _rewatch(self) -> None:
        home = self._host.home
        folders = {home: False, **{home / name: True for name in (*CODE_FOLDERS, *TEXT_FOLDERS)}}
        self._outside_code = editable_code(home, self._host.development)
        config = self._host.config
        files = [file.absolute() for file in config.files]
        self._outside_settings = [*files, *linked_settings(home, config.path)]
        for path in self._outside:
            folders.setdefault(path.parent, False)  # reports when another folder takes the place of this one, too
            if path.is_dir():
                folders[path] = True
        folders |= dict.fromkeys(self._sites - folders.keys(), False)
        self._plugin_paths = {}
        for (plugin, path), callback in list(self._host.watch_registry.watches.items()):
            self._plugin_paths.setdefault(path, []).append((plugin, callback))
            folder, deep = (path, True) if path.is_dir() else (path.parent, False)
            folders[folder] = folders.get(folder, False) or deep
        self._watcher.watch(folders)

    # ---------------------------------------------------------------- reloading

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            since, self._since = self._since, 0.0
            saved = self._saved
            try:
                report = await self._reloaded(since)
                if report.says_something:
                    self._publish(report)
            except (MoryflowError, OSError) as error:
                log.warning("%s", error)
            except Exception as error:  # whatever went wrong, the next save is tried again
                log.warning("the saved changes could not be loaded: %s: %s", type(error).__name__, error)
            finally:
                self._note_reloaded(saved)

    def _note_reloaded(self, saved: int) -> None:
        self._taken = max(self._taken, saved)
        self._reload_done.set()
        self._reload_done = asyncio.Event()

    async def _reloaded(self, since: float) -> ReloadReport:
        host = self._host
        before, config = host.plugin_set, host.config
        # Watch new folders from here on, before their files are read: earlier changes in them were not reported.
        self._rewatch()
        self._hold_new()
        self._states = file_states(host.home, self._outside)
        await host.refresh()
        ms = (time.monotonic() - since) * 1000 if since else 0.0
        self._rewatch()
        appeared, self._appeared = self._appeared, []
        waiting = {str(host.home / item): consent_command(item) for item in appeared if self._consents.is_waiting(item)}
        return compare(before, host.plugin_set, (config, host.config), ms, waiting)

    def _publish(self, report: ReloadReport) -> None:
        self._host.bus.publish(Event(type="reload", session="", ts=now(), data=report.as_event()))
        if self._tell is not None:
            self._tell(report)


def _nothing() -> None:
    """Do nothing: the callback for when nobody listens."""


def _call(plugin: str, callback: Callable[[Path], None], path: Path) -> str:
    try:
        callback(path)
        return ""
    except BaseException as error:  # the isolation boundary of a plugin's own function, which may call sys.exit
        text, file, line = describe(contain_exit(error), root_of(place_of(callback)[0]))
        place = f" ({file}:{line})" if file else ""
        return f"plugin {plugin} failed when it was told that {path} changed: {text}{place}; moryflow plugin info {plugin}"


class WatchedFolder(NamedTuple):
    """A folder to watch, and which one it is: another folder may come to its path, and the old watch hears nothing of that."""

    path: Path
    deep: bool
    device: int
    number: int


def _watched_folder(path: Path, deep: bool) -> WatchedFolder | None:
    with suppress(OSError):
        if path.is_dir():
            found = path.stat()
            return WatchedFolder(path, deep, found.st_dev, found.st_ino)
    return None


class FileWatcher:
    """Reports changes below given folders, once per change, whatever steps an editor takes to save.

    watchdog reports changes on its own threads; they are passed to the event loop one by one.

    :param heard: called on the loop with the path that changed.
    """

    def __init__(self, heard: Callable[[Path], None]) -> None:
        self._on_change = heard
        self._loop = asyncio.get_running_loop()
        self._observer: Any = None
        self._watched: dict[WatchedFolder, Any] = {}
        self._failed: set[WatchedFolder] = set()

    def watch(self, folders: dict[Path, bool]) -> None:
        """Watch exactly `folders` from now on: path → whether to watch everything below it. Missing folders are skipped."""
        wanted = {found for path, deep in folders.items() if (found := _watched_folder(path, deep))}
        for folder in self._watched.keys() - wanted:
            self._unschedule(self._watched.pop(folder))
        for folder in wanted - self._watched.keys():
            watch = self._schedule(folder)
            if watch is not None:
                self._watched[folder] = watch
        self._failed = wanted - self._watched.keys()

    def stop(self) -> None:
        observer, self._observer = self._observer, None
        self._watched.clear()
        if observer is not None:
            observer.stop()
            observer.join(timeout=1.0)

    def _schedule(self, folder: WatchedFolder) -> Any:
        from watchdog import events

        kinds = (
            events.FileCreatedEvent, events.FileModifiedEvent, events.FileMovedEvent, events.FileDeletedEvent,
            events.FileClosedEvent, events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent,
        )  # fmt: skip
        try:
            handler, place = _handler(self._tell), str(folder.path)
            return self._started().schedule(handler, place, recursive=folder.deep, event_filter=list(kinds))
        except OSError as error:  # a limit of the system, or the folder was just removed
            if folder not in self._failed:
                text = "%s is not watched: %s; changes there are taken at the next start"
                log.warning(text, folder.path, error.strerror or error)
            return None

    def _started(self) -> Any:
        if self._observer is None:
            from watchdog.observers import Observer

            logging.getLogger("watchdog").setLevel(logging.CRITICAL)  # a watch that ends while it is read is called an error
            self._observer = Observer()
            self._observer.start()
        return self._observer

    def _unschedule(self, watch: Any) -> None:
        if self._observer is not None:
            try:
                self._observer.unschedule(watch)
            except (KeyError, OSError):  # its folder is gone, and its thread with it
                return

    def _tell(self, path: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_change, Path(path))


def _handler(tell: Callable[[str], None]) -> Any:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler

    class EventHandler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            for path in (event.src_path, getattr(event, "dest_path", "")):
                if path and (event.is_directory or is_source(str(path))):
                    tell(str(path))

    return EventHandler()

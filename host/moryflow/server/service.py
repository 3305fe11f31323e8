"""The server's state while it runs: the host, the sessions it works in, the event stream, one-time codes, running turns; and
its files in the home folder: the token, the address, and a lock that allows only one server.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import ConfigError, Event, MoryflowError
from moryflow_sdk.support.own_files import try_lock
from moryflow_sdk.support.processes import using_environment
from moryflow_sdk.support.secrets import know_environment

from moryflow.base.events import now
from moryflow.base.paths import make_folder, write_private
from moryflow.kernel.outcome import RunOptions, error_json
from moryflow.runtime.host import Host
from moryflow.runtime.selection import NewSession
from moryflow.runtime.session import Session, attachments_payload
from moryflow.runtime.subagents import whole_answer
from moryflow.runtime.turn_result import AnswerSchema, TurnResult, stored_result

from .events import EventFollower
from .metrics import Counters, Family
from .replies import RequestError
from .tokens import Tokens

if TYPE_CHECKING:
    from .owners import Owners

# Names below the home folder. The token outlives the server, so that browser tabs and programs can reconnect.
FOLDER, TOKEN, TOKENS, RUNNING = "server", "token", "tokens", "running.json"


# How long a one-time code is valid.
CODE_SECONDS = 600.0
# How many idempotency keys are remembered.
MAX_KEYS = 10_000
# How many results of turns are kept for later requests.
MAX_RESULTS = 200


class Codes:
    """One-time codes, which a link contains in place of a token."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}

    def new(self) -> str:
        """Return a code that can be exchanged once, within ten minutes."""
        code = secrets.token_urlsafe(24)
        self._open[code] = time.monotonic() + CODE_SECONDS
        return code

    def use(self, code: str) -> None:
        """Use up `code`, which is invalid from then on.

        :raises RequestError: the code is unknown, was used already, or is too old.
        """
        known = next((one for one in self._open if hmac.compare_digest(one.encode(), code.encode(errors="replace"))), None)
        if known is None or self._open.pop(known) < time.monotonic():
            raise RequestError(401, "code_used", "this link was used already, or is too old", "moryflow serve --link")


class PromptRequest(NamedTuple):
    """A client's request for a turn.

    :ivar prompt: the arguments of :meth:`Session.prompt`; ``None`` continues what an earlier turn left open.
    :ivar options: a second prompt with the same ``key`` begins no turn and gets the id of the first.
    :ivar schema: the schema of the answer; the model is told, and asked again if its answer does not fit.
    :ivar leave: end the turn when its agent is done, without waiting for sub-agents in the background.
    :ivar agent, model: the agent and the model from this turn on; ``None`` changes nothing.
    """

    prompt: Mapping[str, Any] | None
    options: RunOptions
    queue: bool = False
    schema: AnswerSchema | None = None
    leave: bool = False
    agent: str | None = None
    model: str | None = None


class Service:
    """One host with its running turns and its event stream."""

    def __init__(self, host: Host, vault: Path, address: str, new: NewSession, most_streams: int) -> None:
        self.host, self.vault, self.address, self.new, self.most_streams = host, vault, address, new, most_streams
        self.codes = Codes()
        self.tokens = tokens_of(host.home)
        self.owners: Owners | None = None
        """Who may do what, if the store is shared."""
        self.events = EventFollower(host.store, host.bus)
        self.started = now()
        self.counters = Counters(host.store, self.started)
        self.stopping = False
        self._sessions: dict[str, Session] = {}
        self._prompts = Counter[str]()
        self._ahead = Counter[str]()  # those whose own turn has not ended; the others wait for sub-agents or corrections
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keys: dict[tuple[str, str], asyncio.Future[str]] = {}
        self._turns: dict[tuple[str, str], asyncio.Task[TurnResult]] = {}

    @property
    def has_home(self) -> bool:
        """Whether the home folder is still the one this server started in; otherwise the store would create a new one."""
        return (self.host.home / FOLDER / RUNNING).exists()

    def working_session(self, session: str) -> Session | None:
        """Return the session if this server is working in it."""
        return self._sessions.get(session)

    @property
    def turns(self) -> int:
        """How many turns run here."""
        return self._prompts.total()

    async def more_metrics(self) -> Sequence[Family]:
        """Return figures that only a kind of service has, such as the depth of a queue."""
        return ()

    async def session(self, name: str) -> Session:
        """Return the session called `name`: the one that this server works in, else the stored one.

        :raises StoreError: there is no such session.
        """
        row = await self.host.store.session(name)
        return self._sessions.get(row.id) or await self.host.resume(row.vault, row.id)

    @asynccontextmanager
    async def opened(self, name: str) -> AsyncIterator[Session]:
        """Open a session for a block; drop it afterwards unless a turn runs in it.

        :raises StoreError: there is no such session.
        """
        session = await self.session(name)
        try:
            yield session
        finally:
            self.let_go(session)

    def let_go(self, session: Session) -> None:
        """Drop a session unless a turn or a sub-agent runs in it."""
        if session.id not in self._sessions and not session.children.running:
            self.host.forget(session)

    async def begin(self, session: Session, wanted: PromptRequest, environment: Mapping[str, str] | None = None) -> str:
        """Begin a turn and return its id once its prompt is stored.

        :param environment: variables for its tools and those of its sub-agents, in place of this process's own.
        :raises SessionBusy: the session is working on another prompt, and this one does not wait.
        :raises RequestError: the server is stopping, or the environment is not accepted.
        """
        if self.stopping:
            raise RequestError(503, "stopping", "the server is being stopped", "try again when it is back")
        if environment is not None:
            self._check(environment)
        place = (session.id, wanted.options.key)
        if wanted.options.key and place not in self._keys and (turn := await self._turn_of(*place)):
            return turn
        begun = self._keys.get(place)  # read after the await: the same prompt may have come twice at once
        if begun is None:
            with using_environment(environment):  # the task created here inherits it
                begun = self._start_turn(session, wanted)
        return await asyncio.shield(begun)

    def _check(self, environment: Mapping[str, str]) -> None:
        """Refuse invalid variables, and all variables on a remote server; register the secrets in them to hide them."""
        if self.host.profile == "remote":
            raise RequestError(403, "denied", "a remote server takes no environment", "leave environment out")
        if any("\0" in name + value or "=" in name or not name for name, value in environment.items()):
            raise RequestError(422, "invalid", "these environment variables are invalid", "send {NAME: value}, without NUL")
        know_environment(environment)

    async def _turn_of(self, session: str, key: str) -> str:
        events = await self.host.store.events(session, types=("turn.start",))
        return next((event.turn or "" for event in events if event.data.get("key") == key), "")

    async def result_of(self, session: str, turn: str) -> TurnResult:
        """Return the result of a turn; wait for a turn that began here, and for its sub-agents in the background.

        :raises RequestError: there is no such turn, it runs in another process, or it was interrupted with the server.
        """
        task = self._turns.get((session, turn))
        if task is None:
            return await self._stored_result(session, turn)
        await asyncio.wait((task,))
        if task.cancelled():
            raise RequestError(
                503, "stopping", "the turn was interrupted when the server stopped", f"POST /sessions/{session}/resume"
            )
        return task.result()

    async def result_document(self, session: str, turn: str) -> Mapping[str, Any]:
        """Return the result of a turn as ``run --output json`` prints it; see :meth:`result_of`."""
        return (await self.result_of(session, turn)).as_json()

    async def cancel(self, session: Session) -> tuple[bool, int]:
        """Stop the turn that runs in a session; return whether one did here, and how many sub-agents in the background.

        :raises RequestError: the turn runs in another process.
        """
        running, below = self.working_session(session.id) is not None, len(session.children.running)
        if running or below:
            session.cancel()
        elif self.host.store.seems_held(session.id):
            raise RequestError(409, "elsewhere", "the turn runs in another process", "stop it there")
        return running, below

    async def _stored_result(self, session: str, turn: str) -> TurnResult:
        store = self.host.store
        run = next((run for run in await store.runs(session) if run.id == turn and not run.is_compaction), None)
        if run is None:
            raise RequestError(404, "not_found", f"there is no turn {turn}", f"GET /sessions/{session}")
        if run.end_reason is None and store.seems_held(session):
            raise RequestError(409, "elsewhere", "the turn runs in another process", f"GET /sessions/{session}/events")
        return await stored_result(store, run)

    def _start_turn(self, session: Session, wanted: PromptRequest) -> asyncio.Future[str]:
        options, schema, key = wanted.options, wanted.schema, wanted.options.key
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        begun.add_done_callback(lambda done: done.cancelled() or done.exception())  # the client that awaits it may be gone
        if key:
            self._keys[session.id, key] = begun
            while len(self._keys) > MAX_KEYS:
                del self._keys[next(iter(self._keys))]

        def watch(event: Event) -> None:
            if event.type == "turn.start" and event.session == session.id and not begun.done():
                begun.set_result(event.turn or "")

        async def work() -> TurnResult:
            unsubscribe = session.subscribe(watch)
            try:
                whole = await self._turn(session, wanted)
                if schema is not None or not wanted.leave:
                    whole = await whole_answer(session, whole, options._replace(key="", turn=""), schema)
            except MoryflowError as error:
                self._publish(session, begun, "turn.failed", error_json(error))
                raise
            else:
                self._publish(session, begun, "result", whole.as_json())
                return whole
            finally:
                unsubscribe()

        self._sessions[session.id] = session
        self._prompts[session.id] += 1
        task = self._spawn(work())

        begun.add_done_callback(lambda done: self._remember(session.id, done, task))
        task.add_done_callback(lambda done: self._settle(session, key, begun, done))
        return begun

    async def _turn(self, session: Session, wanted: PromptRequest) -> TurnResult:
        self._ahead[session.id] += 1
        try:
            await self._prepare(session, wanted)
            if wanted.prompt is None:
                return await session.resume(wanted.options)
            return await session.prompt(**wanted.prompt, options=wanted.options, queue=wanted.queue)
        finally:
            self._ahead[session.id] -= 1
            if not self._ahead[session.id]:
                del self._ahead[session.id]

    async def _prepare(self, session: Session, wanted: PromptRequest) -> None:
        """Change to the requested agent and model. A refused prompt changes nothing, so a busy session is left as it is."""
        self.check(session, wanted)
        if wanted.queue or self._ahead[session.id] == 1:
            if wanted.agent is not None:
                await session.set_agent(wanted.agent)
            if wanted.model is not None:
                await session.set_model(wanted.model)

    def check(self, session: Session, wanted: PromptRequest) -> None:
        """Refuse a prompt that could not run.

        :raises ConfigError: an attachment, an option, the agent or the model is wrong.
        """
        if wanted.prompt is not None:
            attachments_payload(wanted.prompt["files"], wanted.prompt["images"])
        wanted.options.check()
        session.check_choice(wanted.agent, wanted.model)

    def _settle(self, session: Session, key: str, begun: asyncio.Future[str], done: asyncio.Task[TurnResult]) -> None:
        """Drop the session if its last prompt has ended, and report a turn that failed before it began to its caller."""
        self._prompts[session.id] -= 1
        if not self._prompts[session.id]:
            del self._prompts[session.id], self._sessions[session.id]
            self.host.approvals.somebody_is_there(session.id)
            self.let_go(session)
            if session.children.running:
                self._spawn(self._drop_after_children(session))
        error = None if done.cancelled() else done.exception()
        if error is not None and not begun.done():
            self._keys.pop((session.id, key), None)
            begun.set_exception(error)
        elif not begun.done():
            begun.set_exception(RequestError(503, "stopping", "the turn was stopped before it began"))
        elif error is not None and not isinstance(error, MoryflowError):
            asyncio.get_running_loop().call_exception_handler({"message": "a turn failed", "exception": error})

    async def _drop_after_children(self, session: Session) -> None:
        await session.children.settled()
        self.let_go(session)

    def _remember(self, session: str, begun: asyncio.Future[str], task: asyncio.Task[TurnResult]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            self._turns[session, begun.result()] = task
            for key in [*self._turns][:-MAX_RESULTS]:
                del self._turns[key]

    def _publish(self, session: Session, begun: asyncio.Future[str], kind: str, document: Mapping[str, Any]) -> None:
        """Publish how a turn ended, for clients that follow the event stream instead of requesting the result."""
        if begun.done() and not begun.cancelled() and begun.exception() is None:
            data = {name: value for name, value in document.items() if name not in ("v", "type", "ts", "session")}
            row = session.row
            self.host.bus.publish(Event(type=kind, session=row.id, parent=row.parent, turn=begun.result(), ts=now(), data=data))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Take no more prompts, and interrupt the running turns."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def token_of(home: Path) -> str:
    """Return the token of this home folder; create it when it is first needed.

    :raises OSError: the token cannot be written.
    """
    file = home / FOLDER / TOKEN
    with suppress(OSError):
        if len(found := file.read_text(encoding="ascii").strip()) >= 32:  # 256 bits are 43 characters
            return found
    token = secrets.token_urlsafe(32)
    try:
        write_private(file, token)
    except OSError as error:
        raise OSError(error.errno, f"the token of the server cannot be written: {error.strerror}", str(file)) from None
    return token


def tokens_of(home: Path) -> Tokens:
    """Return the tokens of this home folder beside the server's own."""
    return Tokens(home / FOLDER / TOKENS)


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the lock that allows one server for this home folder.

    :raises ConfigError: a server is running already; the message has its address.
    """
    make_folder(home / FOLDER)
    descriptor = os.open(home / FOLDER / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor):
            time.sleep(0.05)  # a client may just be looking whether it is locked
            if not try_lock(descriptor):
                at = running(home).get("url", "")
                said = f"a server of this home runs already{f' at {at}' if at else ''}"
                raise ConfigError(said, where=str(home), next_step="moryflow serve --link prints a link to it")
        yield
    finally:
        os.close(descriptor)


def running(home: Path) -> dict[str, Any]:
    """Return ``url``, ``pid`` and ``version`` of the server of this home folder, or an empty dict if none was started."""
    with suppress(OSError, ValueError):
        found = json.loads((home / FOLDER / RUNNING).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}

"""What is asked of sessions that workers run: prompts, answers, stops; and who works.

A session's `state` is ``work`` while something is to be done in it, ``waiting`` while only an answer is, else ``idle``. Whoever
asks raises `asked` in the same transaction; who has nothing left to do goes idle only if `asked` is what it was when it
looked, so nothing that is asked meanwhile is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from .database import PostgresConnection, PostgresDatabase
from .wakes import Wakes

_ASK = "UPDATE sessions SET asked = asked + 1, asked_at = clock_timestamp(), state = 'work' WHERE id = ?"
_NEXT = """SELECT turn, body FROM prompts WHERE session = ? AND ended IS NULL ORDER BY number LIMIT 1"""
# The lease ends with it, in one statement: nobody else can see the session idle and held, or free and at work.
_SETTLE = """UPDATE sessions SET state = ?, until = NULL, worker = NULL
    WHERE id = ? AND epoch = ? AND asked = ? RETURNING 1"""
_HAND_OVER = """UPDATE sessions SET until = NULL, worker = NULL, asked = asked + 1, asked_at = clock_timestamp()
    WHERE id = ? AND epoch = ?"""
# At once when a lease has run out; a session that nobody has taken for long was perhaps not told to the queue.
_EXPIRED = """UPDATE sessions SET asked = asked + 1, asked_at = clock_timestamp() WHERE state = 'work' AND id IN (
    SELECT id FROM sessions WHERE state = 'work' AND (until IS NULL OR until < clock_timestamp())
        AND (asked_at < until OR asked_at < clock_timestamp() - interval '10 s') LIMIT 100 FOR UPDATE SKIP LOCKED)
    """
_WAKE_ALL = """UPDATE sessions SET asked = asked + 1, asked_at = clock_timestamp()
    WHERE state = 'work' AND (until IS NULL OR until < clock_timestamp())"""
_SEEN = """INSERT INTO workers (name, queues, concurrency, running, plugin_set, lost) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET running = excluded.running, plugin_set = excluded.plugin_set, lost = excluded.lost,
    seen = clock_timestamp() RETURNING drain"""
_WORKERS = """SELECT name, queues, concurrency, running, plugin_set, lost, drain, started,
    extract(epoch FROM clock_timestamp() - seen)::float FROM workers WHERE seen > clock_timestamp() - interval '1 minute'
    ORDER BY started"""
_DEPTH = """SELECT s.queue, count(*), coalesce(max(extract(epoch FROM clock_timestamp() - p.created)), 0)::float
    FROM prompts AS p JOIN sessions AS s ON s.id = p.session WHERE p.state = 'waiting' GROUP BY s.queue"""


class WaitingPrompt(NamedTuple):
    """A prompt that has not ended: the id of its turn, and what the turn is to do.

    :ivar stop: whether the user wants it stopped.
    """

    turn: str
    body: Mapping[str, Any]
    stop: bool


class WorkerRow(NamedTuple):
    """A worker as it last reported.

    :ivar lost: how many sessions others have taken over from it.
    :ivar seen: how many seconds ago it reported.
    """

    name: str
    queues: list[str]
    concurrency: int
    running: int
    plugin_set: str
    lost: int
    drain: bool = False
    started: datetime | None = None
    seen: float = 0.0


class Schedule(NamedTuple):
    """A prompt that runs at times, each time in a new session of the folder `vault`."""

    id: str
    cron: str
    prompt: str
    vault: str
    agent: str | None
    model: str | None
    owner: str
    queue: str
    next: datetime
    last: datetime | None = None
    last_session: str | None = None


class Inbox:
    """The prompts of all sessions of one PostgreSQL store."""

    def __init__(self, database: PostgresDatabase, wakes: Wakes) -> None:
        self._database = database
        self.wakes = wakes

    async def add(
        self,
        session: str,
        turn: str,
        body: Mapping[str, Any],
        *,
        key: str = "",
        owner: str = "",
        line_up: bool = True,
        queue: str = "",
    ) -> str:
        """Store a prompt and wake a worker, in one transaction; return the id of its turn.

        :param key: a second prompt with the same key is not stored; the first one's turn is returned.
        :param queue: the workers that take the session from now on; empty: those that did before.
        :param line_up: if another prompt of the session has not ended, wait behind it; else nothing is stored.
        :returns: the id of the turn, or ``""`` if the prompt would have to wait.
        """

        def work(to: PostgresConnection) -> str:
            to.execute("SELECT 1 FROM sessions WHERE id = ? FOR UPDATE", (session,))
            statement = "SELECT turn FROM prompts WHERE session = ? AND key = ? AND key <> ''"
            if found := to.execute(statement, (session, key)).fetchone():
                return str(found[0])
            if not line_up and to.execute(_NEXT, (session,)).fetchone():
                return ""
            statement = "INSERT INTO prompts (session, turn, key, owner, body) VALUES (?, ?, ?, ?, ?)"
            to.execute(statement, (session, turn, key, owner, json.dumps(body, ensure_ascii=False)))
            if queue:
                to.execute("UPDATE sessions SET queue = ? WHERE id = ?", (queue, session))
            to.execute(_ASK, (session,))
            return turn

        return await self._database.write(work)

    async def next(self, session: str) -> tuple[int, WaitingPrompt | None]:
        """Return `asked`, and the session's first prompt that has not ended."""

        def work(db: PostgresConnection) -> tuple[int, WaitingPrompt | None]:
            asked, stop = db.execute("SELECT asked, stop FROM sessions WHERE id = ?", (session,)).fetchone()  # type: ignore[misc]
            found = db.execute(_NEXT, (session,)).fetchone()
            return asked, found and WaitingPrompt(found[0], json.loads(found[1]), stop)

        return await self._database.read(work)

    async def begun(self, turn: str) -> None:
        """Record that a prompt waits no longer."""
        await self._database.statement(lambda to: to.execute("UPDATE prompts SET state = 'running' WHERE turn = ?", (turn,)))

    async def end(self, session: str, turn: str, state: str, result: Mapping[str, Any]) -> None:
        """Record how a prompt ended, as ``done`` with the result or ``failed`` with the error."""

        def work(to: PostgresConnection) -> None:
            statement = "UPDATE prompts SET state = ?, result = ?, ended = clock_timestamp() WHERE turn = ? AND ended IS NULL"
            to.execute(statement, (state, json.dumps(result, ensure_ascii=False), turn))
            to.execute("UPDATE sessions SET stop = false WHERE id = ? AND stop", (session,))

        await self._database.write(work)

    async def ends(self, turns: Collection[str]) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the state and the result of those of `turns` that have ended."""
        statement = "SELECT turn, state, result FROM prompts WHERE turn = ANY(?) AND ended IS NOT NULL"
        rows = await self._database.statement(lambda db: db.execute(statement, (list(turns),)).fetchall())
        return {turn: (state, json.loads(result)) for turn, state, result in rows}

    async def known(self, turn: str) -> bool:
        """Return whether there is a prompt of this turn."""
        statement = "SELECT 1 FROM prompts WHERE turn = ?"
        return bool(await self._database.statement(lambda db: db.execute(statement, (turn,)).fetchone()))

    async def settle(self, session: str, epoch: int, asked: int, state: str) -> bool:
        """End this worker's hold if nothing was asked since `asked` was read; return whether it did."""
        values = (state, session, epoch, asked)
        return bool(await self._database.statement(lambda to: to.execute(_SETTLE, values).fetchone()))

    async def holds(self, session: str, epoch: int) -> bool:
        """Return whether this hold of a session is still the newest."""
        statement = "SELECT 1 FROM sessions WHERE id = ? AND epoch = ?"
        return bool(await self._database.statement(lambda db: db.execute(statement, (session, epoch)).fetchone()))

    async def hand_over(self, session: str, epoch: int) -> None:
        """End this worker's hold although there is something to do, and wake another one."""
        await self._database.statement(lambda to: to.execute(_HAND_OVER, (session, epoch)))

    async def ask_to_stop(self, session: str) -> bool:
        """Ask whoever works in a session to stop its turn; return whether there is a turn to stop."""

        def work(to: PostgresConnection) -> bool:
            if not to.execute(_NEXT, (session,)).fetchone():
                return False
            to.execute("UPDATE sessions SET stop = true WHERE id = ?", (session,))
            to.execute(_ASK, (session,))
            return True

        return await self._database.write(work)

    async def to_stop(self, sessions: Collection[str]) -> list[str]:
        """Return those of `sessions` whose turn is to be stopped."""
        statement = "SELECT id FROM sessions WHERE id = ANY(?) AND stop"
        rows = await self._database.statement(lambda db: db.execute(statement, (list(sessions),)).fetchall())
        return [id for (id,) in rows]

    async def wake_expired(self) -> None:
        """Wake workers for sessions in which nobody works although something is to be done."""
        await self._database.statement(lambda to: to.execute(_EXPIRED))

    async def wake_all(self) -> None:
        """Wake workers for all sessions in which something is to be done: what was asked before there was a queue too."""
        await self._database.statement(lambda to: to.execute(_WAKE_ALL))

    async def report(self, worker: WorkerRow) -> bool:
        """Store what a worker does; return whether it was asked to drain."""
        values = (worker.name, worker.queues, worker.concurrency, worker.running, worker.plugin_set, worker.lost)
        return bool((await self._database.statement(lambda to: to.execute(_SEEN, values).fetchone()))[0])  # type: ignore[index]

    async def leave(self, name: str) -> None:
        await self._database.statement(lambda to: to.execute("DELETE FROM workers WHERE name = ?", (name,)))

    async def drain(self, names: Collection[str]) -> int:
        """Ask workers to end after their turns, all if none is named; return how many were asked."""
        statement = "UPDATE workers SET drain = true WHERE (cardinality(?::text[]) = 0 OR name = ANY(?)) RETURNING 1"
        values = (list(names), list(names))
        return len(await self._database.statement(lambda to: to.execute(statement, values).fetchall()))

    async def workers(self) -> list[WorkerRow]:
        """Return the workers that reported within the last minute."""
        return [WorkerRow(*row) for row in await self._database.statement(lambda db: db.execute(_WORKERS).fetchall())]

    async def depth(self) -> dict[str, tuple[int, float]]:
        """Return by queue how many prompts wait, and for how many seconds the oldest has."""
        rows = await self._database.statement(lambda db: db.execute(_DEPTH).fetchall())
        return {queue: (count, oldest) for queue, count, oldest in rows}

    async def set_queue(self, session: str, queue: str, owner: str = "") -> None:
        """Say which workers take a session, and whose it is."""
        statement = "UPDATE sessions SET queue = ?, owner = ? WHERE id = ?"
        await self._database.statement(lambda to: to.execute(statement, (queue, owner, session)))

    async def add_schedule(self, schedule: Schedule) -> None:
        columns = ", ".join(Schedule._fields)
        statement = f"INSERT INTO schedules ({columns}) VALUES ({', '.join('?' * len(schedule))})"
        await self._database.statement(lambda to: to.execute(statement, schedule))

    async def schedules(self) -> list[Schedule]:
        """Return all schedules, the oldest first."""
        statement = f"SELECT {', '.join(Schedule._fields)} FROM schedules ORDER BY created"
        return [Schedule(*row) for row in await self._database.statement(lambda db: db.execute(statement).fetchall())]

    async def remove_schedule(self, id: str) -> bool:
        """Remove a schedule; return whether there was one. Its sessions stay."""
        statement = "DELETE FROM schedules WHERE id = ? RETURNING 1"
        return bool(await self._database.statement(lambda to: to.execute(statement, (id,)).fetchone()))

    async def due(self, next_time: Callable[[str], datetime]) -> list[Schedule]:
        """Return the schedules that are due, each to one caller only, and set their next time."""
        fields = ", ".join(Schedule._fields)

        def work(to: PostgresConnection) -> list[Schedule]:
            statement = f"SELECT {fields} FROM schedules WHERE next <= clock_timestamp() FOR UPDATE SKIP LOCKED"
            found = [Schedule(*row) for row in to.execute(statement).fetchall()]
            for one in found:
                values = (next_time(one.cron), one.id)
                to.execute("UPDATE schedules SET next = ?, last = clock_timestamp() WHERE id = ?", values)
            return found

        return await self._database.write(work)

    async def began(self, schedule: str, session: str) -> None:
        statement = "UPDATE schedules SET last_session = ? WHERE id = ?"
        await self._database.statement(lambda to: to.execute(statement, (session, schedule)))

    async def add_user(self, name: str, hashed: str) -> bool:
        """Store a user with the hash of their token, in place of an older one; return whether there was one."""
        statement = """INSERT INTO users (name, hash) VALUES (?, ?) ON CONFLICT (name)
            DO UPDATE SET hash = excluded.hash, created = clock_timestamp() RETURNING xmax <> 0"""
        return bool((await self._database.statement(lambda to: to.execute(statement, (name, hashed)).fetchone()))[0])  # type: ignore[index]

    async def users(self) -> list[tuple[str, datetime, int]]:
        """Return each user with when their token was made, and how many sessions are theirs."""
        statement = """SELECT name, created, (SELECT count(*) FROM sessions WHERE owner = name) FROM users ORDER BY name"""
        return [tuple(row) for row in await self._database.statement(lambda db: db.execute(statement).fetchall())]

    async def revoke(self, name: str) -> bool:
        """Remove a user's token; their sessions stay. Return whether there was one."""
        statement = "DELETE FROM users WHERE name = ? RETURNING 1"
        return bool(await self._database.statement(lambda to: to.execute(statement, (name,)).fetchone()))

    async def user_of(self, hashed: str) -> str | None:
        """Return the user whose token has this hash."""
        statement = "SELECT name FROM users WHERE hash = ?"
        found = await self._database.statement(lambda db: db.execute(statement, (hashed,)).fetchone())
        return found[0] if found else None

    async def owners(self, sessions: Collection[str]) -> dict[str, str]:
        """Return whose each of `sessions` is."""
        statement = "SELECT id, owner FROM sessions WHERE id = ANY(?)"
        return dict(await self._database.statement(lambda db: db.execute(statement, (list(sessions),)).fetchall()))

    async def set_owner(self, session: str, owner: str) -> None:
        """Say whose a session is, with those of its sub-agents."""
        statement = """WITH RECURSIVE family AS (SELECT id FROM sessions WHERE id = ?
            UNION SELECT s.id FROM sessions AS s JOIN family ON s.parent = family.id)
            UPDATE sessions SET owner = ? WHERE id IN (SELECT id FROM family)"""
        await self._database.statement(lambda to: to.execute(statement, (session, owner)))

    async def sessions_of(self, owner: str, limit: int) -> list[str]:
        """Return the ids of a user's main sessions, the last used first."""
        statement = "SELECT id FROM sessions WHERE owner = ? AND owner <> '' AND purpose = 'main' ORDER BY used DESC LIMIT ?"
        rows = await self._database.statement(lambda db: db.execute(statement, (owner, limit)).fetchall())
        return [id for (id,) in rows]

    async def set_limit(self, provider: str, requests: float | None, tokens: float | None) -> None:
        """Say what a provider may be asked for in a minute by all workers together; both ``None``: as much as anybody likes."""
        if requests is None and tokens is None:
            statement, values = "DELETE FROM limits WHERE provider = ?", [provider]
        else:
            statement = """INSERT INTO limits (provider, requests, tokens, requests_left, tokens_left) VALUES (?, ?, ?, ?, ?)
                ON CONFLICT (provider) DO UPDATE SET requests = excluded.requests, tokens = excluded.tokens,
                requests_left = excluded.requests_left, tokens_left = excluded.tokens_left, filled = clock_timestamp()"""
            values = [provider, requests, tokens, requests, tokens]
        await self._database.statement(lambda to: to.execute(statement, values))

    async def limits(self) -> list[tuple[str, float | None, float | None]]:
        """Return each limited provider with its requests and tokens a minute."""
        statement = "SELECT provider, requests, tokens FROM limits ORDER BY provider"
        return [tuple(row) for row in await self._database.statement(lambda db: db.execute(statement).fetchall())]

    async def take(self, provider: str) -> float:
        """Take one request from a provider's limit; return 0, or the seconds to wait before asking again."""
        statement = "SELECT take_request(?)"
        return (await self._database.statement(lambda to: to.execute(statement, (provider,)).fetchone()))[0]  # type: ignore[index]

    async def spend(self, provider: str, tokens: int) -> None:
        """Count the tokens of an answer; who spent too many at once pays by waiting."""
        statement = "UPDATE limits SET tokens_left = tokens_left - ? WHERE provider = ? AND tokens IS NOT NULL"
        await self._database.statement(lambda to: to.execute(statement, (tokens, provider)))

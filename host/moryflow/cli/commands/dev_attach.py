"""``moryflow dev --attach``: follow a session that another process runs. It reads the store and holds nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

import click
from moryflow_sdk import ConfigError, Event

from moryflow.base.paths import home_folder
from moryflow.cli.options import Flags
from moryflow.cli.terminal.text import as_json, first_line, plain
from moryflow.store import Node, Store, open_store

_LOOK = 0.15
"""Seconds between two looks at the store."""


async def follow(flags: Flags, name: str) -> int:
    """Print what happens in a session as it is committed, until somebody ends it.

    :param name: its id or the beginning of it; empty for the one that was used last.
    :raises ConfigError: there is none.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    store = open_store(home_folder(None, os.environ))
    try:
        session = await _session(store, name)
        reader = _Reader(store, session, flags.as_json)
        await reader.skip()
        if not flags.quiet:
            click.echo(plain(f"following {session}; Ctrl-C ends"), err=True)
        while not stopped.is_set():
            await reader.look()
            try:
                await asyncio.wait_for(stopped.wait(), _LOOK)
            except TimeoutError:
                continue
    finally:
        store.close()
    return 0


async def _session(store: Store, name: str) -> str:
    if name:
        return (await store.session(name)).id
    found = await store.sessions(1)
    if not found:
        raise ConfigError("there is no session to follow", next_step='moryflow run "your question", in another terminal')
    return found[0].id


class _Reader:
    """Reads what was committed since it last looked."""

    def __init__(self, store: Store, session: str, as_lines: bool) -> None:
        self._store, self._session, self._as_lines = store, session, as_lines
        self._after = 0
        self._shown: set[str] = set()

    async def skip(self) -> None:
        """Begin with what happens from now on, or with the turn that runs now."""
        events = await self._store.events(self._session)
        running = [run.id for run in await self._store.runs(self._session) if run.state == "running"]
        begins = next((event.seq for event in events if event.turn in running and event.seq is not None), None)
        last = events[-1].seq if events and events[-1].seq is not None else 0
        self._after = last if begins is None else begins - 1
        known = [node for node in await self._store.nodes(self._session) if begins is None]
        self._shown = {node.id for node in known}

    async def look(self) -> None:
        """Print what is new."""
        events = await self._store.events(self._session, self._after)
        if not events:
            return
        nodes = {node.id: node for node in await self._store.nodes(self._session)}
        for event in events:
            self._after = event.seq or self._after
            if self._as_lines:
                click.echo(as_json(event.as_json(), indent=None))
                continue
            for text in self._lines(event, nodes):
                click.echo(plain(text))

    def _lines(self, event: Event, nodes: Mapping[str, Node]) -> list[str]:
        data: Mapping[str, Any] = event.data
        match event.type:
            case "step.start":
                return [f"> {first_line(node.payload['text'])}" for node in self._new(nodes, "user")]
            case "step.finish":
                return [node.payload["text"] for node in self._new(nodes, "assistant") if node.payload["text"]]
            case "tool.start" if data["state"] == "running":
                return [f"→ {data['tool']} {first_line(_args(data), 120)}"]
            case "tool.result":
                return [
                    f"← {data['tool']} {data['status']}, {data.get('ms', 0)} ms: {first_line(str(data.get('output', '')), 120)}"
                ]
            case "permission.asked":
                return [
                    f"? {data.get('tool', data['domain'])}: {data['reason']} (moryflow approval reply {data['approval_id']})"
                ]
            case "permission.replied":
                return [f"! {data['reply']}, by {data['by']}"]
            case "plugin.failed" | "plugin.quarantined":
                return [f"plugin {data['plugin']}: {data.get('error') or data.get('reason')}"]
            case "turn.finish":
                return [f"the turn ended: {data['end_reason']}"]
            case _:
                return []

    def _new(self, nodes: Mapping[str, Node], kind: str) -> list[Node]:
        found = [node for node in nodes.values() if node.kind == kind and node.id not in self._shown]
        self._shown |= {node.id for node in found}
        return found


def _args(data: Mapping[str, Any]) -> str:
    return json.dumps(data.get("args"), ensure_ascii=False, default=str)

"""A store on a server of this process's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from moryflow.store import Store, open_store
from postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def database() -> str:
    """These tests are of PostgreSQL alone."""
    return "postgres"


@pytest.fixture
def url(postgres: PostgresServer, home: Path) -> str:
    """The address of this test's schema."""
    return postgres.schema_url(str(home))


@pytest.fixture
async def store(url: str, home: Path) -> AsyncIterator[Store]:
    """An empty store."""
    store = open_store(home, url=url, patience=10.0)
    yield store
    store.close()


@pytest.fixture
def psql(url: str, store: Store) -> Iterator[psycopg.Connection]:
    """Another program's connection to the same tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def own_server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that this test may stop and kill; without PostgreSQL the test is skipped by `postgres`."""
    with postgres_server() as server:
        yield server

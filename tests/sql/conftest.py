"""A Postgres that says what an expression means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.sql.answers import EXTENSIONS
from tests.sql.oracle import Oracle
from tests.support.servers import VERSIONS


@pytest.fixture(scope="session")
def oracle(postgres_url: Callable[[int], str]) -> Iterator[Oracle]:
    """The newest version of Postgres."""
    found = Oracle(postgres_url(max(VERSIONS)))
    yield found
    found.close()


@pytest.fixture(scope="session")
def server(postgres_url: Callable[[int], str]) -> Iterator[psycopg.Connection[Any]]:
    """A connection to it, for queries over tables."""
    # An open transaction would hold the inboxes of other tests on this server.
    with psycopg.connect(postgres_url(max(VERSIONS)), autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(EXTENSIONS)
        yield connection

"""A Postgres that says what an expression means."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.sql.oracle import Oracle
from tests.support.servers import VERSIONS


@pytest.fixture(scope="session")
def oracle(postgres_url: Callable[[int], str]) -> Iterator[Oracle]:
    """The newest version of Postgres."""
    found = Oracle(postgres_url(max(VERSIONS)))
    yield found
    found.close()

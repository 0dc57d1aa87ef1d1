"""Fixtures for every test: throw-away Postgres servers, a migrated schema per test, stores.

A server is started when the first test asks for its version, and removed at the end. It is
the embedded one (see `millwheel.store.embedded`), in a directory of its own that the
server's account can reach even if the tests run as root.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from millwheel.errors import EmbeddedServerError
from millwheel.services.loop import COLLECT_AFTER
from millwheel.store import embedded
from millwheel.store.console.migrate import migrate
from millwheel.store.embedded import binaries, lifecycle, server_files
from millwheel.store.port import Store
from tests.sim.site import SimulatedSite
from tests.support.servers import VERSIONS, programs_of, reachable_directory, served
from tests.support.store_sites import MemorySite, PostgresSite, Schema, Site

_numbers = itertools.count(1)
MODEL = "model"
"""The database that others are copied from."""
SCHEMA = "wheel"

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# How long an example takes says what else the machine does, not whether the code is right.

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Spark's short lives here end before the JVM's better compilers would pay.

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script runs these in its background: what is started here would inherit it, and is
    # interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n auto`` twice as many as there are processors: tests wait for more than half of
    their time, for commands to start and leases to run out. None: the environment says how many.

    ``-n logical`` is one for each processor, for tests that wait for nothing.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = os.cpu_count() or 1
    return processors if config.option.numprocesses == "logical" else 2 * processors


TOGETHER = {
    "tests/spark/": "spark",
    "tests/kafka/": "kafka",
    "tests/examples/test_flights_": "flights",
    "tests/docs/test_docstring_examples.py::test_examples_have_the_right_types": "mypy",
    "tests/project/test_types.py": "mypy",
    "tests/cli/test_new.py": "new",
    "tests/ui/test_hostile_texts.py": "shop",
    "tests/ui/test_ways_in.py": "shop",
}
"""Where several processes run the tests, the tests of each of these groups run in one process. The
tests with Spark share a session, which takes 13 s to start; those with Kafka share a broker (5 s);
the tests of the flights share a year of them, which takes 7 s to read and sort; those with mypy
share its results for the product (12 s); those with hostile texts share a pipeline (8 s), and those
of new projects the projects, with mypy's results (25 s)."""


class Grouping(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process one test at a time, or one whole group of `TOGETHER`.

    It goes by the path of a test. The marker ``xdist_group`` has no effect with pytest 9.2: xdist
    3.8 adds the group to an attribute of the test that pytest no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((group for path, group in TOGETHER.items() if nodeid.startswith(path)), nodeid)

    def _reschedule(self, node: Any) -> None:
        """Forgets what a process has completed: all that it was given is counted several times a
        test, which took longer with each test."""
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """For ``--dist loadgroup``."""
    return Grouping(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The processes of xdist read the folders from different places on: in a fresh checkout, where
    each module must be compiled, each process compiles some, and finds the others in the cache."""
    report = yield
    process = getattr(collector.config, "workerinput", None)
    if process is not None and isinstance(collector, pytest.Directory) and report.result:
        number, processes = int(process["workerid"].removeprefix("gw")), process["workercount"]
        first = len(report.result) * number // processes
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked ``newest`` meets the older versions of Postgres in `make soak` only."""
    if hasattr(config, "workerinput"):  # the processes must agree: `pytest_make_collect_report`
        items.sort(key=lambda item: item.path)
    older = {*VERSIONS[:-1], *(f"pg{version}" for version in VERSIONS[:-1])}
    for item in items:
        chosen = getattr(item, "callspec", None)
        if item.get_closest_marker("newest") and chosen is not None:
            values = [value for value in chosen.params.values() if isinstance(value, int | str)]
            if not older.isdisjoint(values):
                item.add_marker(pytest.mark.soak)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Objects that outlive a module's tests are no garbage either: the collections that some tests
    ask for would look at all of them each time."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


class NamingFailures:
    """Names a failure at once: a run takes ten minutes, and may be ended from outside before it
    lists them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            lines = report.longreprtext.splitlines()
            errors = [line for line in lines if line.startswith("E ")] or lines[-1:]
            where = "" if report.when == "call" else f" ({report.when})"
            terminal.ensure_newline()
            reason = "".join(errors[:1]).removeprefix("E").strip()
            terminal.write_line(f"{report.nodeid}{where} failed: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected: nothing of that is garbage
    if not hasattr(config, "workerinput"):  # in a process of xdist there is no terminal
        config.pluginmanager.register(NamingFailures(config))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Delete the data of stores in the directories of this run, which pytest keeps for the next
    ones: 70 MB each, for root in a place outside (`server_files`)."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is None or not server_files.STATE_ROOT.is_dir():
        return
    directory = factory.getbasetemp().resolve()
    for origin in server_files.STATE_ROOT.glob(f"*/{server_files.ORIGIN}"):
        store = Path(origin.read_text("utf-8").strip())
        if not store.is_relative_to(directory):
            continue
        if store.is_dir():
            with contextlib.suppress(EmbeddedServerError):
                embedded.remove(store)
        site = server_files.Site(store, origin.parent.name, outside=True, ready=True)
        if site.base.is_dir() and not site.held():
            shutil.rmtree(site.base)


def pytest_collection_finish() -> None:
    """As in a worker: what was imported and collected is no garbage, and looking at it again and
    again took a seventh of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


@pytest.fixture(autouse=True)
def log_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that ran in this process has said where its log goes, and in which form; the next
    test's log is as a library's user finds it."""
    for variable in ("MILLWHEEL_LOG_FORMAT", "MILLWHEEL_LOG_LEVEL"):
        monkeypatch.setenv(variable, "")  # so that what the test sets is undone
        monkeypatch.delenv(variable)
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[Callable[[int], str]]:
    """Gives the URL of a throw-away server of a major version; skips where there is none."""
    root = reachable_directory("millwheel-tests-")
    urls: dict[int, str] = {}

    def url(version: int) -> str:
        version = served(version)
        if version not in urls:
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("PGBIN", raising=False)
                # Nobody cuts the power of a test: its commits need not wait for the disk.
                patch.setitem(lifecycle._FIXED_SETTINGS, "fsync", "off")
                # `make versions` has an older one, which no directory of a user's may have.
                patch.setattr(binaries, "MINIMUM_MAJOR", min(version, binaries.MINIMUM_MAJOR))
                server = embedded.start(root / str(version), binaries=programs_of(version))
            assert server.major_version == version
            urls[version] = server.url
        return urls[version]

    yield url
    for version in urls:
        embedded.remove(root / str(version))
    shutil.rmtree(root)


@pytest.fixture
def reachable_path() -> Iterator[Path]:
    """As `tmp_path`, for a test that makes stores in it; they are removed at the end."""
    path = reachable_directory("millwheel-stores-")
    yield path
    for record in list(path.glob(f"**/{server_files.RECORD}")):
        embedded.remove(record.parent)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def model_of(postgres_url: Callable[[int], str]) -> Callable[[int], str]:
    """Gives the URL of a server whose database `MODEL` has a migrated schema, and nobody
    connected."""
    made: set[int] = set()

    def model(version: int) -> str:
        version = served(version)
        url = postgres_url(version)
        if version not in made:
            made.add(version)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {MODEL}")
            migrate(in_database(url, MODEL), SCHEMA)
        return url

    return model


@pytest.fixture
def new_schema(model_of: Callable[[int], str]) -> Iterator[Callable[[int], Schema]]:
    """Makes migrated schemas, each in a database of its own, and drops them at the end.

    A copy of a database takes a tenth of the time of a migration.
    """
    made: list[tuple[str, str]] = []

    def make(version: int) -> Schema:
        version = served(version)
        url, name = model_of(version), f"wheel_{next(_numbers)}"
        with psycopg.connect(url, autocommit=True) as connection:
            strategy = "" if version < 15 else " STRATEGY FILE_COPY"
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {MODEL}{strategy}")
        made.append((url, name))
        return Schema(in_database(url, name), SCHEMA, version)

    yield make
    for url, name in made:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def in_database(url: str, name: str) -> str:
    """The URL of another database of an embedded server."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


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
    """An empty store of each kind: in memory, behind the simulated server, on Postgres 15 and
    18."""
    return site.store

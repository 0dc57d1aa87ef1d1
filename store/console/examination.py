"""An examination of a Postgres server for `millwheel doctor`: its kind, its speed, and what a login
may do there.

Nothing is changed. Objects are made in a transaction that is rolled back, so that none stays,
whenever the command is killed; the commits that are measured write a note to the WAL.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millwheel.errors import PooledStore, StoreError
from millwheel.store.console.snapshot import list_pipelines, translated
from millwheel.store.postgres import session
from millwheel.store.postgres.statements import composed, text_of
from millwheel.store.postgres.translation import translate

CONNECT_SECONDS = 5

COMMITS = 20

CLOCK_LOOKS = 5
"""The quickest look counts: its answer was under way for the shortest time."""

SETTINGS = (
    "default_transaction_isolation", "default_transaction_read_only", "fsync", "full_page_writes",
    "idle_in_transaction_session_timeout", "idle_session_timeout", "lock_timeout",
    "max_connections", "reserved_connections", "statement_timeout",
    "superuser_reserved_connections", "synchronous_commit", "synchronous_standby_names",
    "transaction_timeout",
)  # fmt: skip

TRIALS = {
    "try_table": "make tables",
    "try_bucket": "make tables that inherit",
    "try_index": "make indexes",
    "try_unlogged": "make unlogged tables",
    "try_sequence": "make sequences",
    "try_view": "make views",
    "try_function": "make functions (PL/pgSQL)",
    "try_drop": "drop tables",
}
"""Statements of a trial, in order, with the right that each needs."""


class ServerSetting(msgspec.Struct, frozen=True):
    value: str
    """As for a new session of the login."""
    unit: str
    source: str
    """``default``, ``user``, ``database``, … (`pg_settings.source`)."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """See ``server_facts.sql``."""

    version: str
    version_number: int
    """Such as 180002."""
    login: str
    database: str
    is_superuser: bool
    is_standby: bool
    encoding: str
    may_make_schemas: bool
    open_schemas: list[str]
    """Schemas in which the login may make objects."""
    connections: int
    login_connections: int
    database_connections: int
    login_limit: int
    """-1: none."""
    database_limit: int
    tls: str | None
    """Of the connection to the server, from a pooler for example; None: it is not encrypted."""
    standbys: int
    settings: dict[str, ServerSetting]
    parameters: list[str]
    """Names of parameters that only managed services have."""
    roles: list[str]
    """Roles that only managed services have."""
    has_aurora_version: bool


class Unreached(NamedTuple):
    """A connection that could not be opened."""

    text: str
    """Of libpq, without the password, which it never shows."""
    host: str
    port: str
    login: str
    database: str
    has_password: bool
    """The address or the environment gives one."""


class Encryption(NamedTuple):
    is_on: bool
    mode: str
    """``sslmode`` of the address."""
    is_local: bool
    """By a socket of the system, or a loopback address."""


class SessionTrial(NamedTuple):
    keeps_lock: bool
    """An advisory lock is held across transactions."""
    keeps_statements: bool
    """A prepared statement is known in the next transaction."""


class CommitTimes(NamedTuple):
    seconds: list[float]
    """In ascending order."""
    round_trip: float
    """Seconds of a statement that writes nothing."""

    @property
    def median(self) -> float:
        return self.seconds[len(self.seconds) // 2]


class ServerClock(NamedTuple):
    ahead_seconds: float
    """Of this machine's clock."""
    uncertain_seconds: float


@contextlib.contextmanager
def examination(url: str) -> Iterator[Examination | Unreached]:
    """Connect to a server, also through a connection pooler that shares sessions."""
    conninfo = make_conninfo(url, application_name="millwheel doctor")
    if not conninfo_to_dict(conninfo).get("connect_timeout"):
        conninfo = make_conninfo(conninfo, connect_timeout=CONNECT_SECONDS)
    proven: session.Proven | None = None
    shared: PooledStore | None = None
    began = time.monotonic()
    try:
        try:
            connection, proven = session.proven(conninfo)
        except PooledStore as error:
            shared = error
            connection = psycopg.connect(conninfo, autocommit=True)
        connection.prepare_threshold = None
    except psycopg.Error as error:
        yield _unreached(conninfo, error)
        return
    with contextlib.closing(connection):
        yield Examination(connection, time.monotonic() - began, proven, shared)


def _unreached(conninfo: str, error: psycopg.Error) -> Unreached:
    given = conninfo_to_dict(conninfo)
    options = {
        option.keyword.decode(): option.val.decode()
        for option in psycopg.pq.Conninfo.parse(conninfo.encode())
        if option.val is not None
    }
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.val is not None
    }
    found = {**defaults, **options}
    return Unreached(
        str(error).strip(),
        found.get("host") or found.get("hostaddr") or "localhost",
        found.get("port", "5432"),
        found.get("user", ""),
        found.get("dbname") or found.get("user", ""),
        bool(given.get("password") or defaults.get("password")),
    )


class Examination:
    """A server that answers.

    Methods raise `StoreError` if the server refuses a statement or does not answer.

    Attributes:
        connected_seconds: time until the connection was ready, and its session proven.
        proven: the proof of the session; None: it is shared.
        shared: the error for a connection pooler that shares sessions.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        connected_seconds: float,
        proven: session.Proven | None,
        shared: PooledStore | None,
    ) -> None:
        self._connection = connection
        self.connected_seconds = connected_seconds
        self.proven = proven
        self.shared = shared

    @property
    def host(self) -> str:
        return self._connection.info.host or "localhost"

    @property
    def port(self) -> int:
        return self._connection.info.port

    @property
    def version_number(self) -> int:
        """Such as 180002."""
        return self._connection.info.server_version

    @property
    def version(self) -> str:
        return str(self._connection.info.parameter_status("server_version") or self.version_number)

    def facts(self) -> ServerFacts:
        ((found,),) = self._rows("server_facts", settings=list(SETTINGS))
        return msgspec.json.decode(found, type=ServerFacts)

    def pipelines(self) -> list[str]:
        with translated():
            return list_pipelines(self._connection)

    def has_schema(self, name: str) -> bool:
        return bool(self._rows("find_schema", schema=name))

    def has_tables(self, pipeline: str) -> bool:
        """Whether the schema of a pipeline has been migrated. The login need not read them."""
        table = sql.Identifier(pipeline, "alembic_version").as_string(None)
        return bool(self._rows("find_table", table=table)[0][0])

    def schema_version(self, pipeline: str) -> str | None:
        """The revision of a pipeline's schema; None: it has none."""
        if not self.has_tables(pipeline):
            return None
        with translated():
            table = sql.Identifier(pipeline, "alembic_version")
            statement = composed("schema_version", alembic_version=table)
            row = self._connection.execute(statement).fetchone()
            return None if row is None else str(row[0])

    def encryption(self) -> Encryption:
        connection = self._connection
        info = connection.info
        host = info.host
        is_local = host.startswith(("/", "@")) or info.hostaddr in ("127.0.0.1", "::1", "")
        mode = info.get_parameters().get("sslmode", "prefer")
        is_on = bool(connection.pgconn.ssl_in_use)
        return Encryption(is_on, mode, is_local)

    def session_trial(self) -> SessionTrial:
        """Take a lock, and prepare a statement, and look for both in the next transaction."""
        lock = secrets.randbits(63)
        connection = self._connection
        ((pid, _),) = self._rows("try_lock", lock=lock)
        ((keeps_lock, _),) = self._rows("same_session", pid=pid, lock=lock)
        self._rows("release_lock", lock=lock)
        connection.prepare_threshold = 5
        try:
            for _ in range(2):
                connection.execute(text_of("ping"), prepare=True)
            (known,) = connection.execute(text_of("count_prepared")).fetchone() or (0,)
        except psycopg.Error:
            known = 0
        finally:
            connection.prepare_threshold = None
        return SessionTrial(bool(keeps_lock), known > 0)

    def durability(self) -> str:
        """`synchronous_commit` of a worker's session, which raises it."""
        with contextlib.suppress(StoreError):
            self._rows("raise_durability")
        ((found,),) = self._rows("show_durability")
        return str(found)

    def rights_trial(self, schema: str | None) -> dict[str, str]:
        """Make each kind of object that a pipeline has, in its schema or in a new one (None), and
        roll all back. Gives the errors by the kind of right."""
        problems: dict[str, str] = {}
        place = schema or f"millwheel_doctor_{secrets.token_hex(6)}"
        names = {
            name: sql.Identifier(place, f"millwheel_doctor_{name}_{secrets.token_hex(4)}")
            for name in ("parent", "bucket", "unlogged", "sequence", "view", "function")
        }
        names["schema"] = sql.Identifier(place)
        trials = {"try_schema": "make schemas", **TRIALS} if schema is None else TRIALS
        connection = self._connection
        with translated():
            connection.execute("BEGIN")
        try:
            self._rows("limit_trial")
            for statement, right in trials.items():
                connection.execute("SAVEPOINT trial")
                try:
                    connection.execute(composed(statement, **names))
                except psycopg.Error as error:
                    if connection.closed:
                        raise translate(error) from error
                    problems[right] = error.diag.message_primary or str(error).strip()
                    connection.execute("ROLLBACK TO SAVEPOINT trial")
                    if statement in ("try_schema", "try_table"):
                        break  # the others are made in it
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")
        return problems

    def lacking_in(self, schema: str) -> list[str]:
        """Rights of a worker that the login lacks on the tables of a pipeline."""
        return [lacking for (lacking,) in self._rows("pipeline_rights", schema=schema)]

    def commit_times(self) -> CommitTimes | None:
        """None: the server takes no note, so that nothing can be measured without a table."""
        try:
            written = sorted(self._timed("try_commit") for _ in range(COMMITS))
            asked = sorted(self._timed("ping") for _ in range(COMMITS))
        except StoreError:
            if self._connection.closed:
                raise
            return None
        return CommitTimes(written, asked[COMMITS // 2])

    def clock(self) -> ServerClock:
        looks = []
        for _ in range(CLOCK_LOOKS):
            before = time.time()
            ((micros,),) = self._rows("database_time")
            after = time.time()
            looks.append((after - before, (before + after) / 2 - micros / 1e6))
        seconds, ahead = min(looks)
        return ServerClock(ahead, seconds / 2)

    def _timed(self, statement: str) -> float:
        began = time.perf_counter()
        self._rows(statement)
        return time.perf_counter() - began

    def _rows(self, name: str, **parameters: Any) -> Sequence[tuple[Any, ...]]:
        """`StoreError` if the server refuses the statement, or does not answer."""
        with translated():
            cursor = self._connection.execute(text_of(name), parameters or None)
            return cursor.fetchall() if cursor.description else []


def driver() -> str:
    """The versions of psycopg and libpq."""
    libpq = psycopg.pq.version()
    return (
        f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__}), libpq {libpq // 10_000}."
        f"{libpq % 10_000}"
    )


def worker_role(database: str, pipeline: str) -> str:
    """The role that `migrate --roles` makes for workers."""
    from millwheel.store.console.roles import roles_of  # with SQLAlchemy: slow to import

    return roles_of(database, pipeline).worker


def remedy(name: str, *, parameter: str = "", value: str = "", **names: str) -> str:
    """A statement for the operator, from ``sql/remedies``; `names` are identifiers."""
    parts: dict[str, sql.Composable] = {key: sql.Identifier(text) for key, text in names.items()}
    parts["parameter"] = sql.SQL(parameter)
    parts["value"] = sql.Literal(value)
    return composed(name, **parts).strip() + ";"

"""Migration of a pipeline's schema to the version that this code needs.

The version is Alembic's, stored in the pipeline's own schema, so that each pipeline in a database
migrates by itself. Only a migration needs Alembic, not reading the version.
"""

from __future__ import annotations

import shlex
import threading

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from millwheel.errors import SchemaBehind, StoreError
from millwheel.store.address import StoreAddress
from millwheel.store.postgres import session
from millwheel.store.postgres.statements import READ_COMMITTED, composed, text_of
from millwheel.store.postgres.translation import unreached

HEAD = "0022"
"""The newest revision in ``migrations/versions``; a test compares both."""

FIRST = "0008"
"""No migration leads to it from schemas that were made before."""

ATTEMPTS = 5

IN_THIS_PROCESS = threading.Lock()
"""Alembic works with a global variable."""

IN_BETWEEN = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UniqueViolation,
)
"""Errors after which an attempt is repeated: a reader of several views and a migration wait for
each other, or another process makes or drops the schema at this moment. Two that make it wait for
each other at its name, which is unique."""


def schema_version(url: str, schema: str) -> str | None:
    """The revision of the schema; None if there is none."""
    table = sql.Identifier(schema, "alembic_version")
    try:
        with session.connect(make_conninfo(url, connect_timeout=5)) as connection:
            row = connection.execute(
                text_of("find_table"), {"table": table.as_string(None)}
            ).fetchone()
            if row is None or not row[0]:
                return None
            version = connection.execute(
                composed("schema_version", alembic_version=table)
            ).fetchone()
            return None if version is None else str(version[0])
    except psycopg.Error as error:
        raise unreached(error) from error


def migrate(url: str, schema: str) -> None:
    """Create the schema, or migrate it to `HEAD`; safe to run from several processes.

    `StoreError` if Postgres refuses it, or a newer millwheel made the schema, or one from before
    the first release. The schema stays unchanged.
    """
    version = schema_version(url, schema)
    _refuse_newer(schema, version)
    _refuse_unreleased(schema, version)
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, exc, pool

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: session.connect(
            url, {"search_path": "", "timezone": "UTC", **READ_COMMITTED}, autocommit=False
        ),
        poolclass=pool.NullPool,
    )
    version_table = sql.Identifier(schema, "alembic_version").as_string(None)
    generation = sql.Identifier(schema, "generation")
    config = Config()
    config.set_main_option("script_location", "millwheel:migrations")
    config.set_main_option("path_separator", "os")
    try:
        for left in reversed(range(ATTEMPTS)):
            try:
                with IN_THIS_PROCESS, engine.begin() as connection:
                    name = {"table": generation.as_string(None)}
                    if connection.exec_driver_sql(text_of("find_table"), name).scalar():
                        connection.exec_driver_sql(composed("lock_pipeline", generation=generation))
                    connection.exec_driver_sql(text_of("act_as_owner"), {"table": version_table})
                    config.attributes["connection"] = connection
                    config.attributes["schema"] = schema
                    command.upgrade(config, "head")
            except (exc.DBAPIError, psycopg.errors.DeadlockDetected) as error:
                if not (left and isinstance(getattr(error, "orig", error), IN_BETWEEN)):
                    raise
            else:
                break
    except exc.DBAPIError as error:
        raise StoreError(
            f"the schema {schema!r} cannot be brought to version {HEAD}: {str(error.orig).strip()}"
        ) from error
    finally:
        engine.dispose()


def _refuse_newer(schema: str, version: str | None) -> None:
    if version is not None and version > HEAD:
        raise StoreError(
            f"the schema {schema!r} of the store is at version {version}, and this code knows "
            f"versions up to {HEAD}: a newer millwheel made it. Install that one, or use another "
            "store"
        )


def _refuse_unreleased(schema: str, version: str | None) -> None:
    if version is not None and version < FIRST:
        raise StoreError(
            f"the schema {schema!r} of the store is at version {version}, from before the first "
            f"release: no migration leads from it to {HEAD}. Use another store, or export the "
            "data that you need by SQL, and drop the pipeline with the millwheel that has made it"
        )


def migrate_command(pipeline: str, address: StoreAddress) -> str:
    return f"millwheel migrate {pipeline} --store {shlex.quote(address.redacted())}"


def require_version(url: str, schema: str, *, address: StoreAddress, migrate_now: bool) -> None:
    """Check that the schema is at `HEAD`, or migrate it if `migrate_now`.

    Raises:
        SchemaBehind: the schema is behind, and `migrate_now` is false; the message has the command.
        StoreError: a newer millwheel made the schema.
    """
    version = schema_version(url, schema)
    if version == HEAD:
        return
    _refuse_newer(schema, version)
    if migrate_now:
        migrate(url, schema)
        return
    found = "is not there" if version is None else f"is at version {version}"
    raise SchemaBehind(
        f"the schema {schema!r} of the store {found}, and this code needs version {HEAD}. Run: "
        f"{migrate_command(schema, address)}"
    )

"""Migration of a pipeline's schema to the version that this code needs.

The version is Alembic's, stored in the pipeline's own schema, so that each pipeline in a database migrates by
itself. Reading the version needs no Alembic; only a migration does.
"""

from __future__ import annotations

import shlex

import psycopg
from psycopg import sql

from millwheel.errors import SchemaBehind, StoreError, StoreUnavailable
from millwheel.store.address import StoreAddress
from millwheel.store.statements import READ_COMMITTED, composed, text_of

HEAD = "0008"
"""The newest revision in ``migrations/versions``; a test compares both."""

ATTEMPTS = 5
"""Most attempts to migrate: one and a reader of several views may wait for each other."""


def schema_version(url: str, schema: str) -> str | None:
    """The revision of a pipeline's schema; None if there is no schema.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    table = sql.Identifier(schema, "alembic_version")
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
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
        raise StoreUnavailable(
            f"the store cannot be reached: {str(error).strip()}\nCheck --store, and that Postgres "
            "is running"
        ) from error


def migrate(url: str, schema: str) -> None:
    """Create the schema, or migrate it to `HEAD`; safe to run from several processes.

    Raises:
        StoreError: Postgres refuses it, or a newer millwheel made the schema, which stays unchanged.
    """
    _refuse_newer(schema, schema_version(url, schema))
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, exc, pool

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(
            url, options=f"-c search_path= -c timezone=UTC {READ_COMMITTED}"
        ),
        poolclass=pool.NullPool,
    )
    version = sql.Identifier(schema, "alembic_version").as_string(None)
    config = Config()
    config.set_main_option("script_location", "millwheel:migrations")
    config.set_main_option("path_separator", "os")
    try:
        for left in reversed(range(ATTEMPTS)):
            try:
                with engine.begin() as connection:
                    connection.exec_driver_sql(text_of("lock_pipeline"), {"pipeline": schema})
                    connection.exec_driver_sql(text_of("act_as_owner"), {"table": version})
                    config.attributes["connection"] = connection
                    config.attributes["schema"] = schema
                    command.upgrade(config, "head")
            except (exc.OperationalError, psycopg.errors.DeadlockDetected) as error:
                cause = getattr(error, "orig", error)
                if not (left and isinstance(cause, psycopg.errors.DeadlockDetected)):
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


def migrate_command(pipeline: str, address: StoreAddress) -> str:
    """The command that migrates a pipeline's schema to `HEAD`, for messages."""
    return f"millwheel migrate {pipeline} --store {shlex.quote(address.redacted())}"


def require_version(url: str, schema: str, *, address: StoreAddress, migrate_now: bool) -> None:
    """Check that the schema is at `HEAD`, or migrate it.

    Args:
        address: the store's address, for messages.
        migrate_now: migrate the schema if it is behind.

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

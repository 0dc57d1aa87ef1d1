"""SELECTs of a user: statements that give rows, run so that they can change nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import errors
from psycopg.adapt import Buffer, Loader
from psycopg.types.string import TextLoader

from millwheel.core.suggestion import did_you_mean
from millwheel.errors import MillwheelError, UsageError
from millwheel.store.console.snapshot import (
    begin_snapshot,
    choose,
    iso_text,
    list_pipelines,
    reading,
    translated,
)
from millwheel.store.postgres.statements import text_of
from millwheel.store.postgres.translation import UNDEFINED_TABLE, translate

UNDEFINED_FUNCTION = "42883"

REACHES_OTHERS = re.compile(
    r"""\b(pg_(?:try_)?advisory_\w+|pg_(?:terminate|cancel)_backend|pg_(?:reload_conf|rotate_logfile|promote|switch_wal)
    |pg_log_backend_memory_contexts|pg_\w*replication_(?:slot|origin)\w*|pg_stat\w*_reset\w*|dblink\w*
    |lo_(?:create|creat|open|put|get|import|export|unlink|truncate\w*|from_bytea)
    |pg_create_restore_point|pg_(?:start_|stop_)?backup\w*|pg_wal_replay_\w+|pg_log_standby_snapshot|pg_logical_emit_message
    |query_to_xml\w*|ts_stat|ts_rewrite|U&(?="))""",
    re.IGNORECASE | re.VERBOSE,
)
"""Names of functions that a read-only transaction allows and that reach other sessions: signals,
locks, counters of the server; functions that run a text as a statement; and the beginning of a name
in escapes, which would hide all of these. Each is refused wherever it stands, in a text or a
comment too. It guards against accidents; against people there are roles."""

UNKNOWN_NAME = re.compile(r'relation "([^"]+)"|function ([^()]+)\(')
"""The name in the error of Postgres for a relation or function that does not exist."""

OUR_BLOCK = "PL/pgSQL function inline_code_block"

OF_THE_SERVER = ("08", "53", "57", "58")
"""SQLSTATE classes that concern the connection or the server, not the statement."""


class Selection:
    def __init__(self, columns: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
        self.columns = columns
        self.rows = rows


@contextlib.contextmanager
def select(
    url: str,
    statements: Sequence[str],
    *,
    pipeline: str | None,
    seconds: float,
    as_json: bool,
) -> Iterator[Iterator[Selection]]:
    """Run statements of a user that give rows; they can change nothing.

    Several statements read one snapshot (`millwheel.store.console.snapshot`). All are parsed before
    the first one runs. Read the rows of each answer before the next answer.

    Args:
        pipeline: the pipeline of names without a schema; None: the only one, if there is only one.
        seconds: longest run of each statement.
        as_json: give values that `msgspec.json.encode` takes, instead of text or None.

    Raises:
        UsageError: Postgres refuses a statement, or it took longer than `seconds`.
    """
    with reading(url) as connection, translated():
        known = list_pipelines(connection)
    several = pipeline is None and len(known) > 1
    path = () if several or not known else (choose(known, pipeline),)
    with reading(url, seconds, (*path, "public")) as connection:
        refuse_to_run_as_superuser(connection)
        _register_loaders(connection, as_json=as_json)
        try:
            if len(statements) > 1:
                begin_snapshot(connection, path or None)
            else:
                connection.execute(text_of("begin_select"))
            columns = [columns_of(connection, text) for text in statements]
            yield _answers(connection, columns, statements)
        except errors.QueryCanceled as error:
            raise UsageError(
                f"the statement was stopped after {seconds:g} s; give it longer with --timeout"
            ) from error
        except psycopg.Error as error:
            raise refusal(connection, error, known if several else []) from error


def refuse_to_run_as_superuser(connection: psycopg.Connection[Any]) -> None:
    """Refuse a login that may run programs on the server where others have made tables, views or
    functions: their code would run with its rights, also in a transaction that only reads."""
    with translated():
        found = connection.execute(text_of("others_code")).fetchone()
    if found is not None:
        raise UsageError(
            f"{connection.info.user} is a superuser, or may use files and programs of the server, "
            f"and {found[1]} has made {found[0]}: code in a view or a policy runs with the "
            "rights of its reader. Give --store a login of the pipeline's "
            "reader (`millwheel migrate --roles` makes that role)"
        )


def _answers(
    connection: psycopg.Connection[Any], columns: list[list[str]], statements: Sequence[str]
) -> Iterator[Selection]:
    for names, text in zip(columns, statements, strict=True):
        with connection.cursor() as cursor:
            yield Selection(names, _streamed(cursor, text))


def _streamed(cursor: psycopg.Cursor[Any], text: str) -> Iterator[tuple[Any, ...]]:
    yield from cursor.stream(text)


def columns_of(connection: psycopg.Connection[Any], text: str) -> list[str]:
    """The columns of exactly one statement that gives rows; nothing runs yet.

    The protocol prepares one statement only, so that no text can end the transaction and add
    another statement.
    """
    return [name for name, _ in typed_columns_of(connection, text)]


def typed_columns_of(connection: psycopg.Connection[Any], text: str) -> list[tuple[str, int]]:
    """As `columns_of`, with the numbers of their types."""
    if (found := REACHES_OTHERS.search(text)) is not None:
        raise UsageError(
            f"{found[1]} may reach other sessions, by a signal or a lock, and the statement "
            "may only read. Use psql, as a role that may do this"
        )
    prepared = connection.pgconn.prepare(b"", text.encode())
    if prepared.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(prepared, "utf-8")
    described = connection.pgconn.describe_prepared(b"")
    if described.nfields == 0:
        raise UsageError(
            "this statement gives no rows, and it may only read: SELECT, WITH, TABLE, VALUES, "
            "SHOW, EXPLAIN"
        )
    return [
        ((described.fname(i) or b"").decode(), described.ftype(i)) for i in range(described.nfields)
    ]


def refusal(
    connection: psycopg.Connection[Any], error: psycopg.Error, pipelines: list[str]
) -> MillwheelError:
    """The engine's error for one of a user's statement, with the name that was probably meant."""
    state = error.sqlstate or ""
    if not state or state[:2] in OF_THE_SERVER:
        return translate(error)
    hint = ""
    if state in (UNDEFINED_TABLE, UNDEFINED_FUNCTION):
        hint = _other_name(connection, error.diag.message_primary or "", pipelines)
    return UsageError(f"Postgres refused the statement: {_words(error)}{hint}")


def _words(error: psycopg.Error) -> str:
    """The words of an error; of one in a block of ours without the place in it."""
    found = error.diag
    if not (found.context or "").startswith(OUR_BLOCK):
        return str(error).strip()
    return "\n".join(
        filter(
            None,
            (
                found.message_primary,
                found.message_detail and f"DETAIL: {found.message_detail}",
                found.message_hint and f"HINT: {found.message_hint}",
            ),
        )
    )


def _other_name(connection: psycopg.Connection[Any], message: str, pipelines: Sequence[str]) -> str:
    """A line about the relation or function that was probably meant by the unknown one of a
    message. Postgres itself suggests columns only.

    Args:
        pipelines: those of the store, if names without a schema are of none of them.
    """
    found = UNKNOWN_NAME.search(message)
    name = "" if found is None else found[1] or found[2]
    known = _readable_names(connection)
    advice = did_you_mean(name, known)
    if pipelines and (not advice or any(f"{each}.{name}" in known for each in pipelines)):
        advice = (
            f"The store has several pipelines: {', '.join(pipelines)}. Choose one with "
            f"--pipeline, or write the names with it, as in {pipelines[0]}.states"
        )
    return f"\n{advice}" if advice else ""


def _readable_names(connection: psycopg.Connection[Any]) -> set[str]:
    try:
        connection.execute("ROLLBACK")
        rows = connection.execute(text_of("readable_names")).fetchall()
    except psycopg.Error:  # the connection is gone as well: the first error says more
        return set()
    return {name for row in rows for name in row if name is not None}


class _IsoLoader(Loader):
    """ISO 8601 text; no Python type holds infinity or the year 10000."""

    def load(self, data: Buffer) -> str:
        return iso_text(bytes(data).decode()) or ""


class _NumberLoader(Loader):
    """Digit by digit; a value that JSON has no number for (NaN) becomes text."""

    def load(self, data: Buffer) -> Any:
        text = bytes(data)
        return msgspec.Raw(text) if re.fullmatch(rb"-?\d+(\.\d+)?", text) else text.decode()


class _RawLoader(Loader):
    """JSON, unchanged."""

    def load(self, data: Buffer) -> Any:
        return msgspec.Raw(bytes(data))


_JSON_LOADERS: dict[str, type[Loader]] = {
    "timestamptz": _IsoLoader,
    "timestamp": _IsoLoader,
    "date": _IsoLoader,
    "time": TextLoader,
    "timetz": TextLoader,
    "interval": TextLoader,
    "bytea": TextLoader,
    "numeric": _NumberLoader,
    "json": _RawLoader,
    "jsonb": _RawLoader,
}


def _register_loaders(connection: psycopg.Connection[Any], *, as_json: bool) -> None:
    if as_json:
        for name, loader in _JSON_LOADERS.items():
            connection.adapters.register_loader(name, loader)
        return
    for info in psycopg.adapters.types:
        connection.adapters.register_loader(info.oid, TextLoader)
        if info.array_oid:
            connection.adapters.register_loader(info.array_oid, TextLoader)

"""Brings a pipeline back to a savepoint, while its workers live (decision 86).

::

    copy the savepoint ─▶ lock the pipeline ─▶ fence all intervals ─▶ carry over
        ─▶ exchange the names ─▶ end the workers' sessions ─▶ COMMIT

One transaction does all of it. The replaced schema stays as a savepoint, so a restore can be undone
by another one. Workers connect again, read another incarnation, and start over (I16).
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from millwheel.errors import StoreError, UsageError
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.snapshot import choose, list_pipelines
from millwheel.store.console.views import install_functions
from millwheel.store.copies.copying import Copying, CopyMarks, explained, own_rows
from millwheel.store.copies.layout import SchemaLayout
from millwheel.store.copies.origins import SIGN, connected, require_copyable
from millwheel.store.copies.progress import Show, show_nothing
from millwheel.store.copies.savepoints import Savepoint, find_savepoint, list_savepoints
from millwheel.store.copies.teeing import carry_tees
from millwheel.store.postgres.connections import SEQUENCE
from millwheel.store.postgres.statements import Statements, composed, text_of

BEING_MADE = "_"
"""The label of the copy before it gets the pipeline's name: no savepoint may have it."""

KEPT_DAYS = 14
"""How long the replaced schema is kept, at least."""


class DeliveredSince(NamedTuple):
    """Numbered bundles that left the store after the savepoint."""

    sink: str
    scope: int
    first: int
    last: int


class Restored(NamedTuple):
    pipeline: str
    savepoint: str
    at: datetime
    """The moment that the pipeline shows now."""
    replaced: str
    """The savepoint that has the pipeline as it was before."""
    keep_until: datetime
    """Of that savepoint."""
    rows: int
    delivered: list[DeliveredSince]
    sent_again: int
    """Records of inboxes that wait again since the savepoint does not know them."""
    not_sent_again: int
    """At the most so many records were sent to inboxes since then, processed, and are not there."""
    sessions: int
    """Of workers, which were ended."""


def restore(url: str, name: str, *, actor: Actor = UNNAMED, show: Show = show_nothing) -> Restored:
    """Bring a pipeline back to one of its savepoints.

    Raises:
        UsageError: there is no such savepoint or pipeline, or an object of another schema holds on
            to its tables.
        StoreError: this login may not do that, or may not end the sessions of the workers.
        StoreUnavailable: another session holds the pipeline for long.

    Nothing was changed then.
    """
    savepoint = find_savepoint(url, name)
    pipeline = savepoint.pipeline
    keep_until = datetime.now(UTC) + timedelta(days=KEPT_DAYS)
    replaced = f"{pipeline}{SIGN}{_free_label(url, pipeline)}"
    with connected(url) as connection:
        choose(list_pipelines(connection), pipeline)
        require_copyable(connection, pipeline)
        require_copyable(connection, name)
        _refuse_holders(connection, pipeline)
        _require_sessions(connection, pipeline)
        with connection.transaction(), explained(name, pipeline):
            made = _Exchange(connection, pipeline, name, replaced)
            found = made.run(savepoint.at, keep_until, actor, show)
    return found


class ForeseenRestore(NamedTuple):
    """The losses of a restore, as of now."""

    savepoint: Savepoint
    delivered: list[DeliveredSince]


def foresee_restore(url: str, name: str) -> ForeseenRestore:
    """`UsageError` if there is no such savepoint, or its pipeline is gone."""
    savepoint = find_savepoint(url, name)
    with connected(url) as connection:
        choose(list_pipelines(connection), savepoint.pipeline)
        before = _delivered(connection, name)
        return ForeseenRestore(
            savepoint, _since(before, _delivered(connection, savepoint.pipeline))
        )


def _free_label(url: str, pipeline: str) -> str:
    known = {one.label for one in list_savepoints(url, pipeline)}
    return next(label for n in range(1, len(known) + 2) if (label := f"replaced-{n}") not in known)


def _refuse_holders(connection: psycopg.Connection[Any], pipeline: str) -> None:
    params = {"schema": pipeline}
    found = [text for (text,) in connection.execute(text_of("outside_keys"), params).fetchall()]
    found += [
        f"the materialized view {schema}.{name}"
        for schema, name, kind, *_ in connection.execute(text_of("outside_views"), params)
        if kind == "m"
    ]
    if found:
        raise UsageError(
            f"{', '.join(found)} of other schemas hold on to tables of {pipeline!r}, which a "
            "restore replaces. Drop them first, and make them again afterwards; nothing was changed"
        )


def _require_sessions(connection: psycopg.Connection[Any], pipeline: str) -> None:
    rows = connection.execute(Statements(pipeline).get("sessions_of_workers")).fetchall()
    others = sorted({login for _, _, may_end, login in rows if not may_end})
    if others:
        raise StoreError(
            f"workers of {pipeline!r} have sessions of {', '.join(others)}, which this login may "
            "not end. Grant it pg_signal_backend, or stop the workers first; nothing was changed"
        )


class _Exchange:
    """A savepoint's copy takes the place of its pipeline, inside a transaction."""

    def __init__(
        self, connection: psycopg.Connection[Any], pipeline: str, savepoint: str, replaced: str
    ) -> None:
        self._connection = connection
        self._pipeline, self._savepoint, self._replaced = pipeline, savepoint, replaced
        self._made = f"{pipeline}{SIGN}{BEING_MADE}"

    def run(self, at: datetime, keep_until: datetime, actor: Actor, show: Show) -> Restored:
        pipeline, replaced, connection = self._pipeline, self._replaced, self._connection
        before = _delivered(connection, self._savepoint)
        copying = Copying(connection, self._savepoint, self._made, CopyMarks(), show)
        layout, rows = copying.copy_tables()
        self._stop_commits()
        delivered = _since(before, _delivered(connection, pipeline))
        sent_again, not_sent_again = self._carry(layout)
        ((withholds, now),) = self._rows(pipeline, "present_marks")
        views = connection.execute(text_of("outside_views"), {"schema": pipeline}).fetchall()
        self._rename(pipeline, replaced)
        self._rename(self._made, pipeline)
        install_functions(connection, replaced)
        copying.make_code(layout, pipeline)
        own_rows(connection, pipeline, self._savepoint, at, CopyMarks(withholds=withholds))
        own_rows(connection, replaced, pipeline, now, CopyMarks(keep_until))
        self._advance(layout, pipeline, replaced)
        self._fence(pipeline)
        carry_tees(connection, replaced, pipeline)
        self._lead(views)
        note = {"savepoint": self._savepoint, "replaced": replaced, "rows": rows}
        Asking(connection, pipeline).note(actor, "restore", note)
        sessions = self._end_sessions()
        return Restored(
            pipeline, self._savepoint, at, replaced, keep_until, rows, delivered, sent_again,
            not_sent_again, sessions,
        )  # fmt: skip

    def _stop_commits(self) -> None:
        """From here on no commit of the pipeline, no deploy and no request ends before this
        transaction; a commit that waits for it is refused afterwards."""
        self._run(self._pipeline, "lock_pipeline")
        self._run(self._pipeline, "lock_for_exchange")
        self._fence(self._pipeline)

    def _fence(self, schema: str) -> None:
        sequence = sql.Literal(sql.Identifier(schema, SEQUENCE).as_string(None))
        table = sql.Identifier(schema, "key_interval")
        self._connection.execute(composed("fence_all", key_interval=table, sequence=sequence))

    def _carry(self, layout: SchemaLayout) -> tuple[int, int]:
        """Rows that are not of the savepoint's moment: of the processes that run, of operators, and
        of programs that have sent records since. Returns the numbers of records of inboxes that
        wait again, and of others that were sent since, at the most."""
        between = {"restored": self._made, "replaced": self._pipeline}
        self._advance(layout, self._made, self._pipeline)
        self._copy("carry_workers", "worker", **between)
        self._copy("carry_secret", "peer_secret", **between)
        self._run(self._made, "clear_requests")
        columns = next(table.columns for table in layout.tables if table.name == "request")
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        self._copy("carry_requests", "request", columns=names, **between)
        detail = f"the pipeline was restored from {self._savepoint}"
        self._run(self._made, "refuse_open_requests", detail=detail)
        self._copy("carry_bundles", "commit_record", **between)
        return self._carry_inboxes()

    def _carry_inboxes(self) -> tuple[int, int]:
        parts = {
            f"{whose}_{part}": sql.Identifier(schema, table)
            for whose, schema in (("restored", self._made), ("replaced", self._pipeline))
            for part, table in (
                ("sent", "sent_record"), ("taken", "taken_record"), ("inbox", "inbox"),
            )
        }  # fmt: skip
        carried = self._connection.execute(
            composed("carry_sent", **{k: v for k, v in parts.items() if k != "restored_inbox"})
        ).fetchall()
        streams, digests = [row[0] for row in carried], [row[1] for row in carried]
        text = composed(
            "carry_ids",
            restored=sql.Identifier(self._made, "sent_id"),
            replaced=sql.Identifier(self._pipeline, "sent_id"),
        )
        self._connection.execute(text, {"streams": streams, "digests": digests})
        ((drawn,),) = self._connection.execute(
            composed(
                "sent_since",
                savepoint=sql.Literal(sql.Identifier(self._savepoint, "sent_record").as_string()),
                replaced=sql.Literal(sql.Identifier(self._pipeline, "sent_record").as_string()),
            )
        ).fetchall()
        return len(carried), max(0, drawn - len(carried))

    def _advance(self, layout: SchemaLayout, schema: str, beyond: str) -> None:
        """Numbers that the replaced schema has given are not given again: they may be known
        outside."""
        for sequence in layout.sequences:
            name = sql.Identifier(schema, sequence.name)
            text = composed(
                "advance_sequence",
                sequence=sql.Literal(name.as_string(None)),
                restored=name,
                replaced=sql.Identifier(beyond, sequence.name),
            )
            with contextlib.suppress(psycopg.errors.UndefinedTable), self._connection.transaction():
                self._connection.execute(text)  # it was made, or dropped, after the savepoint

    def _rename(self, schema: str, renamed: str) -> None:
        old, new = sql.Identifier(schema), sql.Identifier(renamed)
        self._connection.execute(composed("rename_schema", schema=old, renamed=new))

    def _lead(self, views: list[tuple[str, str, str, str, str | None, int]]) -> None:
        """Let views of other schemas read the restored tables."""
        self._connection.execute(text_of("no_search_path"))
        for schema, name, _, definition, options, _ in views:
            text = composed(
                "lead_view_elsewhere",
                view=sql.Identifier(schema, name),
                options=sql.SQL(options or ""),
                definition=sql.SQL(definition.rstrip(";")),
            )
            self._connection.execute(text)

    def _end_sessions(self) -> int:
        """As the login itself, not as the owner. The workers' next connections wait for this
        transaction to end before they know where they are."""
        self._connection.execute(text_of("act_as_login"))
        rows = self._rows(self._pipeline, "sessions_of_workers")
        params = {"pid": [row[0] for row in rows], "started": [row[1] for row in rows]}
        return len(self._connection.execute(text_of("end_backends"), params).fetchall())

    def _copy(
        self, statement: str, table: str, /, restored: str, replaced: str, **parts: Any
    ) -> None:
        self._connection.execute(
            composed(
                statement,
                restored=sql.Identifier(restored, table),
                replaced=sql.Identifier(replaced, table),
                **parts,
            )
        )

    def _run(self, schema: str, statement: str, /, **params: Any) -> None:
        self._connection.execute(Statements(schema).get(statement), params or None)

    def _rows(self, schema: str, statement: str, /) -> list[tuple[Any, ...]]:
        return self._connection.execute(Statements(schema).get(statement)).fetchall()


def _delivered(connection: psycopg.Connection[Any], schema: str) -> dict[tuple[str, int], int]:
    """The last delivered bundle of each scope of a sink outside the store."""
    text = Statements(schema).get("delivered_bundles", sinks="sinks")
    return {(sink, scope): acked for sink, scope, acked in connection.execute(text).fetchall()}


def _since(
    before: dict[tuple[str, int], int], now: dict[tuple[str, int], int]
) -> list[DeliveredSince]:
    return [
        DeliveredSince(sink, scope, before.get((sink, scope), 0) + 1, acked)
        for (sink, scope), acked in now.items()
        if acked > before.get((sink, scope), 0)
    ]

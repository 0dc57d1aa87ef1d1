"""Deploying a graph into a schema: make it the first time, compare it every other time.

What must not change under stored data: the nodes, how they are wired, and the types of
state and streams. A type may change when its version is raised and a migration from the
stored version is given; then stored values are brought up to date when they are read.
Nodes may be added: they start with what is sent from then on, and since nobody who was there
reads them, nobody's watermark moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import AsyncConnection, sql
from psycopg.types.json import Jsonb

from millwheel.errors import DeployRefused
from millwheel.model import MIN_TIME
from millwheel.sinks import Table
from millwheel.store.port import Deployment, IntervalRow, NodeDeploy, StreamDeploy
from millwheel.store.state_views import keep_state_views
from millwheel.store.statements import Statements


@dataclass(frozen=True)
class Deployed:
    """What deploy did."""

    deployment: Deployment
    fresh: bool
    intervals: list[int]
    """The intervals it made; each needs its first commit."""


async def deploy(
    connection: AsyncConnection[Any],
    statements: Statements,
    sequence: str,
    graph: dict[str, Any],
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
    tables: list[Table[Any]],
) -> Deployed:
    """Within a transaction: make the graph's rows, or check that they are the same.

    Raises:
        DeployRefused: the message shows each difference.
    """
    await connection.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"millwheel {statements.schema}"]
    )
    cursor = await connection.execute(statements.get("deployed"))
    stored = await cursor.fetchone()
    if stored is None:
        await connection.execute(
            sql.SQL("INSERT INTO {} (name, graph, gc_watermark) VALUES (%s, %s, 0)").format(
                statements.table("pipeline")
            ),
            [statements.schema, Jsonb(graph)],
        )
        made = await _add(connection, statements, sequence, nodes, streams)
    else:
        before = msgspec.json.decode(stored[1])
        refuse_other_graph(statements.schema, before, graph)
        known = await _read(connection, statements)
        old_nodes = [node for node in nodes if node.name in known.computations]
        old_streams = [stream for stream in streams if stream.name in known.streams]
        await _move(connection, statements, old_nodes, old_streams)
        made = await _add(
            connection,
            statements,
            sequence,
            [node for node in nodes if node not in old_nodes],
            [stream for stream in streams if stream not in old_streams],
        )
        if before != msgspec.json.decode(msgspec.json.encode(graph)):
            await connection.execute(
                sql.SQL("UPDATE {} SET graph = %s").format(statements.table("pipeline")),
                [Jsonb(graph)],
            )
    for table in tables:
        await _create_table(connection, statements, table)
    await keep_state_views(connection, statements, nodes)
    deployment = await _read(connection, statements)
    return Deployed(deployment, stored is None, made)


async def _read(connection: AsyncConnection[Any], statements: Statements) -> Deployment:
    cursor = await connection.execute(statements.get("deployed_computations"))
    computations = {row[1]: row[0] for row in await cursor.fetchall()}
    cursor = await connection.execute(statements.get("deployed_streams"))
    streams = {row[1]: row[0] for row in await cursor.fetchall()}
    cursor = await connection.execute(statements.get("list_intervals"))
    intervals = [IntervalRow(*row[:5]) for row in await cursor.fetchall()]
    return Deployment(computations, streams, intervals)


async def _add(
    connection: AsyncConnection[Any],
    statements: Statements,
    sequence: str,
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
) -> list[int]:
    """Make rows for nodes and streams; gives the ids of the new intervals."""
    table = statements.table

    async def insert(text: str, params: list[Any], **tables: sql.Identifier) -> Any:
        cursor = await connection.execute(
            sql.SQL(text).format(**tables),
            params,
        )
        row = await cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    made: list[int] = []
    for stream in streams:
        await insert(
            "INSERT INTO {t} (name, version, type) VALUES (%s, %s, %s)",
            [stream.name, stream.version, Jsonb(stream.type)],
            t=table("stream"),
        )
    for node in nodes:
        computation = await insert(
            "INSERT INTO {t} (name, kind, version, state, upstream, paused) "
            "VALUES (%s, %s, %s, %s, %s, false) RETURNING id",
            [node.name, node.kind, node.version, Jsonb(node.state), Jsonb(node.upstream)],
            t=table("computation"),
        )
        for number, (low, high) in enumerate(node.slots):
            interval = await insert(
                "INSERT INTO {t} (computation, slot_from, slot_to, sequencer) "
                "VALUES (%s, %s, %s, nextval(%s::regclass)) RETURNING id",
                [computation, low, high, sequence],
                t=table("key_interval"),
            )
            made.append(interval)
            await insert(
                "INSERT INTO {t} (interval_id, through) VALUES (%s, 0)", [interval], t=table("fold")
            )
            if node.sources:
                await insert(
                    "INSERT INTO {t} (id, interval_id, source, retired) "
                    "VALUES (nextval(%s::regclass), %s, %s, false)",
                    [sequence, interval, node.sources[number]],
                    t=table("log"),
                )
    return made


async def write_first_commits(
    connection: AsyncConnection[Any],
    statements: Statements,
    commit_table: str,
    stamp: int,
    intervals: list[int],
) -> None:
    """The commit every chain begins with: n = 0, nothing promised."""
    await connection.execute(
        sql.SQL(
            "INSERT INTO {commits} (interval_id, n, sequencer, stamp, input_watermark, "
            "low_watermark, floor, acked, position, counters) "
            "SELECT id, 0, sequencer, %(stamp)s, %(low)s, %(low)s, %(stamp)s, '{{}}', NULL, '{{}}' "
            "FROM {intervals} WHERE id = ANY(%(ids)s)"
        ).format(
            commits=statements.table(commit_table), intervals=statements.table("key_interval")
        ),
        {"stamp": stamp, "low": MIN_TIME, "ids": intervals},
    )


async def _move(
    connection: AsyncConnection[Any],
    statements: Statements,
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
) -> None:
    """Note the types that moved to a newer version."""
    cursor = await connection.execute(statements.get("deployed_computations"))
    known = {row[1]: (row[3], msgspec.json.decode(row[4])) for row in await cursor.fetchall()}
    for node in nodes:
        if must_migrate(
            f"state of {node.name!r}",
            *known[node.name],
            node.version,
            node.state,
            node.migrates_from,
        ):
            await connection.execute(
                sql.SQL("UPDATE {} SET version = %s, state = %s WHERE name = %s").format(
                    statements.table("computation")
                ),
                [node.version, Jsonb(node.state), node.name],
            )
    cursor = await connection.execute(statements.get("deployed_streams"))
    known = {row[1]: (row[2], msgspec.json.decode(row[3])) for row in await cursor.fetchall()}
    for stream in streams:
        if must_migrate(
            f"stream {stream.name!r}",
            *known[stream.name],
            stream.version,
            stream.type,
            stream.migrates_from,
        ):
            await connection.execute(
                sql.SQL("UPDATE {} SET version = %s, type = %s WHERE name = %s").format(
                    statements.table("stream")
                ),
                [stream.version, Jsonb(stream.type), stream.name],
            )


def refuse_other_graph(pipeline: str, stored: Any, graph: Any) -> None:
    """See to it that the deployed graph is this code's, or a part of it.

    Raises:
        DeployRefused: it is another; the message shows each difference.
    """
    new = msgspec.json.decode(msgspec.json.encode(graph))
    for part in ("nodes", "streams"):
        if set(stored.get(part, ())) < set(new.get(part, ())):  # it has grown: see the rest alone
            new[part] = (
                {name: new[part][name] for name in stored[part]}
                if isinstance(new[part], dict)
                else stored[part]
            )
    differences = _differences(stored, new)
    if differences:
        raise DeployRefused(
            f"pipeline {pipeline!r} is deployed with another graph than this code's:\n  "
            + "\n  ".join(differences)
            + "\nGive this pipeline another name, go back to the code that was deployed, or remove "
            f"the old one with all its data: millwheel drop {pipeline}"
        )


def must_migrate(
    what: str,
    stored_version: int,
    stored_type: Any,
    version: int,
    new_type: Any,
    migrates_from: list[int],
) -> bool:
    """Whether the type moved to a newer version; refuses what would misread stored data."""
    new_type = msgspec.json.decode(msgspec.json.encode(new_type))
    if version == stored_version:
        if stored_type == new_type:
            return False
        raise DeployRefused(
            f"the type of the {what} changed without a new version:\n  "
            + "\n  ".join(_differences(stored_type, new_type))
            + f"\nStored values might be misread. Set version = {version + 1} and give "
            f"migrations = {{{version}: upgrade}}, where upgrade turns the old JSON into the new"
        )
    if version < stored_version:
        raise DeployRefused(
            f"the {what} is stored as version {stored_version}, but this code knows only version "
            f"{version}; deploy the newer code"
        )
    missing = [v for v in range(stored_version, version) if v not in migrates_from]
    if missing:
        raise DeployRefused(
            f"the {what} goes from version {stored_version} to {version}, but migrations has no "
            f"entry for version {', '.join(map(str, missing))}"
        )
    return True


def _differences(stored: Any, new: Any, path: str = "") -> list[str]:
    """Every place where two JSON values differ, in words."""
    if isinstance(stored, dict) and isinstance(new, dict):
        lines = []
        for name in sorted({*stored, *new}):
            where = f"{path}.{name}" if path else name
            if name not in new:
                lines.append(f"{where}: only in the store")
            elif name not in stored:
                lines.append(f"{where}: only in this code")
            else:
                lines += _differences(stored[name], new[name], where)
        return lines
    if stored == new:
        return []
    return [
        f"{path}: stored {msgspec.json.encode(stored).decode()}, "
        f"this code {msgspec.json.encode(new).decode()}"
    ]


async def _create_table(
    connection: AsyncConnection[Any], statements: Statements, table: Table[Any]
) -> None:
    """Make a sink's table from its row type, or check that the existing one fits."""
    cursor = await connection.execute(
        "SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_catalog.pg_attribute AS a "
        "JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid "
        "JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
        [statements.schema, table.name],
    )
    existing = dict(await cursor.fetchall())
    if existing:
        wrong = [
            f"{c.name}: the table has {existing.get(c.name, 'no such column')}, the row type gives {c.type}"
            for c in table.columns
            if not _fits(existing.get(c.name), c.type)
        ]
        if wrong:
            raise DeployRefused(
                f"table {statements.schema}.{table.name} does not fit its row type "
                f"{table.row_type.__name__}:\n  " + "\n  ".join(wrong)
            )
        if table.key and not await _has_key(connection, statements, table):
            raise DeployRefused(
                f"table {statements.schema}.{table.name} has no unique index on "
                f"({', '.join(table.key)}), so rows cannot be replaced by key; create one"
            )
        return
    columns = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(c.name),
            sql.SQL(c.type),
            sql.SQL("") if c.nullable else sql.SQL(" NOT NULL"),
        )
        for c in table.columns
    ]
    if table.key:
        columns.append(
            sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, table.key)))
        )
    await connection.execute(
        sql.SQL("CREATE TABLE {} ({})").format(
            statements.table(table.name), sql.SQL(", ").join(columns)
        )
    )


_ALSO = {
    "bigint": {"integer", "smallint", "numeric"},
    "text": {"character varying", "character"},
    "double precision": {"real", "numeric"},
    "jsonb": {"json"},
}


def _fits(found: str | None, wanted: str) -> bool:
    return found is not None and (found == wanted or found in _ALSO.get(wanted, ()))


async def _has_key(
    connection: AsyncConnection[Any], statements: Statements, table: Table[Any]
) -> bool:
    cursor = await connection.execute(
        "SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_catalog.pg_index AS i "
        "JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NULL "
        "GROUP BY i.indexrelid",
        [statements.table(table.name).as_string(None)],
    )
    return any(row[0] == sorted(table.key) for row in await cursor.fetchall())

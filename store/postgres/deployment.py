"""Deployment of a graph into a schema: stored the first time, compared every other time.

Nodes, their wiring, and the types of state and streams must not change under stored data. A type
may change if its version is raised and the code has a migration from the stored version; then
stored values are migrated when they are read. Nodes may be added: they begin with the records sent
from then on. Each such change begins a generation (`millwheel.store.rules.generations`, decision
28), and workers of the previous one continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import AsyncConnection, sql
from psycopg.types.json import Jsonb

from millwheel.core.model import MIN_TIME
from millwheel.errors import DeployRefused
from millwheel.sinks import Table
from millwheel.store.port.deploy import Deployment, NodeDeploy, StreamDeploy
from millwheel.store.port.placement import ELSEWHERE, IntervalRow
from millwheel.store.postgres.state_views import keep_state_views
from millwheel.store.postgres.statements import Statements, composed
from millwheel.store.rules.code import Code, Generation
from millwheel.store.rules.generations import Admission, admission_of, obstacles_of
from millwheel.store.rules.rekeying import Obstacles, rekeyed


@dataclass(frozen=True)
class OnSpark:
    """The query of Spark that runs a pipeline."""

    checkpoint: str
    levels: dict[str, int]
    """The operator of each computation."""
    is_used: bool = False
    """Whether the checkpoint is known to have something in it."""


@dataclass(frozen=True)
class Deployed:
    """The result of a deploy."""

    deployment: Deployment
    fresh: bool
    intervals: list[int]
    """New intervals, each of which needs its first commit."""


async def deploy(
    connection: AsyncConnection[Any],
    statements: Statements,
    sequence: str,
    graph: dict[str, Any],
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
    tables: list[Table[Any]],
    *,
    shared: bool,
    on_spark: OnSpark | None = None,
) -> Deployed:
    """Within a transaction: store the graph, or check that it is the stored one.

    Args:
        on_spark: the query that runs the pipeline; None: the engine runs it.

    Raises:
        DeployRefused: it is another graph; the message shows each difference. Or the state of the
            pipeline is with Spark, and the engine would run it, or the other way round.
    """
    await connection.execute(statements.get("lock_pipeline"))
    # What a deploy makes belongs to all workers, whatever their logins: to the owner of the
    # sequence that they draw from.
    await connection.execute(statements.get("act_as_owner"), {"table": sequence})
    await _refuse_elsewhere(connection, statements, on_spark)
    cursor = await connection.execute(statements.get("deployed"))
    history = [
        Generation(number, msgspec.json.decode(code, type=Code))
        for number, code in await cursor.fetchall()
    ]
    cursor = await connection.execute(statements.get("removed_computations"))
    removed = {name for (name,) in await cursor.fetchall()}
    cursor = await connection.execute(statements.get("least_generation"))
    least = await cursor.fetchone()
    admission, code = admission_of(
        statements.schema,
        history,
        graph,
        nodes,
        streams,
        removed,
        least[0] if shared and least is not None else None,
        await _obstacles(connection, statements, nodes, shared=shared),
    )
    made: list[int] = []
    if not history:
        await connection.execute(statements.get("add_pipeline"), {"name": statements.schema})
    if admission.begins:
        made = await _begin(
            connection, statements, sequence, admission.generation, code, nodes, streams
        )
    if not admission.is_older:
        for table in tables:
            await _create_table(connection, statements, table)
        await keep_state_views(connection, statements, nodes)
    if on_spark is not None:
        await _begin_on_spark(connection, statements, sequence, on_spark)
    if admission.outgrown:  # last: owners' commits wait for it
        await _outgrow(connection, statements, admission)
    deployment = await _read(connection, statements, admission.generation)
    deployment.rekeyed = rekeyed(history, code)
    deployment.newly_rekeyed = admission.rekeyed
    return Deployed(deployment, not history, made)


async def _refuse_elsewhere(
    connection: AsyncConnection[Any], statements: Statements, on_spark: OnSpark | None
) -> None:
    """Refuse to run a pipeline here whose state is elsewhere."""
    name = statements.schema
    running = await (await connection.execute(statements.get("runs_on_spark"))).fetchone()
    if on_spark is None:
        if running is not None:
            raise DeployRefused(
                f"pipeline {name!r} runs on Spark, and its state is in the checkpoint "
                f"{running[0]}. Run it with --engine spark --checkpoint {running[0]}, or move it "
                "back first: millwheel move MODULE:PIPELINE --to engine"
            )
        return
    if running is not None and running[2]:
        if on_spark.is_used and running[1] != on_spark.levels:
            raise DeployRefused(
                f"the graph of pipeline {name!r} has changed since its first batch was begun with "
                f"the checkpoint {on_spark.checkpoint}. No batch was done: delete what is in the "
                "checkpoint, and give the command again"
            )
        return
    if running is not None and running[0] != on_spark.checkpoint:
        raise DeployRefused(
            f"the tables of pipeline {name!r} hold the results of a query with the checkpoint "
            f"{running[0]}, and this one has {on_spark.checkpoint}. Give that checkpoint; if it "
            f"is lost, remove the pipeline with all its results (millwheel drop {name}), and "
            "start again"
        )
    if running is not None:
        _refuse_other_levels(name, running[1], on_spark.levels)
        return
    worked = await (await connection.execute(statements.get("has_worked"))).fetchone()
    if worked is not None and worked[0]:
        raise DeployRefused(
            f"the engine has run pipeline {name!r} in this store, and its state is there: Spark "
            "would begin without it. Move it first: millwheel move MODULE:PIPELINE --to spark "
            "--checkpoint DIR"
        )


def _refuse_other_levels(name: str, before: dict[str, int], now: dict[str, int]) -> None:
    """Refuse a graph in which another operator would run a computation, without the state that it
    has."""
    changed = sorted(
        computation
        for computation in before.keys() | now.keys()
        if before.get(computation) != now.get(computation)
    )
    if changed:
        raise DeployRefused(
            f"the graph of pipeline {name!r} has changed ({', '.join(changed)}): Spark keeps the "
            "state of a computation with the operator that ran it, and these would be run by "
            "another one. Run the former code; or move it to the engine, and back with the new "
            f"code (millwheel move); or remove it with all its results (millwheel drop {name}), "
            "and start again with an empty checkpoint"
        )


async def _begin_on_spark(
    connection: AsyncConnection[Any], statements: Statements, sequence: str, on_spark: OnSpark
) -> None:
    """Note that the pipeline runs on Spark; its intervals are nobody's from now on."""
    running = await (await connection.execute(statements.get("runs_on_spark"))).fetchone()
    query = {"checkpoint": on_spark.checkpoint, "levels": Jsonb(on_spark.levels)}
    if running is not None:
        if running[2]:
            await connection.execute(statements.get("change_spark_query"), query)
    else:
        intervals = statements.table("key_interval").as_string(None)
        await connection.execute(
            statements.get("begin_spark_query"), {**query, "intervals": intervals, "low": MIN_TIME}
        )
        await connection.execute(
            statements.get("give_intervals"), {"generation": ELSEWHERE, "sequence": sequence}
        )


async def _obstacles(
    connection: AsyncConnection[Any],
    statements: Statements,
    nodes: list[NodeDeploy],
    *,
    shared: bool,
) -> Obstacles:
    """The stored obstacles to a change of key extractors. A worker that must be alone looks for
    other workers itself."""
    bundled, parked = [
        {name for (name,) in await (await connection.execute(statements.get(found))).fetchall()}
        for found in ("open_bundles", "computations_with_parked_keys")
    ]
    workers = 0
    if shared:
        cursor = await connection.execute(statements.get("count_workers"))
        workers = (await cursor.fetchone() or (0,))[0]
    return obstacles_of(nodes, bundled, parked, workers)


async def _begin(
    connection: AsyncConnection[Any],
    statements: Statements,
    sequence: str,
    number: int,
    code: Code,
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
) -> list[int]:
    """Store the first code of a generation; gives the ids of the new intervals."""
    await connection.execute(
        statements.get("begin_generation"),
        {"number": number, "code": msgspec.json.encode(code).decode()},
    )
    known = await _read(connection, statements, number)
    await _move(
        connection,
        statements,
        [node for node in nodes if node.name in known.computations],
        [stream for stream in streams if stream.name in known.streams],
    )
    return await _add(
        connection,
        statements,
        sequence,
        number,
        [node for node in nodes if node.name not in known.computations],
        [stream for stream in streams if stream.name not in known.streams],
    )


async def _outgrow(
    connection: AsyncConnection[Any], statements: Statements, admission: Admission
) -> None:
    """Take the intervals of outgrown nodes from older code. Repeats until there are none: a split
    or merge that the statement waited for has made new ones."""
    params = {"names": sorted(admission.outgrown), "generation": admission.generation}
    while True:
        cursor = await connection.execute(statements.get("outgrow_intervals"), params)
        if not cursor.rowcount:
            return


async def _read(
    connection: AsyncConnection[Any], statements: Statements, generation: int
) -> Deployment:
    cursor = await connection.execute(statements.get("deployed_computations"))
    computations = {name: id_ for id_, name in await cursor.fetchall()}
    cursor = await connection.execute(statements.get("deployed_streams"))
    streams = {name: id_ for id_, name in await cursor.fetchall()}
    cursor = await connection.execute(statements.get("list_intervals"))
    intervals = [IntervalRow(*row[:5]) for row in await cursor.fetchall()]
    cursor = await connection.execute(statements.get("deployed_here"))
    here = await cursor.fetchone()
    return Deployment(
        computations, streams, intervals, generation, is_first=here is not None and bool(here[0])
    )


async def _add(
    connection: AsyncConnection[Any],
    statements: Statements,
    sequence: str,
    generation: int,
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
) -> list[int]:
    """Store new nodes and streams; gives the ids of the new intervals."""

    async def add(name: str, params: dict[str, Any]) -> int:
        cursor = await connection.execute(statements.get(name), params)
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    made: list[int] = []
    for stream in streams:
        await connection.execute(
            statements.get("add_stream"),
            {"name": stream.name, "version": stream.version, "type": Jsonb(stream.type)},
        )
    for node in nodes:
        computation = await add(
            "add_computation",
            {
                "name": node.name,
                "kind": node.kind,
                "version": node.version,
                "state": Jsonb(node.state),
                "upstream": Jsonb(node.upstream),
            },
        )
        for number, (low, high) in enumerate(node.slots):
            interval = await add(
                "add_interval",
                {
                    "computation": computation,
                    "slot_from": low,
                    "slot_to": high,
                    "sequence": sequence,
                    "generation": generation,
                    "source": node.sources[number] if node.sources else None,
                },
            )
            made.append(interval)
    return made


async def write_first_commits(
    connection: AsyncConnection[Any],
    statements: Statements,
    commit_table: str,
    stamp: int,
    intervals: list[int],
) -> None:
    """Write the first commit of each chain: n = 0, nothing promised."""
    await connection.execute(
        statements.get("begin_chains", commits=commit_table),
        {"stamp": stamp, "low": MIN_TIME, "ids": intervals},
    )


async def _move(
    connection: AsyncConnection[Any],
    statements: Statements,
    nodes: list[NodeDeploy],
    streams: list[StreamDeploy],
) -> None:
    """Update versions, types and upstream nodes of stored nodes and streams."""
    for node in nodes:
        await connection.execute(
            statements.get("move_computation"),
            {
                "name": node.name,
                "version": node.version,
                "state": Jsonb(node.state),
                "upstream": Jsonb(node.upstream),
            },
        )
    for stream in streams:
        await connection.execute(
            statements.get("move_stream"),
            {"name": stream.name, "version": stream.version, "type": Jsonb(stream.type)},
        )


async def _create_table(
    connection: AsyncConnection[Any], statements: Statements, table: Table[Any]
) -> None:
    """Create a sink's table from its row type, or check that the existing table fits."""
    cursor = await connection.execute(
        statements.get("table_columns"), {"schema": statements.schema, "table": table.name}
    )
    existing = dict(await cursor.fetchall())
    if existing:
        wrong = [
            f"{c.name}: the table has {existing.get(c.name, 'no such column')}, the row type gives "
            f"{c.type}"
            for c in table.columns
            if not _fits(existing.get(c.name), c.type)
        ]
        if wrong:
            raise DeployRefused(
                f"table {statements.schema}.{table.name} does not fit its row type "
                f"{table.row_type.__name__}:\n  " + "\n  ".join(wrong)
            )
        if table.unique and not await _is_unique(connection, statements, table):
            use = "followed by number" if table.numbered else "replaced by key"
            raise DeployRefused(
                f"table {statements.schema}.{table.name} has no unique index on "
                f"({', '.join(table.unique)}), so rows cannot be {use}; create one"
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
    if table.unique:
        columns.append(
            sql.SQL("PRIMARY KEY ({})").format(
                sql.SQL(", ").join(map(sql.Identifier, table.unique))
            )
        )
    await connection.execute(
        composed(
            "create_table",
            table=statements.table(table.name),
            columns=sql.SQL(", ").join(columns),
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


async def _is_unique(
    connection: AsyncConnection[Any], statements: Statements, table: Table[Any]
) -> bool:
    cursor = await connection.execute(
        statements.get("unique_keys"), {"table": statements.table(table.name).as_string(None)}
    )
    return any(row[0] == sorted(table.unique) for row in await cursor.fetchall())

"""Deployment of a graph into a schema: stored the first time, compared every other time.

A type may change if its version is raised and the code has a migration from the stored version;
stored values are migrated when they are read. Added nodes begin with the records sent from then on.
Each such change begins a generation (`millwheel.store.rules.generations`, decision 28), and workers
of the previous one continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
from psycopg import AsyncConnection, AsyncCursor, sql
from psycopg.types.json import Jsonb

from millwheel.core.columns import Column
from millwheel.core.model import MIN_TIME
from millwheel.errors import DeployRefused, StoreUnavailable
from millwheel.sinks import Table
from millwheel.store.port.deploy import (
    NO_COPY,
    CopyState,
    Deployment,
    DescribedGraph,
    NodeDeploy,
    Plan,
)
from millwheel.store.port.placement import ELSEWHERE, IntervalRow
from millwheel.store.port.queries import StoredQueries
from millwheel.store.postgres.buckets import create_bucket, newest_commit_table
from millwheel.store.postgres.queries import queries_of
from millwheel.store.postgres.removal import ATTEMPTS, Removal
from millwheel.store.postgres.state_views import keep_state_views
from millwheel.store.postgres.statements import Statements, composed
from millwheel.store.rules.changes.key_changes import rekeyed
from millwheel.store.rules.changes.obstacles import Obstacles
from millwheel.store.rules.changes.table_changes import (
    AddColumn,
    AllowNull,
    Alteration,
    CastColumn,
    RenameColumn,
    StoredTable,
)
from millwheel.store.rules.code import Code, Generation, present_names
from millwheel.store.rules.generations import (
    Admission,
    Deployed,
    admit,
    planned,
    refuse_sent,
    unwritten,
)
from millwheel.store.rules.queries import refuse_other_queries


@dataclass(frozen=True)
class OnSpark:
    checkpoint: str
    levels: dict[str, int]
    """Operator by computation."""
    is_used: bool = False
    """The checkpoint is known to have something in it."""


class Deploy:
    """`sequence` is that of log ids and sequencers, quoted."""

    def __init__(
        self,
        connection: AsyncConnection[Any],
        statements: Statements,
        sequence: str,
        described: DescribedGraph,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._sequence = sequence
        self._described = described

    async def run(
        self, *, stamp: int, bucket_high: int, shared: bool, back: bool, on_spark: OnSpark | None
    ) -> Deployment:
        """Store the graph, or check that it is the stored one.

        Args:
            on_spark: the query that runs the pipeline; None: the engine runs it.

        Raises:
            DeployRefused: it is another graph; the message shows each difference. Or the state of
                the pipeline is with Spark, and the engine would run it, or the other way round.
        """
        connection, statements, nodes = self._connection, self._statements, self._described.nodes
        await self._run("lock_pipeline")
        # What a deploy makes belongs to all workers, whatever their logins: to the owner of the
        # sequence that they draw from.
        await self._run("act_as_owner", {"table": self._sequence})
        await self._refuse_elsewhere(on_spark)
        refuse_other_queries(statements.schema, await self._queries(), self._described)
        removed = await self._remove()
        deployed = await self._deployed(shared=shared, back=back)
        admission = admit(deployed, self._described)
        made: list[int] = []
        if not deployed.history:
            await self._run("add_pipeline", {"name": statements.schema})
        if admission.begins:
            made = await self._begin(admission)
        if not admission.is_older:
            for table in self._described.tables:
                if table.name not in deployed.tables:
                    await self._create_table(table)
            await keep_state_views(connection, statements, nodes)
        if on_spark is not None:
            await self._begin_on_spark(on_spark)
        if admission.outgrown:  # last: owners' commits wait for it
            await self._outgrow(admission)
            # A commit that it has waited for may have sent more.
            refuse_sent(statements.schema, await self._sent(admission.unwritten))
        deployment = await self._read(admission.generation)
        deployment.add_former_names(present_names(deployed.history, admission.generation))
        deployment.rekeyed = rekeyed(deployed.history, admission.code)
        deployment.newly_rekeyed = admission.rekeyed
        deployment.changes = admission.changes if admission.begins else ()
        deployment.removed = removed
        await self._note_change(admission.generation)
        if not deployed.history:
            await create_bucket(connection, statements, "time", 0, 0, bucket_high)
        if made:  # the first commit of each chain: n = 0, nothing promised
            newest = await newest_commit_table(connection, statements)
            params = {"stamp": stamp, "low": MIN_TIME, "ids": made}
            await self._run("begin_chains", params, commits=newest)
        for alteration in admission.alterations:  # last of all: readers of the tables wait for it
            await self._alter(alteration)
        return deployment

    async def _queries(self) -> StoredQueries:
        (row,) = await self._rows("stored_queries")
        return queries_of(row)

    async def _remove(self) -> list[int]:
        """Remove the steps that a change of queries takes away; returns their ids."""
        change = self._described.change
        if change is None or not change.removes:
            return []
        removal = Removal(
            self._statements,
            self._statements.schema,
            change.removes,
            are_replaced=change.verb == "replace",
        )
        for _ in range(ATTEMPTS):
            try:
                async with self._connection.transaction():
                    return await self._carry_out(removal)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                pass
        raise StoreUnavailable(
            f"a commit that does not end holds an interval of {', '.join(change.removes)}, maybe "
            "of a process that was stopped; nothing was changed"
        )

    async def _carry_out(self, removal: Removal) -> list[int]:
        steps = removal.run()
        text, params = next(steps)
        while True:
            cursor = await self._connection.execute(text, params)
            rows = await cursor.fetchall() if cursor.description is not None else []
            try:
                text, params = steps.send(rows)
            except StopIteration as end:
                return list(end.value)

    async def _note_change(self, generation: int) -> None:
        """Store a change of the queries, and note it in the log of operators."""
        change = self._described.change
        if change is None:
            return
        query, verb = change.query, change.verb
        columns = {
            "name": query.name, "text": query.text, "avoided": list(query.avoided),
            "steps": list(query.steps), "targets": list(query.targets), "generation": generation,
            "by": query.submitted_by,
        }  # fmt: skip
        await self._run("submit_query" if verb == "submit" else "replace_query", columns)
        request = self._statements.table("request").as_string(None)
        ((batch,),) = await self._rows("new_batch", {"table": request})
        noted = {
            "batch": batch, "actor": query.submitted_by, "reason": change.reason,
            "verb": f"{verb} query", "payload": msgspec.json.encode({"query": query.name}).decode(),
        }  # fmt: skip
        await self._run("note_request", noted)

    async def plan(self) -> Plan:
        """The differences that `run` would find."""
        return planned(await self._deployed(shared=True, back=False), self._described)

    async def _deployed(self, *, shared: bool, back: bool) -> Deployed:
        rows = await self._rows("deployed")
        history = [Generation(n, msgspec.json.decode(code, type=Code)) for n, code in rows]
        least = await self._rows("least_generation") if shared else []
        tables = {table.name: await self._stored(table) for table in self._described.tables}
        return Deployed(
            self._statements.schema,
            history,
            removed={name for (name,) in await self._rows("removed_computations")},
            tables={name: found for name, found in tables.items() if found is not None},
            obstacles=await self._obstacles(unwritten(history, self._described), shared=shared),
            least_left=least[0][0] if least else None,
            back=back,
        )

    async def _stored(self, table: Table[Any]) -> StoredTable | None:
        place = {"schema": self._statements.schema, "table": table.name}
        columns = {
            name: (kind, free) for name, kind, free in await self._rows("table_columns", place)
        }
        if not columns:
            return None
        name = self._statements.table(table.name).as_string(None)
        unique = await self._rows("unique_keys", {"table": name})
        ((size,),) = await self._rows("table_size", {"table": name})
        return StoredTable(columns, [of for (of,) in unique], size)

    async def _alter(self, alteration: Alteration) -> None:
        """`LockNotAvailable` if another session uses the table for long; then nothing changes."""
        table = self._statements.table(alteration.table)
        await self._run("wait_briefly_for_locks")
        match alteration:
            case AddColumn(_, column, default):
                added = _definition(column, default)
                statement = composed("add_column", table=table, column=added)
            case AllowNull(_, name):
                statement = composed("allow_null", table=table, column=sql.Identifier(name))
            case RenameColumn(_, former, name):
                names = {"former": sql.Identifier(former), "column": sql.Identifier(name)}
                statement = composed("rename_column", table=table, **names)
            case CastColumn(_, name, type_):
                cast = {"column": sql.Identifier(name), "type": sql.SQL(type_)}
                statement = composed("cast_column", table=table, **cast)
        try:
            await self._connection.execute(statement)
        except psycopg.errors.FeatureNotSupported as error:
            raise DeployRefused(
                f"table {alteration.table!r} cannot be changed: {error.diag.message_primary}. "
                f"{error.diag.message_detail}. Drop these objects, start again, and create them "
                "again; nothing was changed"
            ) from error

    async def _run(
        self, name: str, params: dict[str, Any] | None = None, **tables: str
    ) -> AsyncCursor[Any]:
        return await self._connection.execute(self._statements.get(name, **tables), params)

    async def _rows(self, name: str, params: dict[str, Any] | None = None) -> list[Any]:
        return await (await self._run(name, params)).fetchall()

    async def _running(self) -> tuple[Any, ...] | None:
        """See ``runs_on_spark.sql``."""
        return await (await self._run("runs_on_spark")).fetchone()

    async def _refuse_elsewhere(self, on_spark: OnSpark | None) -> None:
        """Refuse to run a pipeline here whose state is elsewhere."""
        name = self._statements.schema
        running = await self._running()
        if on_spark is None:
            if running is not None:
                raise DeployRefused(
                    f"pipeline {name!r} runs on Spark, and its state is in the checkpoint "
                    f"{running[0]}. Run it there: millwheel spark run MODULE:PIPELINE --checkpoint "
                    f"{running[0]}; or move it back first: millwheel spark return MODULE:PIPELINE"
                )
            return
        if running is not None and running[2]:
            if on_spark.is_used and running[1] != on_spark.levels:
                raise DeployRefused(
                    f"the graph of pipeline {name!r} has changed since its first batch was begun "
                    f"with the checkpoint {on_spark.checkpoint}. No batch was done: delete the "
                    "checkpoint's contents, and give the command again"
                )
            return
        if running is not None and running[0] != on_spark.checkpoint:
            raise DeployRefused(
                f"the tables of pipeline {name!r} hold the results of a query with the checkpoint "
                f"{running[0]}, and this one has {on_spark.checkpoint}. Give that checkpoint; if "
                f"it is lost, remove the pipeline with all its results (millwheel drop {name}), "
                "and start again"
            )
        if running is not None:
            _refuse_other_levels(name, running[1], on_spark.levels)
            return
        worked = await (await self._run("has_worked")).fetchone()
        if worked is not None and worked[0]:
            raise DeployRefused(
                f"the engine has run pipeline {name!r} in this store, and its state is there: "
                "Spark would begin without it. Move it first: millwheel spark take MODULE:PIPELINE "
                "--checkpoint DIR"
            )

    async def _begin_on_spark(self, on_spark: OnSpark) -> None:
        """Afterwards no worker owns the pipeline's intervals."""
        running = await self._running()
        query = {"checkpoint": on_spark.checkpoint, "levels": Jsonb(on_spark.levels)}
        if running is not None:
            if running[2]:
                await self._run("change_spark_query", query)
        else:
            intervals = self._statements.table("key_interval").as_string(None)
            await self._run("begin_spark_query", {**query, "intervals": intervals, "low": MIN_TIME})
            await self._run("give_intervals", {"generation": ELSEWHERE, "sequence": self._sequence})

    async def _obstacles(
        self, streams_less: Sequence[tuple[str, str]], *, shared: bool
    ) -> Obstacles:
        """A worker that must be alone looks for other workers itself."""
        begun, bundled, parked = [
            {name for (name,) in await self._rows(found)}
            for found in ("begun_computations", "open_bundles", "computations_with_parked_keys")
        ]
        workers = 0
        if shared:
            ((workers,),) = await self._rows("count_workers")
        return Obstacles(begun, bundled, parked, await self._sent(streams_less), workers)

    async def _sent(self, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Which computations have sent records of a stream that are not acknowledged."""
        if not pairs:
            return set()
        senders, streams = map(list, zip(*pairs, strict=True))
        params = {"senders": senders, "streams": streams}
        text = self._statements.get("sent_records", pending_productions="pending_productions")
        return set(await (await self._connection.execute(text, params)).fetchall())

    async def _begin(self, admission: Admission) -> list[int]:
        """Returns the ids of the new intervals."""
        number, code = admission.generation, admission.code
        params = {"number": number, "code": msgspec.json.encode(code).decode()}
        await self._run("begin_generation", params)
        for name, former in admission.renames.items():
            await self._run("rename_computation", {"name": name, "former": former})
        known = await self._read(number)
        for stream in self._described.streams:
            await self._run(
                "move_stream" if stream.name in known.streams else "add_stream",
                {"name": stream.name, "version": stream.version, "type": Jsonb(stream.type)},
            )
        made: list[int] = []
        for node in self._described.nodes:
            columns = {
                "name": node.name,
                "version": node.version,
                "state": Jsonb(node.state),
                "upstream": Jsonb(node.upstream),
            }
            if node.name in known.computations:
                await self._run("move_computation", columns)
            else:
                made += await self._add(node, columns, number)
        return made

    async def _add(self, node: NodeDeploy, columns: dict[str, Any], generation: int) -> list[int]:
        """Returns the ids of the intervals."""
        ((computation,),) = await self._rows("add_computation", {**columns, "kind": node.kind})
        made: list[int] = []
        for number, (low, high) in enumerate(node.slots):
            params = {
                "computation": computation,
                "slot_from": low,
                "slot_to": high,
                "sequence": self._sequence,
                "generation": generation,
                "source": node.sources[number] if node.sources else None,
            }
            ((interval,),) = await self._rows("add_interval", params)
            made.append(interval)
        return made

    async def _outgrow(self, admission: Admission) -> None:
        """Take the intervals of outgrown nodes from older code. Repeats until there are none: a
        split or merge that the statement waited for has made new ones."""
        params = {"names": sorted(admission.outgrown), "generation": admission.generation}
        while True:
            cursor = await self._run("outgrow_intervals", params)
            if not cursor.rowcount:
                return

    async def _read(self, generation: int) -> Deployment:
        computations = {name: id_ for id_, name in await self._rows("deployed_computations")}
        streams = {name: id_ for id_, name in await self._rows("deployed_streams")}
        intervals = [IntervalRow(*row[:5]) for row in await self._rows("list_intervals")]
        here = await self._rows("deployed_here")
        is_first = bool(here and here[0][0])
        (copied,) = [CopyState(*row) for row in await self._rows("copy_state")] or [NO_COPY]
        return Deployment(
            computations, streams, intervals, generation, is_first=is_first, copied=copied
        )

    async def _create_table(self, table: Table[Any]) -> None:
        columns = [_definition(column) for column in table.columns]
        if table.unique:
            columns.append(
                sql.SQL("PRIMARY KEY ({})").format(
                    sql.SQL(", ").join(map(sql.Identifier, table.unique))
                )
            )
        await self._connection.execute(
            composed(
                "create_table",
                table=self._statements.table(table.name),
                columns=sql.SQL(", ").join(columns),
            )
        )


def _definition(column: Column, default: Any = None) -> sql.Composed:
    parts = [sql.Identifier(column.name), sql.SQL(column.type)]
    if not column.nullable:
        parts.append(sql.SQL("NOT NULL"))
    if default is not None:
        parts += [sql.SQL("DEFAULT"), sql.Literal(default)]
    return sql.SQL(" ").join(parts)


def _refuse_other_levels(name: str, before: dict[str, int], now: dict[str, int]) -> None:
    """Refuse a graph that moves a computation to another operator, which would not have its
    state."""
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
            "code (millwheel spark return, and take); or remove it with all its results (millwheel "
            f"drop {name}), and start again with an empty checkpoint"
        )

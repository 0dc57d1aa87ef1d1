"""Moves a pipeline with its state from the engine to Spark, and back: the part of the store.

A pipeline is moved between records. To Spark: the injectors pause, and once no record is in flight,
one transaction takes the intervals from their workers, and puts states, timers and the positions of
the sources aside, for the query to begin with. Back: a query that has ended stands between two
batches; one transaction puts its states, timers and positions into the tables of the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from millwheel.core.clock import SystemClock
from millwheel.core.model import MAX_TIME, MIN_TIME, clamp_time
from millwheel.core.source_progress import SourceProgress
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.runtime.ownership.deploying import DISCOVERY
from millwheel.spark.engine.checkpoints import refuse_used_checkpoint
from millwheel.spark.engine.plan import SparkPlan
from millwheel.spark.engine.query_progress import QueryProgress
from millwheel.spark.staging import StagingTable
from millwheel.spark.store_sessions import Connection, statement, writing
from millwheel.store.port.placement import ELSEWHERE
from millwheel.store.postgres.queries import queries_of
from millwheel.store.postgres.statements import Statements

LOOK_SECONDS = 0.5
"""Pause between two looks whether records are in flight."""
STAGING = "staging_of_state"


class Moving:
    def __init__(self, plan: SparkPlan, store: str) -> None:
        self._plan = plan
        self._store = store
        self._name = plan.pipeline.name
        self._statements = Statements(self._name)
        self._staging = StagingTable(store, self._name, STAGING)

    # -- to Spark -------------------------------------------------------------------------

    def to_spark(self, checkpoint: str, report: Callable[[int, int], None]) -> int:
        """Pause the injectors, wait until no record is in flight, and put the state aside for
        Spark; returns the number of entries and timers.

        `report` is called while it waits, with the productions and the partitions that are in
        flight. `UsageError` if something of the pipeline cannot be moved.
        """
        refuse_used_checkpoint(checkpoint)
        with writing(self._store) as connection:
            self._refuse(connection)
        paused = self._pause()
        try:
            while (moved := self._try_to_spark(checkpoint, report)) is None:
                time.sleep(LOOK_SECONDS)
        finally:
            self._resume(paused)
        return moved

    def _pause(self) -> list[str]:
        with writing(self._store) as connection:
            rows = connection.execute(
                self._get("pause_injectors"), {"paused": True, "names": None}
            ).fetchall()
        return [name for (name,) in rows]

    def _resume(self, names: list[str]) -> None:
        """Resume the injectors; `StoreUnavailable` if they stay paused."""
        try:
            with writing(self._store) as connection:
                connection.execute(self._get("pause_injectors"), {"paused": False, "names": names})
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"the sources of pipeline {self._name!r} stay paused, because the store is away: "
                f"{error}. When it is back: millwheel resume {self._name}"
            ) from error

    def _try_to_spark(self, checkpoint: str, report: Callable[[int, int], None]) -> int | None:
        """None: records are in flight."""
        with writing(self._store) as connection, connection.transaction() as transaction:
            connection.execute(self._get("lock_pipeline"))
            self._refuse(connection)
            self._give_intervals(connection, ELSEWHERE)
            ((productions, partitions),) = connection.execute(self._own("in_flight")).fetchall()
            if productions or partitions:
                report(productions, partitions)
                raise psycopg.Rollback(transaction)
            self._fold(connection)
            kept = connection.execute(self._own("keep_start")).rowcount
            begins_with = self._offset(connection)
            for table in ("state", "timer"):
                connection.execute(statement("delete_all", target=self._table(table)))
            connection.execute(
                self._own("begin_moved"),
                {
                    "checkpoint": checkpoint,
                    "levels": Jsonb(self._plan.levels),
                    "begins_with": Jsonb(begins_with),
                    "low": begins_with["mark"],
                    "intervals": self._table("key_interval").as_string(None),
                },
            )
            return kept
        return None

    def _refuse(self, connection: Connection) -> None:
        running = connection.execute(self._get("runs_on_spark")).fetchone()
        if running is not None:
            raise UsageError(
                f"pipeline {self._name!r} runs on Spark already, with the checkpoint {running[0]}"
            )
        row = connection.execute(self._get("stored_queries")).fetchone()
        assert row is not None
        if queries := queries_of(row).queries:
            raise UsageError(
                f"pipeline {self._name!r} cannot be moved: Spark does not run its submitted "
                f"queries. Drop them first: {', '.join(one.name for one in queries)} (millwheel "
                "query drop)"
            )
        if named := [node.label for node in self._plan.graph.nodes if node.named]:
            raise UsageError(
                f"pipeline {self._name!r} cannot be moved: the ids that {', '.join(named)} has "
                "seen are kept as hashes, of which Spark's state could not be made, so repeated "
                "records would count again"
            )
        found = connection.execute(self._own("other_timers")).fetchall()
        if found:
            kinds = "; ".join(f"{computation} ({kind})" for computation, kind in found)
            raise UsageError(
                f"pipeline {self._name!r} cannot be moved: there are timers or holds that Spark "
                f"does not have: {kinds}"
            )
        ((parked,),) = connection.execute(self._own("count_parked")).fetchall()
        if parked:
            raise UsageError(
                f"pipeline {self._name!r} cannot be moved: {parked:,} of its keys are parked, "
                "which Spark does not have. Retry or discard the dead letters that stop them "
                "(millwheel dead-letters list)"
            )

    def _give_intervals(self, connection: Connection, generation: int) -> None:
        """Take all intervals from their owners: commits that they have begun are waited for, later
        ones fail (I4).

        Workers of `generation` or a later one may claim them afterwards.
        """
        connection.execute(
            self._get("give_intervals"), {"generation": generation, "sequence": self._sequence}
        )

    @property
    def _sequence(self) -> str:
        return self._table("sequence_number").as_string(None)

    def _fold(self, connection: Connection) -> None:
        rows = connection.execute(self._own("unfolded")).fetchall()
        for interval, after, through in rows:
            params = {"interval_id": interval, "after": after, "through": through}
            connection.execute(self._get("fold_states"), params)
            connection.execute(self._get("fold_timers"), params)
        connection.execute(self._own("fold_all"))

    def _offset(self, connection: Connection) -> dict[str, Any]:
        """See `millwheel.spark.engine.input`."""
        places: dict[str, Any] = {}
        promised: dict[str, int] = {}
        for injector, identity, position, first, low_watermark, *_ in connection.execute(
            self._own("source_places")
        ):
            if not self._is_partition(injector, identity):
                continue
            promised[injector] = min(promised.get(injector, MAX_TIME), low_watermark)
            if not (position or first):
                continue  # it was not read yet
            progress = SourceProgress.stored(position)
            place = {
                "position": progress.reader,
                "next": first,
                "seen": progress.event_time,
                "ended": low_watermark == MAX_TIME,
            }
            first_place = {"position": place["position"], "next": first}
            places[f"{injector} {identity}"] = {**place, "first": first_place}
        injectors = [node.name for node in self._plan.graph.nodes if node.kind == "injector"]
        mark = min(promised.get(name, MIN_TIME) for name in injectors)
        return {"mark": mark, "partitions": places}

    def _is_partition(self, injector: str, identity: str) -> bool:
        """Whether an interval of an injector is a partition of its source as it is now."""
        injection = self._plan.graph.by_name[injector].injection
        assert injection is not None
        if injection.growing is not None:
            return identity != DISCOVERY
        return any(each.identity == identity for each in injection.source.partitions())

    # -- back ------------------------------------------------------------------------------

    def prepare_return(self) -> None:
        self._staging.make(
            sql.SQL(
                "receiver text NOT NULL, key text NOT NULL, kind text NOT NULL, name text NOT "
                "NULL, value text, version smallint, due bigint, slot integer NOT NULL"
            )
        )

    def back(
        self, progress: QueryProgress, offset: dict[str, Any], watermark: int, staged: str
    ) -> int:
        """Put staged states and timers, and the positions of the sources, into the engine's tables;
        returns the number of entries and timers.

        Args:
            progress: of the query, when its state was read.
            offset: the end of the last batch.
            watermark: the low watermark of that batch.
            staged: the id with which they are staged.

        Raises:
            UsageError: the query has done another batch.
            StoreUnavailable: see `StagingTable.counted`.
        """
        stamp = SystemClock().now()
        with writing(self._store) as connection:
            connection.execute(self._get("lock_pipeline"))
            self._end(connection, progress)
            ((newest,),) = connection.execute(self._own("newest_generation")).fetchall()
            self._give_intervals(connection, newest)
            commits = self._newest_commits(connection)
            self._add_partitions(connection, offset, commits, stamp)
            attempts = self._staging.counted(connection, staged)
            values = {"staged": attempts, "stamp": stamp, "watermark": watermark}
            moved = connection.execute(self._own("return_states"), values).rowcount
            moved += connection.execute(self._own("return_timers"), values).rowcount
            places = list(self._places(offset))
            connection.execute(
                self._own("return_intervals", commits=self._table(commits)),
                {**values, "places": Jsonb(places)},
            )
            self._fold(connection)
            connection.execute(statement("delete_all", target=self._table("spark_start")))
            self._staging.drop_in(connection)
        return moved

    def _places(self, offset: dict[str, Any]) -> Iterator[dict[str, Any]]:
        now = SystemClock().now()
        for name, place in offset["partitions"].items():
            injector, _, identity = name.partition(" ")
            injection = self._plan.graph.by_name[injector].injection
            assert injection is not None
            lateness = int(injection.lateness.total_seconds() * 1e6)
            seen = place["seen"]
            promised = MIN_TIME if seen == MIN_TIME else clamp_time(seen - lateness)
            yield {
                "injector": injector,
                "identity": identity,
                "next": place["next"],
                "watermark": MAX_TIME if offset["mark"] == MAX_TIME else promised,
                "position": msgspec.to_builtins(
                    SourceProgress(
                        place["position"], seen, since=now, sent_since=now, ended=place["ended"]
                    )
                ),
            }

    def _end(self, connection: Connection, progress: QueryProgress) -> None:
        """End the query, as of the batch of the read state: a concurrent batch fails, or
        this."""
        ended = connection.execute(
            self._own("end_query"), {"number": progress.number, "batch": progress.batch}
        )
        if ended.rowcount != 1:
            raise UsageError(
                f"the query of pipeline {self._name!r} still runs: it has made progress since its "
                "state was read, and nothing was moved. End it first (Ctrl-C, or SIGTERM)"
            )

    def _add_partitions(
        self,
        connection: Connection,
        offset: dict[str, Any],
        commits: str,
        stamp: int,
    ) -> None:
        """Make the intervals of partitions that were found while the pipeline ran on Spark."""
        known: set[tuple[str, str]] = set()
        searches: dict[str, tuple[int, int]] = {}
        """Interval and sequencer of each injector's search for partitions."""
        for injector, identity, *_, interval, sequencer in connection.execute(
            self._own("source_places")
        ):
            known.add((injector, identity))
            if identity == DISCOVERY:
                searches[injector] = interval, sequencer
        made = []
        for name in offset["partitions"]:
            injector, _, identity = name.partition(" ")
            if (injector, identity) in known:
                continue
            discovery, sequencer = searches[injector]
            found = connection.execute(
                self._get("add_partition"),
                {
                    "discovery": discovery,
                    "sequencer": sequencer,
                    "sequence": self._sequence,
                    "source": identity,
                },
            ).fetchall()
            made += [interval for interval, _ in found]
        connection.execute(
            self._statements.get("begin_chains", commits=commits).encode(),
            {"stamp": stamp, "low": MIN_TIME, "ids": made},
        )

    def _newest_commits(self, connection: Connection) -> str:
        ((bucket,),) = connection.execute(self._get("newest_time_bucket")).fetchall()
        return f"commit_record_{bucket}"

    # -- statements ------------------------------------------------------------------------

    def _table(self, name: str) -> sql.Identifier:
        return sql.Identifier(self._name, name)

    def _get(self, name: str) -> bytes:
        return self._statements.get(name).encode()

    def _own(self, name: str, **further: sql.Composable) -> sql.Composed:
        return self._staging.statement(f"moving/{name}", **further)

"""The views people read: what they show, and that they explain themselves."""

from __future__ import annotations

import dataclasses
import enum
import json
import random
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import Computation, Context, ListState, MapState, Pipeline, Record, Stream
from millwheel.core.clock import VirtualClock
from millwheel.core.model import EPOCH, MAX_TIME, MIN_TIME, from_micros, record_id
from millwheel.errors import DeployRefused, GraphError
from millwheel.runtime.engine import Engine
from millwheel.sinks import Discard, Table
from millwheel.state import StateLayout
from millwheel.store.console.selection import select
from millwheel.store.console.views import VIEWS, install_views
from millwheel.store.port.deploy import DescribedGraph, NodeDeploy
from millwheel.store.port.state_shape import CollectionShape, StateShape, state_shape
from millwheel.store.postgres.schema import metadata
from millwheel.store.postgres.state_views import CASTS, MOST_VERSION, Versions
from millwheel.testing import inject
from millwheel.testing.script import Script
from tests.support.store_sites import (
    BUCKET_HIGH,
    COUNT,
    LINES,
    SECOND,
    START,
    TOTALS,
    WORDS,
    Counted,
    Owner,
    PostgresSite,
    deploy,
)

pytestmark = pytest.mark.newest

SELF_EXPLAINING = {
    "id", "interval_id", "n", "name", "pid", "started_at", "heartbeat_at", "error", "traceback",
    "attempts", "sequencer", "input_watermark", "version", "stream", "tag", "kind", "entry",
    "value", "hold", "computation", "log", "reason",
}  # fmt: skip
"""Columns of tables that need no comment, or have it where the same thing is kept folded."""


async def _comments(
    site: PostgresSite, kind: str
) -> dict[str, tuple[str | None, dict[str, str | None]]]:
    """Per table (``r``) or view (``v``): its comment and those of its columns."""
    rows = await site.query(
        "SELECT c.relname, obj_description(c.oid, 'pg_class'), a.attname, "
        "col_description(c.oid, a.attnum) FROM pg_class AS c "
        "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "WHERE c.relnamespace = %s::regnamespace AND c.relkind = %s ORDER BY 1, a.attnum",
        site.schema.name,
        kind,
    )
    found: dict[str, tuple[str | None, dict[str, str | None]]] = {}
    for relation, comment, column, column_comment in rows:
        found.setdefault(relation, (comment, {}))[1][column] = column_comment
    return found


async def test_every_view_and_each_of_its_columns_has_a_comment(postgres: PostgresSite) -> None:
    found = await _comments(postgres, "v")
    assert set(found) == set(VIEWS)
    for view, (comment, columns) in found.items():
        assert comment, view
        assert [name for name, text in columns.items() if not text] == [], view


async def test_every_table_has_a_comment_and_columns_that_are_understood(
    postgres: PostgresSite,
) -> None:
    found = await _comments(postgres, "r")
    found.pop("alembic_version")
    assert set(found) == set(metadata.tables)
    for table, (comment, columns) in found.items():
        assert comment, table
        silent = {name for name, text in columns.items() if not text}
        assert silent <= SELF_EXPLAINING, (table, silent - SELF_EXPLAINING)


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (0, EPOCH),
        (-1, EPOCH - timedelta(microseconds=1)),
        (START, from_micros(START)),
        (MIN_TIME + 1, from_micros(MIN_TIME + 1)),
        (MAX_TIME - 1, from_micros(MAX_TIME - 1)),
    ],
)
async def test_times_are_exact(postgres: PostgresSite, micros: int, shown: datetime) -> None:
    rows = await postgres.query("SELECT {f}(%s)", micros, f="micros_to_time")
    assert rows == [(shown,)]


async def test_the_ends_of_time_are_infinite(postgres: PostgresSite) -> None:
    query = "SELECT {f}(%s) = '-infinity', {f}(%s) = 'infinity', {f}(NULL) IS NULL"
    assert await postgres.query(query, MIN_TIME, MAX_TIME, f="micros_to_time") == [(True,) * 3]


async def test_record_ids_are_those_of_the_engine(postgres: PostgresSite) -> None:
    for log, seq in ((1, 0), (7, 2**40 + 5), (2**62, 2**63 - 1)):
        rows = await postgres.query("SELECT {f}(%s, %s)", log, seq, f="record_id")
        assert rows == [(uuid.UUID(bytes=record_id(log, seq)),)]


async def test_states_show_what_was_committed(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    row_ = owner.interval_of("é")
    commit = owner.commit(row_)
    commit.states = [
        owner.state("é", {"n": 1, "list": [1.5, None]}),
        owner.state("é", "gone", "m/x"),
        owner.state("é", [1], "m/y"),
    ]
    await owner.write(commit)
    commit = owner.commit(row_)
    commit.states = [owner.state("é", None, "m/x"), owner.state("é", {"n": 2})]
    await owner.write(commit)
    link = owner.links[row_.id]
    expected: list[tuple[Any, ...]] = [
        ("count", "é", "", {"n": 2}, 2),
        ("count", "é", "m/y", [1], 2),
    ]
    for through in (0, 1, 2):
        if through:
            assert await postgres.store.fold(row_.id, link.sequencer, through - 1, through)
        rows = await postgres.query(
            "SELECT computation, key, entry, value, version FROM {states} ORDER BY entry",
            states="states",
        )
        assert rows == [(c, k, e, v, version) for c, k, e, v, version in expected]


async def test_timers_show_their_times(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit()
    commit.timers = [
        owner.timer("a", START, "tick", "wall"),
        owner.timer(("a", 2), MAX_TIME - 1),
    ]
    await owner.write(commit)
    rows = await postgres.query(
        "SELECT key, kind, tag, due, hold = 'infinity' FROM {timers} ORDER BY tag", timers="timers"
    )
    assert rows == [
        (["a", 2], "watermark", "", from_micros(MAX_TIME - 1), True),
        ("a", "wall", "tick", from_micros(START), False),
    ]


async def test_pending_productions_leave_out_what_is_acknowledged(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    first = owner.intervals[0]
    commit = owner.commit()
    commit.productions = [owner.production("é", {"v": n}) for n in range(9)]
    await owner.write(commit)
    log = owner.log(first)
    acked = msgspec.json.encode({str(log): [2, [[4, 5], [7, 7]]]})
    await owner.write(owner.commit(first, acked=acked))
    rows = await postgres.query(
        "SELECT sender, receiver, stream, id, log, key, value, timestamp, hold, produced_at, seq "
        "FROM {p} ORDER BY seq",
        p="pending_productions",
    )
    assert [r[-1] for r in rows] == [2, 3, 6, 8]
    assert rows[0][:-1] == (
        "count",
        "count",
        "totals",
        uuid.UUID(bytes=record_id(log, 2)),
        log,
        "é",
        {"v": 2},
        from_micros(commit.productions[2].micros),
        from_micros(commit.productions[2].hold),
        from_micros(commit.stamp),
    )
    await owner.claim(first)
    assert len(await postgres.pending()) == 4  # the log lives on under its next owner
    await postgres.store.retire_logs([log])
    assert await postgres.pending() == []


async def test_watermarks_are_the_least_of_the_intervals(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    first, second = owner.intervals
    await owner.write(owner.commit(first, input_watermark=START + 5, low_watermark=START + 3))
    rows = await postgres.query(
        "SELECT computation, input_watermark = '-infinity', intervals FROM {w} ORDER BY 1",
        w="watermarks",
    )
    assert rows == [("count", True, 2), ("lines", True, 1)]
    await owner.write(owner.commit(second, input_watermark=START + 4, low_watermark=START + 4))
    rows = await postgres.query(
        "SELECT kind, input_watermark, low_watermark, last_commit FROM {w} "
        "WHERE computation = 'count'",
        w="watermarks",
    )
    assert rows == [
        ("computation", from_micros(START + 4), from_micros(START + 3), from_micros(owner.stamp))
    ]


async def _holder(site: PostgresSite, computation: str) -> tuple[Any, ...]:
    rows = await site.query(
        "SELECT holder, what, key, CASE WHEN isfinite(held_at) THEN held_at END, held_at::text "
        "FROM {h} WHERE computation = %s",
        computation,
        h="watermark_holders",
    )
    assert len(rows) == 1
    return rows[0]


async def test_what_holds_a_watermark_is_named(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    everything = {"input_watermark": START + 100 * SECOND, "low_watermark": START + 50 * SECOND}
    await owner.write(owner.commit(owner.injector, **everything))
    await owner.write(owner.commit(**everything))
    holder, what, _, held_at, _ = await _holder(postgres, "count")
    assert (holder, what) == ("input", "waits for lines")
    assert held_at == from_micros(START + 50 * SECOND)

    commit = owner.commit(**everything)
    commit.timers = [owner.timer("late", START + 40 * SECOND - 1, "close")]
    commit.timers.append(owner.timer("wall", START, "no event time", "wall"))
    await owner.write(commit)
    holder, what, key, held_at, _ = await _holder(postgres, "count")
    assert (holder, key, held_at) == ("timer", "late", from_micros(START + 40 * SECOND))
    assert what.startswith('key "late": timer close, due ')

    commit = owner.commit(**everything)
    production, quicker = owner.production("slow", 1), owner.production("quick", 2)
    production.hold, quicker.hold = START + 30 * SECOND, START + 31 * SECOND
    commit.productions = [quicker, production]
    await owner.write(commit)
    holder, what, key, held_at, _ = await _holder(postgres, "count")
    assert (holder, key, held_at) == ("record", "slow", from_micros(START + 30 * SECOND))
    assert str(uuid.UUID(bytes=record_id(owner.log(), production.seq))) in what

    holder, what, *_ = await _holder(postgres, "lines")
    assert (holder, what) == ("source", "file lines.txt: newest seen time less the lateness")
    await owner.write(owner.commit(owner.injector, position=b'{"held_by": 17}', **everything))
    holder, what, *_ = await _holder(postgres, "lines")
    assert (holder, what) == ("source", "row 17 of file lines.txt, not acknowledged")


@pytest.mark.parametrize("seed", range(3))
async def test_the_least_hold_is_found_among_folded_changed_and_late_timers(
    postgres: PostgresSite, seed: int
) -> None:
    owner = await Owner.take(postgres.store)
    choice = random.Random(seed)
    end = {"input_watermark": START + 1000 * SECOND, "low_watermark": START + 900 * SECOND}
    await owner.write(owner.commit(owner.injector, **end))
    folded = {row.id: 0 for row in owner.intervals}
    for _ in range(24):
        row = choice.choice(owner.intervals)
        keys = [f"k{n}" for n in range(16) if owner.interval_of(f"k{n}") is row]
        commit = owner.commit(row, **end)
        for key in choice.sample(keys, min(len(keys), 4)):
            due = choice.choice([None, START + choice.randrange(10) * SECOND])
            timer = owner.timer(key, due, "x", choice.choice(["watermark", "hold"]))
            late = choice.choice([0, 0, 5 * SECOND])  # it was set when event time was past it
            commit.timers = [*commit.timers, timer._replace(hold=due and due + late)]
        await owner.write(commit)
        if choice.random() < 0.5:
            link = owner.links[row.id]
            assert await postgres.store.fold(row.id, link.sequencer, folded[row.id], link.n)
            folded[row.id] = link.n
        least = await postgres.query(
            "SELECT min(hold) FROM {t} WHERE computation = 'count'", t="timers"
        )
        shown = await postgres.query(
            "SELECT held_at FROM {h} WHERE computation = 'count' AND holder IN ('timer', 'state')",
            h="watermark_holders",
        )
        assert shown == [row for row in least if row[0] is not None]


async def test_a_parked_key_is_named_if_it_holds(postgres: PostgresSite) -> None:
    """It does not once the low watermark has gone past it: its computation parks without a hold."""
    owner = await Owner.take(postgres.store)
    ends = {"input_watermark": START + 100 * SECOND, "low_watermark": START + 50 * SECOND}
    await owner.write(owner.commit(owner.injector, **ends))
    commit = owner.commit(**(ends | {"low_watermark": START + 5 * SECOND}))
    letter = owner.dead_letter(1)._replace(ts=START + 4 * SECOND)
    commit.dead_letters = [
        letter._replace(parked="failed", watermark=0, hold=START + 5 * SECOND),
        letter._replace(parked="waiting", watermark=0, hold=START + 6 * SECOND),
    ]
    commit.timers = [owner.timer("b", START + 40 * SECOND)]
    await owner.write(commit)
    holder, what, key, held_at, _ = await _holder(postgres, "count")
    assert (holder, key, held_at) == ("parked", "key 1", from_micros(START + 5 * SECOND))
    assert what.startswith('key "key 1": parked since a record failed')
    await owner.write(owner.commit(**(ends | {"low_watermark": START + 7 * SECOND})))
    assert (await _holder(postgres, "count"))[0] == "timer"


async def test_a_partition_is_named_before_the_discovery_that_promises_no_more(
    postgres: PostgresSite,
) -> None:
    """The discovery holds since no time: behind it, no alert on the age of a hold would fire."""
    lines = replace(LINES, slots=[(0, 1), (1, 2)], sources=["discovery of partitions", "a file"])
    owner = await Owner.take(postgres.store, await deploy(postgres.store, lines=lines))
    ends = {"input_watermark": START + 100 * SECOND, "low_watermark": START + 50 * SECOND}
    position = f'{{"held_by": 17, "since": {START}}}'.encode()
    discovery, partition = (
        row for row in owner.deployment.intervals if row.computation != owner.computation
    )
    await owner.write(owner.commit(partition, position=position, **ends))
    await owner.write(owner.commit(discovery, position=b'{"held_by": null}', **ends))
    holder, what, *_ = await _holder(postgres, "lines")
    assert (holder, what) == ("source", "row 17 of a file, not acknowledged")
    first = {**ends, "low_watermark": START + 40 * SECOND}
    await owner.write(owner.commit(discovery, position=b'{"held_by": null}', **first))
    _, what, *_ = await _holder(postgres, "lines")
    assert what == "discovery of partitions: newest seen time less the lateness"


async def test_no_server_compiles_a_look_by_default(postgres: PostgresSite) -> None:
    """To compile the parts of `watermark_holders` takes 43 s."""
    await deploy(postgres.store)
    await postgres.query(
        "INSERT INTO {t} (slot, computation, key, kind, tag, due, hold, set_at) "
        "SELECT n % 65536, c.id, n::text, 'watermark', '', n, n, n "
        "FROM generate_series(1, 100000) AS n, {c} AS c WHERE c.name = 'count'",
        t="timer", c="computation",
    )  # fmt: skip
    await postgres.query("ANALYZE {t}", t="timer")
    for view in ("watermark_holders", "watermarks", "source_partitions", "workers", "fold_lag"):
        cursor = await postgres.reader.execute(
            postgres.schema.compose("EXPLAIN (FORMAT JSON) SELECT * FROM {v}", v=view)
        )
        found = await cursor.fetchone()
        assert found is not None
        assert found[0][0]["Plan"]["Total Cost"] < 100_000, f"{view}: jit_above_cost, by default"
    inside = await postgres.query(
        "SELECT proconfig FROM pg_proc WHERE oid = %s::regprocedure",
        f'"{postgres.schema.name}".find_holders()',
    )
    assert inside == [(["jit=off"],)], "its statement is planned when it is called"


async def test_who_only_waits_is_followed_to_what_it_waits_for(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    everything = {"input_watermark": START + 100 * SECOND, "low_watermark": START + 50 * SECOND}
    position = f'{{"held_by": 17, "since": {START}}}'.encode()
    await owner.write(owner.commit(owner.injector, position=position, **everything))
    await owner.write(owner.commit(**everything))
    rows = await postgres.query(
        "SELECT what, path, root, extract(epoch FROM age)::float8 > 1000000 FROM {h} "
        "WHERE computation = 'count'",
        h="watermark_holders",
    )
    root = "row 17 of file lines.txt, not acknowledged"
    assert rows == [("waits for lines", ["count", "lines"], root, True)]
    commit = owner.commit(**everything)
    commit.timers = [owner.timer("late", START + 40 * SECOND - 1, "close")]
    await owner.write(commit)
    rows = await postgres.query(
        "SELECT path, root = what, age > interval '0' FROM {h} WHERE computation = 'count'",
        h="watermark_holders",
    )
    assert rows == [(["count"], True, True)], "its own timer, and since when it is set"


@pytest.mark.parametrize(("due", "shown"), [(MIN_TIME - 1, "-infinity"), (MAX_TIME, "infinity")])
async def test_a_holder_at_the_end_of_time_is_shown(
    postgres: PostgresSite, due: int, shown: str
) -> None:
    owner = await Owner.take(postgres.store)
    ends = {"input_watermark": MAX_TIME, "low_watermark": MAX_TIME}
    await owner.write(owner.commit(owner.injector, **ends))
    commit = owner.commit(
        **{**ends, "low_watermark": START}
    )  # nothing holds one at the end of time
    commit.timers = [owner.timer("a", due)]
    await owner.write(commit)
    assert (await _holder(postgres, "count"))[-1] == shown


async def test_a_fresh_pipeline_waits_for_its_source(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store)
    assert (await _holder(postgres, "count"))[0] == "input"
    assert (await _holder(postgres, "lines"))[0] == "source"


async def test_workers_show_what_they_hold(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    await postgres.store.heartbeat(owner.worker, 30.0, {"backlog": 3})
    idle = str(uuid.uuid4())
    await postgres.store.register_worker(idle, 30.0)
    await postgres.store.stop_worker(idle)
    rows = await postgres.query(
        "SELECT id::text, intervals, stopped, load, lease_until > now() FROM {w} "
        "ORDER BY intervals DESC",
        w="workers",
    )
    assert rows == [(owner.worker, 3, False, {"backlog": 3}, True), (idle, 0, True, {}, False)]


async def test_source_partitions_show_positions_and_what_waits(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit(owner.injector)
    (log,) = [log.id for log in owner.claims[owner.injector.id].logs]
    commit.intervals[0].acked = msgspec.json.encode({log: [40, []]})
    commit.intervals[0].position = msgspec.json.encode(
        {"reader": {"next": 41}, "held_by": 40, "since": START, "ended": False}
    )
    await owner.lane.commit(commit)
    flow = {
        "pending": 3,
        "cap": 9,
        "latency": 0.5,
        "target": None,
        "lag_rows": 7,
        "lag_bytes": None,
        "log_start": 12,
        "log_end": 50,
    }
    await postgres.store.heartbeat(
        owner.worker, 60.0, {"intervals": {str(owner.injector.id): {"flow": flow}}}
    )
    ((*found, has_lag, owner_id),) = await postgres.query(
        "SELECT injector, partition, next, acked, pending, lag_rows, lag_bytes, log_start, "
        "log_end, acknowledged_in, held_by, ended, lag IS NOT DISTINCT FROM behind, owner "
        "FROM {v}",
        v="source_partitions",
    )
    assert found == ["lines", "file lines.txt", "41", 40, 3, 7, None, 12, 50, 0.5, "40", False]
    assert has_lag
    assert str(owner_id) == owner.worker
    await postgres.store.heartbeat(
        owner.worker,
        60.0,
        {"intervals": {str(owner.injector.id): {"flow": {**flow, "pending": 0, "lag_rows": 0}}}},
    )
    rows = await postgres.query("SELECT lag FROM {v}", v="source_partitions")
    assert rows == [(timedelta(0),)], "nothing waits, however old the last row is"


async def test_sinks_show_the_bundle_that_is_delivered(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    low, high = owner.intervals
    for interval, bundle in (
        (low, {"number": 5}),
        (high, {"number": 9, "open": ["00", "01"], "previous": 7, "at": START}),
    ):
        commit = owner.commit(interval)
        commit.intervals[0].position = msgspec.json.encode({"bundle": bundle})
        await owner.lane.commit(commit)
    rows = await postgres.query(
        "SELECT sink, scope, acked, open, open_records, open_since FROM {v} ORDER BY scope",
        v="sinks",
    )
    assert rows == [
        ("count", low.id, 5, None, None, None),
        ("count", high.id, 7, 9, 2, from_micros(START)),
    ]


async def test_dead_letters_show_what_was_given_up_and_why(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    letter = owner.dead_letter(1)
    bare = letter._replace(record_id=None, key=None, ts=None, value="no json", stream="timer")
    commit = owner.commit()
    commit.dead_letters = [letter, bare]
    await owner.write(commit)
    rows = await postgres.query(
        "SELECT computation, stream, key, value, timestamp, place, error, attempts, given_up_at, "
        "record_id FROM {d} ORDER BY id",
        d="dead_letters",
    )
    stamp = from_micros(letter.stamp)
    assert letter.record_id is not None
    assert rows == [
        ("count", "words", "key 1", letter.value, stamp, letter.place, letter.error, 3, stamp,
         uuid.UUID(bytes=letter.record_id)),
        ("count", "timer", None, "no json", None, letter.place, letter.error, 3, stamp, None),
    ]  # fmt: skip


async def test_views_join_with_the_users_own_tables_at_one_snapshot(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    await postgres.query("CREATE TABLE {mine} (word text, grade integer)", mine="mine")
    await postgres.query("INSERT INTO {mine} VALUES (%s, 1)", "a", mine="mine")
    commit = owner.commit()
    commit.states = [owner.state("a", {"n": 5})]
    commit.statements = [("UPDATE mine SET grade = 2", ())]
    await owner.write(commit)
    rows = await postgres.query(
        "SELECT m.grade, s.value -> 'n' FROM {mine} AS m JOIN {states} AS s "
        "ON s.key = to_jsonb(m.word)",
        mine="mine",
        states="states",
    )
    assert rows == [(2, 5)]


# -- views of one computation's state ----------------------------------------------------------


class Place(msgspec.Struct):
    x: int = 0


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Everything(msgspec.Struct):
    """A field of each kind; `key` and `version` are what two columns are called anyway."""

    word: str = ""
    minutes: int = 0
    usual: float = 0.0
    calm: bool = True
    since: datetime | None = None
    zoned: Annotated[datetime, msgspec.Meta(tz=True)] = EPOCH
    day: date | None = None
    place: Place = msgspec.field(default_factory=Place)
    tags: list[str] = msgspec.field(default_factory=list)
    kind: Kind = Kind.A
    mood: Literal["calm", "loud"] | None = None
    level: Literal[1, "one"] = 1
    size: int | float = 0
    camel_case: int = msgspec.field(default=0, name="camelCase")
    key: str = ""
    version: int = 0
    anything: Any = None
    seen: MapState[str, int] = msgspec.field(default_factory=MapState)
    places: MapState[tuple[str, int], Place] = msgspec.field(default_factory=MapState)
    queue: ListState[datetime] = msgspec.field(default_factory=ListState)


def shape_of(state_type: Any) -> StateShape | None:
    return state_shape(StateLayout(state_type, owner="count", limit=1 << 20))


def counting(state_type: Any, *, version: int = 2) -> NodeDeploy:
    """The computation `count` with a state of this type."""
    layout: StateLayout[Any] = StateLayout(state_type, owner="count", limit=1 << 20)
    before = list(range(1, version))
    return replace(
        COUNT,
        version=version,
        state=layout.fingerprint,
        migrates_from=before,
        shape=state_shape(layout),
    )


async def stateful(site: PostgresSite, state_type: Any) -> Owner:
    return await Owner.take(site.store, await deploy(site.store, count=counting(state_type)))


async def columns_of(site: PostgresSite, view: str) -> list[tuple[Any, ...]]:
    """Name and type of each column, in order; empty if there is no such view."""
    return await site.query(
        "SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute AS a "
        "JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = %s::regnamespace "
        "AND c.relname = %s AND a.attnum > 0 ORDER BY a.attnum",
        site.schema.name,
        view,
    )


async def state_views(site: PostgresSite) -> list[str]:
    rows = await site.query(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace "
        "AND starts_with(relname::text, 'state_of_') ORDER BY 1",
        site.schema.name,
    )
    return [name for (name,) in rows]


async def identities(site: PostgresSite) -> list[Any]:
    """What tells a view from another one made in its place, or changed."""
    return await site.query(
        "SELECT c.relname, c.oid, c.xmin, d.xmin FROM pg_class AS c JOIN pg_rewrite AS d "
        "ON d.ev_class = c.oid WHERE starts_with(c.relname::text, 'state_of_') "
        "AND c.relnamespace = %s::regnamespace ORDER BY 1",
        site.schema.name,
    )


async def test_a_state_has_a_typed_column_for_each_field(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, Everything)
    assert await state_views(postgres) == [
        "state_of_count", "state_of_count_places", "state_of_count_queue", "state_of_count_seen"
    ]  # fmt: skip
    assert await columns_of(postgres, "state_of_count") == [
        ("key", "jsonb"), ("word", "text"), ("minutes", "bigint"), ("usual", "double precision"),
        ("calm", "boolean"), ("since", "timestamp with time zone"),
        ("zoned", "timestamp with time zone"), ("day", "date"), ("place", "jsonb"),
        ("tags", "jsonb"), ("kind", "text"), ("mood", "text"), ("level", "jsonb"),
        ("size", "jsonb"), ("camel_case", "bigint"), ("key_2", "text"), ("version_2", "bigint"),
        ("anything", "jsonb"), ("version", "smallint"),
    ]  # fmt: skip
    moment = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
    state = Everything(
        "é", 1, 0.5, False, moment, moment, date(2024, 1, 1), Place(3), ["a"], Kind.B
    )
    state.key, state.version, state.camel_case, state.mood = "own", 9, 4, "loud"
    layout: StateLayout[Everything] = StateLayout(Everything, owner="count", limit=1 << 20)
    commit = owner.commit()
    commit.states = [
        owner.state("x", msgspec.json.decode(layout.encode(state))),
        owner.state(("x", 1), msgspec.json.decode(layout.encode(Everything()))),
        owner.state(7, {}),
        owner.state("only a map", 1, 'seen/"a"'),
    ]
    await owner.write(commit)
    fields = (
        "é", 1, 0.5, False, moment, moment, date(2024, 1, 1), {"x": 3}, ["a"], "b", "loud", 1, 0, 4,
        "own", 9, None,
    )  # fmt: skip
    empty: tuple[Any, ...] = (
        "",
        0,
        0.0,
        True,
        None,
        EPOCH,
        None,
        {"x": 0},
        [],
        "a",
        None,
        1,
        0,
        0,
        "",
        0,
        None,
    )
    rows = await postgres.query("SELECT * FROM {v} ORDER BY key", v="state_of_count")
    assert rows == [("x", *fields, 2), (7, *(None,) * 17, 2), (["x", 1], *empty, 2)]


class Exact(msgspec.Struct):
    """Fields that JSON has as text."""

    price: Decimal | None = None
    tag: UUID | None = None
    raw: bytes | None = None
    day: date | None = None
    at: time | None = None
    took: timedelta | None = None
    by_day: MapState[str, Decimal] = msgspec.field(default_factory=MapState)


async def test_what_json_has_as_text_has_a_type_of_its_own(postgres: PostgresSite) -> None:
    """And what is no value of it is NULL, never an error."""
    owner = await stateful(postgres, Exact)
    types = [type_ for _, type_ in await columns_of(postgres, "state_of_count")]
    assert types == ["jsonb", "numeric", "uuid", "bytea", "date", "text", "text", "smallint"]
    tag = UUID(int=7)
    state = Exact(
        Decimal("-1E+3"), tag, b"\xff\x00'", date(2024, 2, 29), time(1, 2, 3), timedelta(days=2)
    )
    layout: StateLayout[Exact] = StateLayout(Exact, owner="count", limit=1 << 20)
    wrong = [
        {"price": "NaN", "tag": "no", "raw": "a", "day": "2024-02-30"},
        {
            "price": "1e1000000",
            "tag": str(tag) + "0",
            "raw": "=AAA",
            "day": "2024-02-01T00:00:00Z",
        },
        {"price": "", "tag": 1, "raw": True, "day": []},
        {"price": "-Infinity", "tag": "", "raw": "AA\nAA", "day": "0000-00-00"},
    ]
    commit = owner.commit()
    commit.states = [owner.state("a", msgspec.json.decode(layout.encode(state)))]
    commit.states += [owner.state(f"b{n}", value) for n, value in enumerate(wrong)]
    commit.states += [
        owner.state("c", {"price": 12.5, "raw": ""}),
        owner.state("a", "1.10", 'by_day/"2024-02-29"')
    ]  # fmt: skip
    await owner.write(commit)
    rows = await postgres.query("SELECT * FROM {v} ORDER BY key", v="state_of_count")
    assert rows == [
        ("a", Decimal(-1000), tag, b"\xff\x00'", date(2024, 2, 29), "01:02:03", "P2D", 2),
        *((f"b{n}", *(None,) * 6, 2) for n in range(4)),
        ("c", Decimal("12.5"), None, b"", None, None, None, 2),
    ]
    by_day = await postgres.query("SELECT entry, value FROM {v}", v="state_of_count_by_day")
    assert by_day == [("2024-02-29", Decimal("1.10"))]


async def test_no_value_in_json_is_an_error(postgres: PostgresSite) -> None:
    """One row of an older version of a state's type must not fail the query of all."""
    await stateful(postgres, Exact)
    days = ["0000-00-00", "0000-01-01", "2023-02-29", "9999-12-31", "2024-13-01"]
    texts = [*days, *(f"{day}T00:00:00Z" for day in days), "", "nan", "1e999", "=", "a" * 2000]
    values = [
        *map(json.dumps, texts),
        "1e400",
        "1e-400",
        "-0.0",
        "1e30",
        "[]",
        "{}",
        "null",
        "true",
    ]
    for value, function in product(values, CASTS.values()):
        await postgres.query("SELECT {f}(%s::jsonb)", value, f=function)


async def test_a_state_view_sees_no_fold(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, Place)
    row_ = owner.interval_of("a")
    for number in (1, 2):
        commit = owner.commit(row_)
        commit.states = [owner.state("a", {"x": number})]
        await owner.write(commit)
    for through in (0, 1, 2):
        if through:
            sequencer = owner.links[row_.id].sequencer
            assert await postgres.store.fold(row_.id, sequencer, through - 1, through)
        rows = await postgres.query("SELECT key, x FROM {v}", v="state_of_count")
        assert rows == [("a", 2)]


async def test_collections_have_views_of_their_own(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, Everything)
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    commit = owner.commit()
    commit.states = [
        owner.state("k", 5, 'seen/"a/b"'),
        owner.state("k", 6, 'seen/"1"'),
        owner.state("k", {"x": 1}, 'places/["a",1]'),
        owner.state("k", [0, 2], "queue/#"),
        owner.state("k", "2024-01-01T00:00:00Z", "queue/000000000000000"),
        owner.state("k", "2024-01-01T00:00:00", "queue/000000000000001"),
        owner.state("gone", 1, 'seen/"a"'),
        owner.state("k", {"word": "plain"}),
    ]
    await owner.write(commit)
    commit = owner.commit()
    commit.states = [owner.state("gone", None, 'seen/"a"')]
    await owner.write(commit)
    expected = {
        "seen": [("k", "1", 6, 2), ("k", "a/b", 5, 2)],
        "places": [("k", ["a", 1], {"x": 1}, 2)],
        "queue": [("k", 0, moment, 2), ("k", 1, moment, 2)],
    }
    for field, rows in expected.items():
        found = await postgres.query(
            "SELECT * FROM {v} ORDER BY entry", v=f"state_of_count_{field}"
        )
        assert found == rows
    types = [type_ for _, type_ in await columns_of(postgres, "state_of_count_queue")]
    assert types == ["jsonb", "bigint", "timestamp with time zone", "smallint"]
    # A condition may be tried on rows that the view leaves out.
    query = "SELECT value FROM {v} WHERE entry = 1 AND value > '2023-01-01'"
    assert await postgres.query(query, v="state_of_count_queue") == [(moment,)]


async def test_every_state_view_and_each_of_its_columns_has_a_comment(
    postgres: PostgresSite,
) -> None:
    await stateful(postgres, Everything)
    found = await _comments(postgres, "v")
    assert len(found) == len(VIEWS) + 4
    for view, (comment, columns) in found.items():
        assert comment, view
        assert all(columns.values()), view
    comment, columns = found["state_of_count"]
    assert comment is not None
    assert "is below 2 waits for a migration" in comment
    assert "default" in (columns["minutes"] or "")
    assert "field version of" in (columns["version_2"] or "")


V = TypeVar("V")


class Box(msgspec.Struct, Generic[V]):
    inside: V | None = None


@dataclasses.dataclass
class Data:
    word: str = ""


class Typed(TypedDict, total=False):
    word: str


class Listed(msgspec.Struct, array_like=True):
    x: int = 0


@pytest.mark.parametrize(
    ("state_type", "shape"),
    [
        (None, None),
        (int, StateShape((), "bigint")),
        (dict[str, int], StateShape((), "jsonb")),
        (Listed, StateShape((), "jsonb")),
        (Data, StateShape((("word", "text"),))),
        (Typed, StateShape((("word", "text"),))),
        (Box[int], StateShape((("inside", "bigint"),))),
        (msgspec.defstruct("Named", [("a_b", int, 0)], rename="camel"),
         StateShape((("aB", "bigint"),))),
        (msgspec.defstruct("Maps",
                           [("m", MapState[int, Place], msgspec.field(default_factory=MapState))]),
         StateShape((), None, (CollectionShape("m", False, "bigint", "jsonb"),))),
    ],
)  # fmt: skip
def test_states_of_every_kind_have_a_shape(state_type: Any, shape: StateShape | None) -> None:
    assert shape_of(state_type) == shape


async def test_a_state_without_fields_is_shown_whole(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, dict[str, int])
    commit = owner.commit()
    commit.states = [owner.state("a", {"x": 5})]
    await owner.write(commit)
    rows = await postgres.query("SELECT key, value, version FROM {v}", v="state_of_count")
    assert rows == [("a", {"x": 5}, 2)]


class Count1(msgspec.Struct):
    minutes: str = ""
    since: str = ""
    calm: int = 0
    gone: int = 0


class Count2(msgspec.Struct):
    minutes: int = 0
    since: datetime | None = None
    calm: bool = False
    usual: float = 0.0


async def test_what_waits_for_a_migration_is_not_shown_as_the_new_type(
    postgres: PostgresSite,
) -> None:
    """Ten minutes may be ten hours in the next version: only the migration knows."""
    owner = await stateful(postgres, Count1)
    commit = owner.commit()
    commit.states = [
        owner.state("text", {"minutes": "ten", "since": "2023-02-29T00:00:00Z", "calm": 1}),
        owner.state("fits", {"minutes": 10, "since": "2024-02-29T00:00:00Z", "calm": True}),
        owner.state("large", {"minutes": 2**64 - 1, "since": 5, "usual": "much"}),
        owner.state("other", [1, 2]),
    ]
    await owner.write(commit)
    await deploy(postgres.store, count=counting(Count2, version=3))
    await owner.claim()
    commit = owner.commit()
    commit.states = [owner.state("new", {"minutes": 3, "usual": 0.5}, version=3)]
    await owner.write(commit)
    rows = await postgres.query("SELECT * FROM {v} ORDER BY key", v="state_of_count")
    assert sorted(rows) == [
        ("fits", None, None, None, None, 2),
        ("large", None, None, None, None, 2),
        ("new", 3, None, None, 0.5, 3),
        ("other", None, None, None, None, 2),
        ("text", None, None, None, None, 2),
    ]
    query = "SELECT key FROM {v} WHERE minutes > 2"
    assert await postgres.query(query, v="state_of_count") == [("new",)]
    query = "SELECT value FROM {v} WHERE key = '\"other\"' AND version = 2"
    assert await postgres.query(query, v="states") == [([1, 2],)]


async def test_what_a_migration_leaves_alone_is_shown_before_it(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, Count1)
    commit = owner.commit()
    commit.states = [owner.state("old", {"minutes": 10, "calm": True})]
    await owner.write(commit)
    newer = replace(counting(Count2, version=3), changed_fields={2: ["minutes", "usual"]})
    await deploy(postgres.store, count=newer)
    rows = await postgres.query("SELECT * FROM {v}", v="state_of_count")
    assert rows == [("old", None, None, True, None, 2)]
    silent = replace(counting(Count2, version=4), changed_fields={2: ["minutes"]})
    await deploy(postgres.store, count=silent)
    rows = await postgres.query("SELECT * FROM {v}", v="state_of_count")
    assert rows == [("old", None, None, None, None, 2)], "a later one may change all fields"


async def test_what_does_not_fit_a_column_is_null(postgres: PostgresSite) -> None:
    """Values of this version, written by code whose type says otherwise."""
    owner = await stateful(postgres, Count2)
    commit = owner.commit()
    commit.states = [
        owner.state("text", {"minutes": "ten", "since": "2023-02-29T00:00:00Z", "calm": 1}),
        owner.state("fits", {"minutes": 10, "since": "2024-02-29T00:00:00Z", "calm": True}),
        owner.state("large", {"minutes": 2**64 - 1, "since": 5, "usual": "much"}),
        owner.state("other", [1, 2]),
    ]
    await owner.write(commit)
    rows = await postgres.query("SELECT * FROM {v} ORDER BY key", v="state_of_count")
    leap = datetime(2024, 2, 29, tzinfo=UTC)
    assert sorted(rows) == [
        ("fits", 10, leap, True, None, 2),
        ("large", None, None, None, None, 2),
        ("other", None, None, None, None, 2),
        ("text", None, None, None, None, 2),
    ]


@pytest.mark.parametrize(
    ("version", "steps", "shown"),
    [
        (1, [], (0, MOST_VERSION)),
        (3, [1, 2], (3, MOST_VERSION)),
        (3, [1], (2, MOST_VERSION)),
        (2, [1, 3], (2, 2)),
        (2, [4], (0, 3)),
    ],
)
def test_versions_without_a_migration_between_them_are_shown_alike(
    version: int, steps: list[int], shown: tuple[int, int]
) -> None:
    assert Versions.of(version, steps)[:2] == shown


async def test_a_view_is_made_anew_for_the_next_version_of_the_same_columns(
    postgres: PostgresSite,
) -> None:
    """Dollars became cents."""
    owner = await stateful(postgres, Place)
    commit = owner.commit()
    commit.states = [owner.state("old", {"x": 1})]
    await owner.write(commit)
    rows = "SELECT key, x FROM {v} ORDER BY key"
    assert await postgres.query(rows, v="state_of_count") == [("old", 1)]
    await deploy(postgres.store, count=counting(Place, version=3))
    assert await postgres.query(rows, v="state_of_count") == [("old", None)]
    await deploy(postgres.store, count=replace(counting(Place), migrates_from=[1, 3]))
    assert await postgres.query(rows, v="state_of_count") == [("old", 1)]


async def test_a_deploy_that_changes_nothing_touches_no_view(postgres: PostgresSite) -> None:
    await stateful(postgres, Everything)
    before = await identities(postgres)
    assert len(before) == 4
    async with postgres.reader.transaction():  # somebody reads on; nobody waits for him
        await postgres.query("SELECT FROM {v}", v="state_of_count")
        await deploy(await postgres.another(), count=counting(Everything))
        assert await identities(postgres) == before


class Wide(msgspec.Struct):
    """More fields than `Place`, before and after it; and the same in another order."""

    first: int = 0
    x: int = 0
    y: str = ""


async def test_new_fields_leave_a_users_view_in_peace(postgres: PostgresSite) -> None:
    await stateful(postgres, Place)
    mine = {"mine": "mine", "v": "state_of_count"}
    await postgres.query("CREATE VIEW {mine} AS SELECT key, x FROM {v}", **mine)
    await deploy(postgres.store, count=counting(Wide, version=3))
    assert await columns_of(postgres, "state_of_count") == [
        ("key", "jsonb"), ("x", "bigint"), ("version", "smallint"), ("first", "bigint"),
        ("y", "text")
    ]  # fmt: skip
    assert await postgres.query("SELECT * FROM {mine}", mine="mine") == []
    before = await identities(postgres)
    await deploy(postgres.store, count=counting(Wide, version=3))
    assert await identities(postgres) == before


async def test_a_view_that_must_change_is_refused_while_something_depends_on_it(
    postgres: PostgresSite,
) -> None:
    await stateful(postgres, Count1)
    mine = {"mine": "mine", "v": "state_of_count"}
    await postgres.query("CREATE VIEW {mine} AS SELECT key, calm FROM {v}", **mine)
    with pytest.raises(DeployRefused, match=r"(?s)its columns change.*view .*mine depends on view"):
        await deploy(postgres.store, count=counting(Count2, version=3))
    versions = "SELECT version FROM {c} WHERE name = 'count'"
    assert await postgres.query(versions, c="computation") == [(2,)]
    assert ("gone", "bigint") in await columns_of(postgres, "state_of_count")
    await postgres.query("DROP VIEW {mine}", mine="mine")
    await deploy(postgres.store, count=counting(Count2, version=3))
    assert await columns_of(postgres, "state_of_count") == [
        ("key", "jsonb"), ("minutes", "bigint"), ("since", "timestamp with time zone"),
        ("calm", "boolean"), ("usual", "double precision"), ("version", "smallint"),
    ]  # fmt: skip


async def test_views_go_with_what_they_show(postgres: PostgresSite) -> None:
    await stateful(postgres, Everything)
    await postgres.query("CREATE VIEW {mine} AS SELECT 1 AS one", mine="state_of_mind")
    await deploy(postgres.store, count=counting(Place, version=3))
    assert await state_views(postgres) == ["state_of_count", "state_of_mind"]
    await deploy(postgres.store, count=counting(None, version=4))
    assert await state_views(postgres) == ["state_of_mind"]


async def test_a_name_that_is_taken_is_told(postgres: PostgresSite) -> None:
    await postgres.query("CREATE TABLE {mine} (x integer)", mine="state_of_count")
    with pytest.raises(DeployRefused, match=r"state_of_count is the name .* another relation"):
        await stateful(postgres, Place)
    assert await postgres.query("SELECT name FROM {c}", c="computation") == []


def test_a_sink_may_not_be_called_like_a_view_of_state() -> None:
    pipeline = Pipeline("wrong")
    items = Stream("items", Counted)
    pipeline.inject(items, Script("items"), timestamp=lambda _: EPOCH)
    pipeline.sink(items, Table("state_of_count", Counted))
    with pytest.raises(GraphError, match="begin with state_of_ are reserved for views"):
        pipeline.graph()


async def test_names_that_meet_are_numbered(postgres: PostgresSite) -> None:
    """`a_b` is a computation, and field `b` of computation `a`; and names may be long."""
    fields: list[Any] = [("b", MapState[str, int], msgspec.field(default_factory=MapState))]
    long = "ü" * 40
    plain = [(long + str(number), int, 0) for number in range(3)]
    state = msgspec.defstruct("S", [*fields, *plain])
    nodes = [
        LINES,
        replace(COUNT, name="a", shape=shape_of(state), migrates_from=[]),
        replace(COUNT, name="a_b", shape=shape_of(Place), migrates_from=[]),
        replace(COUNT, name="relay", kind="relay", shape=shape_of(Place), migrates_from=[]),
    ]
    graph: dict[str, Any] = {"nodes": {name: {} for name in ("lines", "a", "a_b", "relay")}}
    for _ in range(2):
        await postgres.store.deploy(
            DescribedGraph(graph, nodes, [WORDS, TOTALS], []), stamp=START, bucket_high=BUCKET_HIGH
        )
        assert await state_views(postgres) == ["state_of_a", "state_of_a_b", "state_of_a_b_2"]
    names = [name for name, _ in await columns_of(postgres, "state_of_a")]
    assert names == ["key", "ü" * 31, "ü" * 30 + "_2", "ü" * 30 + "_3", "version"]
    assert [name for name, _ in await columns_of(postgres, "state_of_a_b")][1] == "x"


async def test_a_migration_of_the_schema_is_followed_by_new_views(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, Place)
    commit = owner.commit()
    commit.states = [owner.state("a", {"x": 1})]
    await owner.write(commit)
    with psycopg.connect(postgres.schema.url) as connection:
        install_views(connection, postgres.schema.name)
    assert await state_views(postgres) == []
    await deploy(postgres.store, count=counting(Place))
    assert await postgres.query("SELECT key, x FROM {v}", v="state_of_count") == [("a", 1)]


async def test_one_who_may_only_read_sees_the_views(postgres: PostgresSite) -> None:
    owner = await stateful(postgres, Everything)
    commit = owner.commit()
    commit.states = [owner.state("a", {"minutes": 1, "since": "2024-01-01T00:00:00Z"})]
    commit.states.append(owner.state("a", 5, 'seen/"x"'))
    await owner.write(commit)
    url, name = postgres.schema.url, postgres.schema.name
    text = (
        "SELECT s.key, minutes, value FROM state_of_count AS s JOIN state_of_count_seen USING (key)"
    )
    with select(url, [text], pipeline=name, seconds=5, as_json=False) as answers:
        assert list(next(answers).rows) == [('"a"', "1", "5")]
    names = {"schema": sql.Identifier(name), "role": sql.Identifier(f"reader_of_{name}")}
    with psycopg.connect(url) as connection:  # rolled back: the role never is
        for statement in (
            "CREATE ROLE {role}",
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
            "SET LOCAL ROLE {role}",
        ):
            connection.execute(sql.SQL(statement).format(**names))
        query = "SELECT minutes, since IS NOT NULL FROM {schema}.state_of_count"
        assert connection.execute(sql.SQL(query).format(**names)).fetchall() == [(1, True)]
        query = "SELECT entry FROM {schema}.state_of('count', '\"a\"')"
        entries = connection.execute(sql.SQL(query).format(**names)).fetchall()
        assert entries == [("",), ('seen/"x"',)]
        connection.rollback()


class Watched(msgspec.Struct):
    first: datetime | None = None
    records: int = 0
    words: MapState[str, int] = msgspec.field(default_factory=MapState)


NAMES = Stream("names", str)
NOTHING = Stream("nothing", str)


class Watch(Computation[str, Watched]):
    writes = (NOTHING,)

    async def process_record(self, record: Record[str], ctx: Context[Watched]) -> None:
        ctx.state.first = ctx.state.first or record.timestamp
        ctx.state.records += 1
        ctx.state.words.put(record.value, ctx.state.records)


async def test_what_a_pipeline_keeps_is_seen_in_columns(postgres: PostgresSite) -> None:
    pipeline = Pipeline("watch")
    source = Script("names", [inject(NAMES, name) for name in ("ab", "b", "ac")])
    pipeline.inject(NAMES, source, timestamp=lambda _: from_micros(START))
    pipeline.add(Watch(), NAMES.by(lambda name: name[0]))
    pipeline.sink(NOTHING, Discard())
    engine = Engine(pipeline, postgres.store, clock=VirtualClock(START))
    await engine.start()
    await engine.run()
    await engine.stop()
    rows = await postgres.query("SELECT * FROM {v} ORDER BY key", v="state_of_watch")
    assert rows == [("a", from_micros(START), 2, 1), ("b", from_micros(START), 1, 1)]
    rows = await postgres.query("SELECT * FROM {v} ORDER BY entry", v="state_of_watch_words")
    assert rows == [("a", "ab", 1, 1), ("a", "ac", 2, 1), ("b", "b", 1, 1)]


async def test_no_view_and_no_function_shows_the_workers_secret(postgres: PostgresSite) -> None:
    """Whoever may read them all can be no worker by that."""
    secret = await postgres.store.peer_secret()
    await deploy(postgres.store)
    shown = await postgres.query(
        "SELECT DISTINCT v.relname FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid "
        "JOIN pg_class AS v ON v.oid = r.ev_class WHERE d.refobjid = %s::regclass",
        f'"{postgres.schema.name}".peer_secret',
    )
    assert shown == []
    sources = await postgres.query(
        "SELECT prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace",
        f'"{postgres.schema.name}"',
    )
    assert not [source for (source,) in sources if "peer_secret" in source]
    for view in VIEWS:
        rows = await postgres.query("SELECT x::text FROM {v} AS x", v=view)
        assert secret.hex() not in repr(rows)
        assert repr(secret) not in repr(rows)

"""The views people read: what they show, and that they explain themselves."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from millwheel.model import EPOCH, MAX_TIME, MIN_TIME, from_micros, record_id
from millwheel.store.schema import metadata
from millwheel.store.views import VIEWS
from tests.store_contract import SECOND, START, Owner, PostgresSite

SELF_EXPLAINING = {
    "id", "interval_id", "n", "name", "pid", "started_at", "heartbeat_at", "error", "traceback",
    "attempts", "sequencer", "input_watermark", "version", "stream", "tag", "kind", "entry",
    "value", "hold", "computation", "log",
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
    assert set(found) == set(VIEWS) - {"functions"}
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
    assert "timer close of key" in what

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


@pytest.mark.parametrize(("due", "shown"), [(MIN_TIME - 1, "-infinity"), (MAX_TIME, "infinity")])
async def test_a_holder_at_the_end_of_time_is_shown(
    postgres: PostgresSite, due: int, shown: str
) -> None:
    owner = await Owner.take(postgres.store)
    ends = {"input_watermark": MAX_TIME, "low_watermark": MAX_TIME}
    await owner.write(owner.commit(owner.injector, **ends))
    commit = owner.commit(**ends)
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


async def test_views_join_with_the_users_own_tables_at_one_snapshot(postgres: PostgresSite) -> None:
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

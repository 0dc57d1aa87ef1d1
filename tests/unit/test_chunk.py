"""Chunks: records as columns, and the same records one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.chunk import Chunk, Chunks, Columns, Outbox, together
from millwheel.core.codec import encode_key
from millwheel.core.model import Delivery, record_id
from millwheel.runtime.interval.intake import Intake

LOG, RECEIVER, SOURCE = 5, 3, 9


def record(number: int, *, stream: str = "s", stamp: int = 7, **changes: Any) -> Delivery[int]:
    key_text, slot = encode_key(number % 4)
    fields: dict[str, Any] = {
        "key": number % 4, "value": number, "micros": number * 10, "stream": stream,
        "key_text": key_text, "slot": slot, "receiver": RECEIVER, "hold": number * 10 + 1,
        "size": len(b"%d" % number), "encoded": b"%d" % number, "log": LOG, "seq": number,
        "stamp": stamp, "id": record_id(LOG, number),
    }  # fmt: skip
    return Delivery(**{**fields, **changes})


def row(number: int) -> Delivery[int]:
    id_ = record_id(SOURCE, number)
    return record(number, log=SOURCE, origin=SOURCE, stamp=number, id=id_)


def weak(number: int) -> Delivery[int]:
    return record(number, id=b"\xff%15d" % number)


def fields(records: Sequence[Delivery[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(getattr(r, name) for name in r.__struct_fields__) for r in records]


RECORDS = st.lists(
    st.sampled_from(["production", "other stream", "row", "weak", "later"]), max_size=30
)


def made(kinds: list[str]) -> list[Delivery[int]]:
    """Records in the order of their numbers, with gaps."""
    of = {"production": record, "row": row, "weak": weak}
    found = []
    for number, kind in enumerate(kinds):
        if kind == "other stream":
            found.append(record(2 * number, stream="t"))
        elif kind == "later":
            found.append(record(2 * number, stamp=8))
        else:
            found.append(of[kind](2 * number))
    return found


@given(RECORDS)
def test_what_is_put_together_and_taken_apart_is_the_same(kinds: list[str]) -> None:
    records = made(kinds)
    apart: list[Delivery[Any]] = []
    for item in together(records):
        apart += item.apart() if isinstance(item, Chunk) else [item]
    assert fields(apart) == fields(records)


def test_only_records_alike_are_put_together() -> None:
    found = together([record(0), record(1), record(2, stamp=8), row(3), row(5), weak(6)])
    assert [len(item) if isinstance(item, Chunk) else "single" for item in found] == [
        2, 1, 2, "single",
    ]  # fmt: skip


@given(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 9))
def test_a_part_has_the_rows_of_its_places_in_every_column(places: set[int], cut: int) -> None:
    records = [record(2 * number) for number in range(10)]
    (chunk,) = together(records)
    assert isinstance(chunk, Chunk)
    chosen = sorted(places)
    assert fields(chunk.part(chosen).apart()) == fields([records[place] for place in chosen])
    before, behind = chunk.split(cut)
    assert fields([*before.apart(), *behind.apart()]) == fields(records)


def test_a_part_of_a_run_of_numbers_is_a_run() -> None:
    (chunk,) = together([record(number) for number in range(10)])
    assert isinstance(chunk, Chunk)
    chunk.numbers = range(10)
    assert [part.numbers for part in chunk.split(4)] == [range(4), range(4, 10)]


def test_an_outbox_keeps_the_order_of_a_receivers_streams() -> None:
    outbox = Outbox()
    for number, stream in enumerate("sstts"):
        (chunk,) = together([record(number, stream=stream)])
        assert isinstance(chunk, Chunk)
        outbox.add(chunk)
    found = outbox.of[RECEIVER]
    assert [(chunk.stream, chunk.values) for chunk in found] == [
        ("s", [0, 1]), ("t", [2, 3]), ("s", [4]),
    ]  # fmt: skip
    more = Outbox()
    more.take(outbox)
    assert (len(more), len(outbox)) == (5, 0)


@given(RECORDS, st.lists(st.integers(1, 5), min_size=40, max_size=40))
def test_a_queue_gives_its_records_in_order_in_chunks_or_one_by_one(
    kinds: list[str], mosts: list[int]
) -> None:
    records = made(kinds)
    intake = Intake()
    intake.extend(together(records))
    assert len(intake) == len(records)
    assert fields(list(intake)) == fields(records)
    assert list(intake.places(0, 99)) == [(r.key, r.key_text, r.slot) for r in records]
    taken: list[Delivery[Any]] = []
    for most in mosts:
        if not intake:
            break
        found = intake.take(most)
        assert 1 <= len(found) <= most
        taken += found.apart() if isinstance(found, Chunk) else found
        assert len(intake) == len(records) - len(taken)
    intake.put_first(together(taken))
    assert fields(list(intake)) == fields(records)


def test_a_queue_forgets_the_records_of_a_log() -> None:
    intake = Intake()
    intake.extend(together([record(0), row(1), record(2), row(3)]))
    intake.drop_logs({SOURCE})
    assert [each.value for each in intake] == [0, 2]
    assert len(intake) == 2


def test_columns_are_rows_to_those_who_look_at_them() -> None:
    assert list(Columns([1, 2], ["a", "b"])) == [(1, "a"), (2, "b")]
    records = [record(0), record(1)]
    chunks = Chunks(item for item in together(records) if isinstance(item, Chunk))
    assert fields(list(chunks)) == fields(records)
    assert len(chunks) == 2

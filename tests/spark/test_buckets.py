"""The keys of a step as Spark keeps them: buckets, and pages of a bucket that split."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.model import MAX_TIME, SLOTS
from millwheel.errors import InvariantBroken, UsageError
from millwheel.spark.engine import buckets, checkpoints, query
from millwheel.spark.engine.buckets import (
    DIRECTORY,
    KeptKey,
    KeyBucket,
    bucket_of,
    keys_of,
    page_of,
)
from millwheel.spark.engine.input import InputReader


class Stored:
    """Spark's map of a group, with the numbers of the pages that were read and written."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.read: list[int] = []
        self.written: list[int] = []

    def getValue(self, key: Any) -> Any:
        self.read.append(key[0])
        found = self.pages.get(key[0])
        return None if found is None else (bytearray(found),)

    def updateValue(self, key: Any, value: Any) -> None:
        self.written.append(key[0])
        self.pages[key[0]] = value[0]

    def removeKey(self, key: Any) -> None:
        self.written.append(key[0])
        self.pages.pop(key[0], None)

    def kept(self) -> dict[bytes, KeptKey]:
        """All keys, as they are moved back; each is in one page."""
        rows = [
            row
            for number, content in self.pages.items()
            if number > DIRECTORY
            for row in keys_of(content)
        ]
        assert len(dict(rows)) == len(rows)
        return dict(rows)


def key_of(number: int) -> bytes:
    return f'"key {number}"'.encode()


def kept_of(size: int, due: int | None) -> KeptKey:
    entries = {"": (b"x" * size, 1)} if size else {}
    return KeptKey(entries, {} if due is None else {"tag": due, "later": due + 1})


def put(stored: Stored, keys: dict[bytes, KeptKey]) -> None:
    """A batch with these keys."""
    bucket = KeyBucket(stored)
    for key, kept in keys.items():
        bucket.put(key, kept)
    bucket.divide()
    bucket.store()


BATCHES = st.lists(
    st.dictionaries(
        st.integers(0, 60).map(key_of),
        st.builds(kept_of, st.sampled_from([0, 10, 300, 5_000]), st.none() | st.integers(0, 1_000)),
        max_size=40,
    ),
    max_size=12,
)


@given(BATCHES, st.integers(0, 1_000))
def test_a_bucket_keeps_what_each_key_had_last(
    batches: list[dict[bytes, KeptKey]], watermark: int
) -> None:
    """While its pages split, and each batch begins with what Spark has kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "PAGE_BYTES", 600)
        stored, model = Stored(), dict[bytes, KeptKey]()
        for batch in batches:
            put(stored, batch)
            model |= batch
            model = {key: kept for key, kept in model.items() if kept}
            bucket = KeyBucket(stored)
            assert {key: bucket.get(key) for key in map(key_of, range(61))} == {
                key: model.get(key, KeptKey()) for key in map(key_of, range(61))
            }
            dues = {key: min(kept.timers.values()) for key, kept in model.items() if kept.timers}
            assert sorted(KeyBucket(stored).due_before(watermark)) == sorted(
                key for key, due in dues.items() if due < watermark
            )
            assert bucket.due == min(dues.values(), default=MAX_TIME)
            assert stored.kept() == model
            assert bool(stored.pages) == bool(model), "nothing is left of an empty bucket"


def test_a_batch_reads_and_writes_the_pages_of_its_keys() -> None:
    """Also in a bucket with many, whose number is not known when the checkpoint is made."""
    stored = Stored()
    for first in range(0, 20_000, 500):
        put(stored, {key_of(n): kept_of(100, None) for n in range(first, first + 500)})
    sizes = [len(content) for number, content in stored.pages.items() if number > DIRECTORY]
    assert 60 < len(sizes) < 200
    assert max(sizes) < 3 * buckets.PAGE_BYTES
    stored.read.clear()
    stored.written.clear()
    put(stored, {key_of(7): kept_of(101, None)})
    number = page_of(key_of(7), len(sizes))
    assert stored.read == [DIRECTORY, number]
    assert sorted(stored.written) == [DIRECTORY, number]


def test_an_emptied_bucket_begins_anew() -> None:
    stored = Stored()
    put(stored, {key_of(n): kept_of(100, n) for n in range(2_000)})
    assert len(stored.pages) > 5
    put(stored, {key_of(n): KeptKey() for n in range(2_000)})
    assert stored.pages == {}
    put(stored, {key_of(7): kept_of(100, 7)})
    assert sorted(stored.pages) == [DIRECTORY, 0]


def test_a_look_for_timers_reads_the_pages_that_have_some() -> None:
    stored = Stored()
    put(stored, {key_of(n): kept_of(100, None) for n in range(5_000)})
    put(stored, {key_of(7): kept_of(100, 50)})
    stored.read.clear()
    bucket = KeyBucket(stored)
    assert list(bucket.due_before(50)) == []
    assert stored.read == [DIRECTORY]
    assert list(bucket.due_before(51)) == [key_of(7)]
    assert len(stored.read) == 2


def test_large_keys_do_not_make_pages_without_end() -> None:
    stored = Stored()
    put(stored, {key_of(n): kept_of(1_000_000, None) for n in range(5)})
    assert len(stored.pages) <= 1 + 5


def test_a_further_page_takes_keys_of_one_page() -> None:
    keys = [key_of(n) for n in range(500)]
    for pages in range(1, 100):
        before = [page_of(key, pages) for key in keys]
        after = [page_of(key, pages + 1) for key in keys]
        assert set(before) <= set(range(pages))
        moved = {old for old, new in zip(before, after, strict=True) if new != old}
        assert len(moved) <= 1
        assert all(new in (old, pages) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("number", [1, 64, 256, 1_000, SLOTS])
def test_buckets_have_as_many_slots(number: int) -> None:
    of = Counter(bucket_of(slot, number) for slot in range(SLOTS))
    assert sorted(of) == list(range(number))
    assert max(of.values()) - min(of.values()) <= 1


def offsets(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """A checkpoint with the offsets of some batches."""
    found = {f"offsets/{name[1:]}": ["v1", "{}", offset] for name, offset in files.items()}
    monkeypatch.setattr(checkpoints, "lines_of", lambda spark, place, file: found.get(file))


@pytest.mark.parametrize("last", [-1, 0, 7])
def test_the_number_of_buckets_is_that_of_the_checkpoint(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of tasks the command asks for later."""
    spark = MagicMock()
    spark.conf.get.return_value = "4"
    offsets(monkeypatch)
    assert query.buckets_of(spark, "/checkpoint", last) == 4 * buckets.BUCKETS_PER_TASK
    offsets(monkeypatch, **{f"_{max(last, 0)}": '{"mark": 0, "partitions": {}, "buckets": 12}'})
    assert query.buckets_of(spark, "/checkpoint", last) == 12
    spark.conf.get.return_value = "4000"
    offsets(monkeypatch)
    assert query.buckets_of(spark, "/checkpoint", last) == SLOTS


def test_a_checkpoint_with_a_state_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets(monkeypatch, _3='{"mark": 0, "partitions": {}}')
    with pytest.raises(
        UsageError,
        match=r"/checkpoint was made by an earlier version.*spark return.*another checkpoint$",
    ):
        query.buckets_of(MagicMock(), "/checkpoint", 3)


def test_rows_for_other_buckets_than_the_operators_have_are_not_read() -> None:
    reader = InputReader("a:b", 10, 12)
    start = reader.initialOffset()
    with pytest.raises(InvariantBroken, match=r"in 12 buckets .* the checkpoint has 13"):
        reader.partitions(start, {**start, "mark": 1, "buckets": 13})

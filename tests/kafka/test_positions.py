"""What a sink does with a bundle, given the position that Kafka has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from aiokafka.partitioner import murmur2

from millwheel.bundles import BundleId
from millwheel.errors import OutputError
from millwheel.kafka.port import Position
from millwheel.kafka.positions import is_written

DAY = 86_400_000_000
NOW = 100 * DAY


def decide(
    number: int, previous: int, position: int | None, *, repeat: bool, age: int = 0, **options: Any
) -> bool:
    bundle = BundleId(1, number, previous, repeat, NOW - age)
    return is_written(
        "topic t",
        bundle,
        None if position is None else Position(position),
        now=NOW,
        kept=timedelta(days=6),
        on_lost_commits=options.get("on_lost_commits", "fail"),
    )


@pytest.mark.parametrize(
    ("number", "previous", "position", "repeat", "written"),
    [
        (1, 0, None, False, False),  # the first bundle of a scope
        (1, 0, None, True, False),  # again: it was not written
        (1, 0, 1, True, True),
        (8, 7, 7, False, False),  # a new owner goes on
        (8, 7, 7, True, False),  # its predecessor did not get as far
        (8, 7, 8, True, True),  # it did
        (8, 7, None, False, False),  # a scope that came from another, or was silent for a week
        (900, 7, 7, False, False),  # a jump after a restart of the server, with nothing lost
        (900, 7, 900, True, True),
    ],
)
def test_what_is_written_and_what_is_not(
    number: int, previous: int, position: int | None, repeat: bool, written: bool
) -> None:
    assert decide(number, previous, position, repeat=repeat) is written


def test_a_position_of_a_lost_scope_with_the_same_id() -> None:
    """Numbers of this scope are above those that it has inherited."""
    bundle = BundleId(1, 900, 700, True, NOW, inherited=700)
    options: Any = {"now": NOW, "kept": timedelta(days=6), "on_lost_commits": "fail"}
    assert not is_written("topic t", bundle, Position(5), **options)
    assert is_written("topic t", bundle, Position(900), **options)
    with pytest.raises(OutputError, match="Kafka has bundle 701, but the store has only"):
        is_written("topic t", bundle, Position(701), **options)


def test_a_store_that_was_restored_from_a_backup() -> None:
    """Kafka has bundles that the store does not know."""
    with pytest.raises(
        OutputError, match="Kafka has bundle 9, but the store has only delivered bundle 7"
    ):
        decide(8, 7, 9, repeat=False)
    with pytest.raises(
        OutputError, match="Kafka has bundle 8, but the store has only delivered bundle 7"
    ):
        decide(900, 7, 8, repeat=False)  # its numbers have jumped since
    assert not decide(900, 7, 8, repeat=False, on_lost_commits="repeat")


def test_a_position_that_went_back() -> None:
    """A hung transaction was aborted by hand, or the group was reset: acknowledged records are
    missing."""
    with pytest.raises(OutputError, match="Kafka has bundle 5, but bundle 7 was acknowledged"):
        decide(8, 7, 5, repeat=False)
    with pytest.raises(OutputError, match="set the offset of the group to 7"):
        decide(8, 7, 5, repeat=True, on_lost_commits="repeat")


def test_a_position_that_has_expired() -> None:
    """Only a bundle that may have been written before is in doubt, and only if it is old."""
    assert not decide(8, 7, None, repeat=True, age=5 * DAY)
    with pytest.raises(
        OutputError, match="may have been written 7 days ago, but Kafka has no position"
    ):
        decide(8, 7, None, repeat=True, age=7 * DAY)
    assert not decide(8, 7, None, repeat=False, age=7 * DAY)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_keys_go_to_the_partition_that_java_chooses(key: bytes, expected: int) -> None:
    """The values of Kafka's own test of its hash."""
    assert murmur2(key) & 0xFFFFFFFF == expected & 0xFFFFFFFF

"""The ids of weak productions: what they say, and that every version of the engine derives the
same."""

from __future__ import annotations

from typing import Any

from millwheel.core.model import (
    NAME_BYTES,
    Delivery,
    digest_of,
    is_derived,
    name_of,
    record_id,
    run_of,
)
from millwheel.runtime.seen.weak_ids import WeakIds, id_at, mark_of

STRONG = record_id(7, 1)
RUN = b"\xaa\xbb"


def ids(
    *produced: tuple[str, bytes, int], cause: bytes = STRONG, computation: int = 3
) -> list[bytes]:
    """The ids of what one run produces: stream, encoded value and microseconds of each."""
    lineage = WeakIds(computation, RUN)
    lineage.begin(input_of(cause))
    return [lineage.next_id(*each) for each in produced]


def input_of(id_: bytes) -> Delivery[Any]:
    return Delivery("k", None, 0, "in", b'"k"', 0, 3, 0, 0, id=id_)


def id_of(
    stream: str = "out", value: bytes = b'"v"', micros: int = 5, *,
    cause: bytes = STRONG, computation: int = 3,
) -> bytes:  # fmt: skip
    return ids((stream, value, micros), cause=cause, computation=computation)[0]


def test_every_version_derives_the_same_ids() -> None:
    """A pipeline goes on under a newer engine, and what was sent by the older one is known."""
    first, second = ids(("out", b'"v"', 5), ("out", b'"v"', 5))
    assert first.hex() == "e3f66b867d7737781da35fd2aabb5cf4"
    assert second.hex() == "b672cfe4fb156241d6c0191aaabb5cf4"
    assert id_of(cause=first, computation=4).hex() == "e9e4024afbfd006b8a57912faabb5cf4"
    assert id_at(first, 256).hex() == "a2a050085cd355f9a8b7ac66aabb5cf4"


def test_the_name_says_where_it_comes_from_and_nothing_else() -> None:
    """Whatever else is said under a name is another value, and not another record."""
    first, second = ids(("out", b'"v"', 5), ("out", b'"v"', 5))
    elsewhere = [
        second,
        id_of("another"),
        id_of(computation=4),
        id_of(cause=record_id(7, 2)),
        id_of(cause=record_id(8, 1)),
        id_at(first, 1),
        id_at(first, 2),
        STRONG,
    ]
    assert len({name_of(id_) for id_ in (first, *elsewhere)}) == 1 + len(elsewhere)
    assert name_of(id_of(value=b'"w"')) == name_of(id_of(micros=6)) == name_of(first)


def test_the_digest_tells_another_value_and_another_timestamp() -> None:
    digests = {id_[NAME_BYTES:] for id_ in (id_of(), id_of(value=b'"w"'), id_of(micros=6))}
    assert len(digests) == 3
    assert id_at(id_of(), 1)[NAME_BYTES:] == id_of()[NAME_BYTES:]


def test_the_mark_tells_who_made_it_and_nothing_else() -> None:
    """Whoever makes it: the same name and the same digest."""
    by_another = WeakIds(3, mark_of("another worker"))
    by_another.begin(input_of(STRONG))
    other = by_another.next_id("out", b'"v"', 5)
    assert run_of(other) == mark_of("another worker") != run_of(id_of()) == RUN
    assert (name_of(other), digest_of(other)) == (name_of(id_of()), digest_of(id_of()))
    assert run_of(id_at(other, 7)) == run_of(other)


def test_what_comes_of_a_weak_production_goes_by_its_name() -> None:
    """The code of the first stage has changed its mind: the second stage's outputs keep their
    names, so that whoever knows them finds out."""
    first, other = id_of(), id_of(value=b'"w"')
    assert first != other
    assert id_of(cause=first) == id_of(cause=other)


def test_no_other_id_looks_like_one() -> None:
    assert all(is_derived(id_) for id_ in (id_of(), id_at(id_of(), 1), id_of(cause=id_of())))
    assert not is_derived(STRONG)
    assert name_of(STRONG) == STRONG

"""The records of an interval that were received and are not durable yet, and their later copies.

A later copy joins the first one, and is ACKed with it; a copy of the same row of the same log needs
no ACK of its own.

A weak production is identified by the name in its id, not by its value. The same name with another
value means that its sender's code has produced another output for the same input. If one worker has
made both, that is an error: the code does not depend on its record alone. If two workers have made
them, the code may have changed: the first value stays, and the second is dropped and counted
(decision 42).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.codec import shown
from millwheel.core.model import Delivery, digest_of, is_derived, name_of, run_of
from millwheel.core.redaction import shown_key
from millwheel.errors import NotTheSameAgain


class InFlight:
    """Base class: a record is here once, as itself or in its chunk."""

    def __init__(self) -> None:
        self.in_flight: dict[bytes | Chunk, Delivery[Any] | Chunk] = {}
        """Received and not durable yet, in the order of arrival."""
        self._chunks: set[Chunk] = set()
        self._named: dict[bytes, Chunk] = {}
        """User-supplied ids of the chunks in flight."""
        self._derived: dict[bytes, Delivery[Any]] = {}
        """Weak productions in flight, by the name in the id."""
        self._joined: dict[bytes, list[Delivery[Any]]] = {}
        """Later copies of records in flight, each to be ACKed, by the first copy's id."""
        self.dropped = 0
        """Duplicates dropped since the last commit."""
        self.changed = 0
        """Weak productions dropped for another value since the last commit."""
        self.last_changed: Delivery[Any] | None = None
        """The last weak production dropped for another value; None: none since it was logged."""

    # -- chunks -------------------------------------------------------------------------

    def _put(self, chunk: Chunk) -> None:
        self.in_flight[chunk] = chunk
        self._chunks.add(chunk)
        self._named.update(dict.fromkeys(chunk.names, chunk))

    def _holds_any(self, ids: Sequence[bytes]) -> bool:
        """Whether one of these user-supplied ids is in flight."""
        in_flight, named = self.in_flight.keys(), self._named.keys()
        return not (in_flight.isdisjoint(ids) and named.isdisjoint(ids))

    def chunk_landed(self, chunk: Chunk) -> list[Delivery[Any]]:
        """Take a durable chunk out of flight; gives the copies that have joined its records, to be
        acknowledged with it."""
        del self.in_flight[chunk]
        self._forget_chunk(chunk)
        joined: list[Delivery[Any]] = []
        if self._joined:
            for name in chunk.names:
                joined += self._joined.pop(name, ())
        self.dropped += len(joined)
        return joined

    def _forget_chunk(self, chunk: Chunk) -> None:
        self._chunks.remove(chunk)
        for name in chunk.names:
            del self._named[name]

    def take_apart(self, chunk: Chunk) -> list[Delivery[Any]]:
        """Replace a chunk in flight by its records, in the same place; if its interval has started
        over since, only give them."""
        records = chunk.apart()
        in_flight = self.in_flight
        if chunk not in self._chunks:
            return records
        self._forget_chunk(chunk)
        behind = []
        while (last := in_flight.popitem())[0] is not chunk:
            behind.append(last)
        in_flight.update((record.id, record) for record in records)
        in_flight.update(reversed(behind))
        return records

    def _is_in_chunk(self, delivery: Delivery[Any]) -> bool:
        log, number = delivery.log, delivery.seq
        return any(chunk.log == log and number in chunk.numbers for chunk in self._chunks)

    # -- single records, and copies -----------------------------------------------------

    def take_by_hand(self, delivery: Delivery[Any]) -> None:
        """Put a record that recovery runs apart in flight again."""
        self.in_flight.setdefault(delivery.id, delivery)
        if is_derived(delivery.id):
            self._derived.setdefault(name_of(delivery.id), delivery)

    def _join(self, first: Delivery[Any], newcomer: Delivery[Any]) -> None:
        if newcomer.id != first.id:
            self._compare(first.id, newcomer)
        self._join_row(first.id, first.log, first.seq, newcomer)

    def _join_row(self, id_: bytes, log: int, seq: int, newcomer: Delivery[Any]) -> None:
        """Let a copy join the record in flight with this id, log and number."""
        copies = self._joined.get(id_, [])
        places = [(log, seq), *((copy.log, copy.seq) for copy in copies)]
        if (newcomer.log, newcomer.seq) in places:
            self.dropped += 1
        else:
            self._joined[id_] = [*copies, newcomer]

    def _join_chunk(self, chunk: Chunk, newcomer: Delivery[Any]) -> None:
        number = chunk.numbers[chunk.names.index(newcomer.id)]
        self._join_row(newcomer.id, chunk.log, number, newcomer)

    def _compare(self, known: bytes, newcomer: Delivery[Any]) -> None:
        """Compare a weak production with the known one of the same name. It is a copy, whatever its
        value.

        Raises:
            NotTheSameAgain: one worker has made both, and their values differ.
        """
        if digest_of(known) == digest_of(newcomer.id):
            return
        if run_of(known) == run_of(newcomer.id):
            raise another_value(newcomer)
        self.changed += 1
        self.last_changed = newcomer

    def landed(self, ids: Iterable[bytes]) -> list[Delivery[Any]]:
        """Take durable records out of flight; gives every copy, to be acknowledged."""
        pop = self.in_flight.pop
        copies: list[Delivery[Any]] = [pop(id_) for id_ in ids]  # type: ignore[misc]
        if self._derived:
            for copy in copies:
                self._derived.pop(name_of(copy.id), None)
        if self._joined:
            joined = [late for first in copies for late in self._joined.pop(first.id, ())]
            self.dropped += len(joined)
            copies += joined
        return copies

    def held(self) -> Iterator[Delivery[Any]]:
        """All single records in flight, with every copy that needs an ACK."""
        for item in self.in_flight.values():
            if type(item) is not Chunk:
                yield item  # type: ignore[misc]
        for copies in self._joined.values():
            yield from copies

    def take_out(self, id_: bytes) -> list[Delivery[Any]]:
        """Take a record out of flight without storing its id; gives every copy, the first one
        first."""
        first: Delivery[Any] = self.in_flight.pop(id_)  # type: ignore[assignment]
        if self._derived:
            self._derived.pop(name_of(id_), None)
        return [first, *self._joined.pop(id_, ())]

    def start_over(self) -> list[Delivery[Any]]:
        """Take all records out of flight; gives every copy, in the order of the first copies'
        arrival."""
        copies: list[Delivery[Any]] = []
        for item in self.in_flight.values():
            for record in item.apart() if type(item) is Chunk else (item,):
                copies += (record, *self._joined.get(record.id, ()))  # type: ignore[union-attr, arg-type]
        self.in_flight.clear()
        self._chunks.clear()
        self._named.clear()
        self._derived.clear()
        self._joined.clear()
        return copies


def another_value(delivery: Delivery[Any]) -> NotTheSameAgain:
    """The error for a weak production that one worker has made with two values."""
    return NotTheSameAgain(
        f"a weak production of stream {delivery.stream!r}, key {shown_key(delivery.key)}, arrived "
        f"twice with different values (id {delivery.id.hex()}); the second: "
        f"{shown(delivery.value, 300)}\nOne worker has run the code that writes the stream twice "
        'on the same record, and the two outputs differ. With productions="weak" the output must '
        "depend on the record alone. Remove everything that differs between runs (the clock, "
        "random numbers, data kept outside of the state) and start again: values that have "
        "arrived stay as they are. If you cannot remove it, the computation needs "
        'productions="strong", and the pipeline another name: the productions of a deployed '
        "pipeline cannot be changed"
    )

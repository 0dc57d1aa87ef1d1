"""The sender's side of delivery: what was sent, and what of it is acknowledged.

A log is a sequence of records numbered from 0. ACKs come in any order; what is stored is
the first number not acknowledged and a bounded list of runs beyond it. ACKs of the same
record may come twice (a resend that was dropped is acknowledged too): only the first
counts. A row of a source may go to several readers and is done when all have acknowledged.

What was sent together counts together: a *batch* (the productions of one commit, the rows
of one reading) holds the low watermark by its least hold, and takes credits, until it and
everything before it are acknowledged.

The numbers of a log may have gaps, as long as they like: a source leaves numbers out, and a weak
production that was acknowledged before any commit is stored nowhere. A number in a gap counts as
acknowledged, takes no credit, and costs nothing: gaps are kept as runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from millwheel.model import MAX_TIME, Delivery
from millwheel.timers.holds import Holds
from millwheel.timers.percentile import Percentile

MAX_SCATTERED = 512
"""ACKs beyond the prefix up to which their runs are stored at all."""


class Batch(NamedTuple):
    """What was sent together: the records from the end of the batch before up to `end`."""

    end: int
    hold: int
    size: int
    stamp: int
    """When they were produced; 0 for rows of a source."""
    percentile_holds: tuple[int, ...]
    """What it holds each percentile low watermark at; the end of time: all of it is behind."""


class SentLog:
    """One log as its sender sees it, since the interval was last claimed.

    Only what this claim has sent can be acknowledged: the ACK of a copy from before, for a
    record that is not sent again yet, counts for nothing; the record's new copy will be
    dropped by its reader and acknowledged in turn.
    """

    __slots__ = (
        "_batches",
        "_beyond",
        "_gaps",
        "_holds",
        "_percentiles",
        "_several",
        "_stragglers",
        "absent",
        "changed",
        "complete",
        "first",
        "id",
        "known_end",
        "next_seq",
        "source",
        "unacked_bytes",
    )

    def __init__(
        self,
        log: int,
        holds: Holds,
        *,
        percentiles: tuple[Percentile, ...] = (),
        source: bool = False,
        inherited: bool = False,
        first: int = 0,
        runs: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.id = log
        self.source = source
        self.first = first
        """Everything before it is acknowledged."""
        self.next_seq = first
        """Everything before it was sent, by this claim or, if acknowledged, an earlier one."""
        self.unacked_bytes = 0
        self.changed = False
        self.complete = not inherited
        """False until all of an inherited log is sent again: more may be un-ACKed."""
        self._holds = holds
        self._percentiles = percentiles
        self._batches: deque[Batch] = deque()
        self._beyond: set[int] = set()
        self._gaps: deque[tuple[int, int]] = deque()
        """Numbers from `first` on that stand for nothing, as runs in their order: the first number,
        and one past the last."""
        self.absent = 0
        """How many numbers the gaps hold."""
        self.known_end = first
        """No record from here on was acknowledged before this claim."""
        for low, high in runs:
            self._beyond.update(range(low, high + 1))
            self.known_end = max(self.known_end, high + 1)
        self._several: dict[int, int] = {}
        self._stragglers: dict[int, int] = {}
        """Weak productions that are stored, by number: a stamp older than that of their commit."""

    def sent(
        self, end: int, hold: int, size: int, stamp: int = 0, holds: Sequence[int] = ()
    ) -> None:
        """Records from `next_seq` up to `end` are on their way, as one batch.

        Args:
            hold: the least of their holds; it counts from here on.
            size: bytes they take of the credits.
            stamp: when they were produced.
            holds: of each record, where percentile low watermarks are kept.
        """
        self.next_seq = end
        self.unacked_bytes += size
        self._holds.add(hold)
        aside = tuple(percentile.hold_of(holds) for percentile in self._percentiles)
        for percentile, least in zip(self._percentiles, aside, strict=True):
            if least < MAX_TIME:
                percentile.batches.add(least)
        self._batches.append(Batch(end, hold, size, stamp, aside))
        if self._gaps:
            self._advance()

    def skip(self, end: int) -> None:
        """Records up to `end` need not be sent: they are acknowledged."""
        self.next_seq = end
        self._advance()

    def lack(self, gaps: Iterable[tuple[int, int]]) -> None:
        """The numbers in these runs, at or past `next_seq`, stand for nothing.

        Args:
            gaps: first number, and one past the last; in order.
        """
        beyond = self._beyond
        for first, end in gaps:
            self._gaps.append((first, end))
            self.absent += end - first
            if beyond:  # rows that were acknowledged before they vanished from the source
                beyond.difference_update([seq for seq in beyond if first <= seq < end])

    def stored(self, stragglers: Iterable[Delivery[Any]]) -> None:
        """Weak productions that are on their way are stored by the next commit: until they are
        acknowledged, their own stamps count for the floor."""
        self._stragglers.update((d.seq, d.stamp) for d in stragglers if not d.origin)

    def wait_for_several(self, seq: int, readers: int) -> None:
        """Row `seq` is done when all of several readers, given as a mask, have it."""
        self._several[seq] = readers

    def is_acknowledged(self, seq: int) -> bool:
        """Whether `seq` is done."""
        return seq < self.first or seq in self._beyond

    def acknowledge(self, seqs: Iterable[int], reader: int = 0) -> None:
        """The effects of these records are durable; `reader` is whose, as its bit in a mask."""
        if self._several:
            seqs = [seq for seq in seqs if self._is_last_reader(seq, reader)]
        if self._stragglers:
            seqs = list(seqs)
            for seq in seqs:
                self._stragglers.pop(seq, None)
        first, end, beyond = self.first, self.next_seq, self._beyond
        done = sorted(set(seqs))
        self.changed = True
        if done and not beyond and done[0] == first and done[-1] == first + len(done) - 1 < end:
            self.first += len(done)  # all that comes next, and nothing else: so it is in most cases
        else:
            beyond.update(seq for seq in done if first <= seq < end)
        self._advance()

    def _advance(self) -> None:
        """Move the prefix over what is acknowledged, as far as it was sent (of a source: read)."""
        first, end, beyond, gaps = self.first, self.next_seq, self._beyond, self._gaps
        while first < end:
            if first in beyond:
                beyond.remove(first)
                first += 1
            elif gaps and gaps[0][0] == first:
                _, behind = gaps.popleft()
                self.absent -= behind - first
                first = behind
            else:
                break
        self.first = first
        batches = self._batches
        while batches and batches[0].end <= first:
            done = batches.popleft()
            self.unacked_bytes -= done.size
            self._holds.remove(done.hold)
            for percentile, least in zip(self._percentiles, done.percentile_holds, strict=True):
                if least < MAX_TIME:
                    percentile.batches.remove(least)

    def _is_last_reader(self, seq: int, reader: int) -> bool:
        waiting = self._several.get(seq)
        if waiting is None:
            return True
        waiting &= ~reader
        if waiting:
            self._several[seq] = waiting
            return False
        del self._several[seq]
        return True

    @property
    def unacked(self) -> int:
        """How many records are on their way."""
        end, beyond = self.next_seq, self._beyond
        done = len(beyond) if end >= self.known_end else sum(seq < end for seq in beyond)
        return max(0, end - self.first - self.absent - done)

    @property
    def span(self) -> int:
        """How many records lie past the prefix, acknowledged or not: what credits are for (I8)."""
        return self.next_seq - self.first - self.absent

    def state(self, max_runs: int) -> list[Any]:
        """What is stored: the first not acknowledged, and runs beyond it."""
        self.changed = False
        if not self._beyond or len(self._beyond) > MAX_SCATTERED:
            return [self.first, []]
        runs: list[list[int]] = []
        for seq in sorted(self._beyond):
            if runs and runs[-1][1] == seq - 1:
                runs[-1][1] = seq
            else:
                runs.append([seq, seq])
        return [self.first, runs[:max_runs]]

    def floor(self) -> int | None:
        """The oldest stamp that may be sent again; None when everything is acknowledged."""
        if not self._batches or self.source:
            return None
        return min((self._batches[0].stamp, *self._stragglers.values()))

    @property
    def drained(self) -> bool:
        """Whether every record is acknowledged."""
        return self.first >= self.next_seq and self.complete

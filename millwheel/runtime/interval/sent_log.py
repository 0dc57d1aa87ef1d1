"""The sender's side of delivery: the records that a log has sent, and their acknowledgements.

A log is a sequence of records numbered from 0. ACKs arrive in any order. Commits store the first
number that is not acknowledged and a bounded list of acknowledged runs beyond it. Only a record's
first ACK counts: a dropped resend is acknowledged again. A source's row with several readers is
done when all of them have acknowledged it.

Records sent together form a *batch*: the productions of one commit, or the rows of one read. A
batch holds the low watermark at its least hold, and uses credits, until it and all batches before
it are acknowledged.

The numbers of a log may have gaps of any length: a source leaves numbers out, and a weak production
that was acknowledged before any commit is stored nowhere. A number in a gap counts as acknowledged
and uses no credit: gaps are kept as runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from millwheel.core.model import Delivery
from millwheel.timers.holds import Holds

MAX_SCATTERED = 512
"""Most ACKs beyond the acknowledged prefix that are stored, as runs; with more, none are."""


class Batch(NamedTuple):
    """Records sent together, from the end of the preceding batch on."""

    end: int
    """One past the last number."""
    hold: int
    """The least hold of its records, in microseconds."""
    size: int
    """Bytes of credits."""
    stamp: int
    """Stamp of the commit that produced its records; 0 for rows of a source."""


class SentLog:
    """One log as its sender sees it, since the interval was last claimed.

    Only records that this claim has sent can be acknowledged. The ACK of an earlier claim's copy is
    ignored until the record is sent again: its reader then drops the new copy and acknowledges it.

    Args:
        holds: the holds of the interval's low watermark.
        source: the log's records are the rows of a source.
        inherited: an earlier claim has written the log, and this one sends it again.
        first: the first record that is not acknowledged, as stored.
        runs: stored acknowledged runs beyond `first`: first and last number.
    """

    __slots__ = (
        "_batches",
        "_beyond",
        "_gaps",
        "_holds",
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
        source: bool = False,
        inherited: bool = False,
        first: int = 0,
        runs: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.id = log
        self.source = source
        self.first = first
        """All records before this number are acknowledged."""
        self.next_seq = first
        """All records before this number were sent: by this claim or, if acknowledged, earlier."""
        self.unacked_bytes = 0
        """Credits in use, in bytes: all batches that are not done."""
        self.changed = False
        """Whether ACKs have arrived since the last `state`."""
        self.complete = not inherited
        """False until an inherited log is sent again completely: more records may be un-ACKed."""
        self._holds = holds
        self._batches: deque[Batch] = deque()
        self._beyond: set[int] = set()
        self._gaps: deque[tuple[int, int]] = deque()
        """The gaps from `first` on, in order: first number, and one past the last."""
        self.absent = 0
        """Count of numbers in `_gaps`."""
        self.known_end = first
        """No record from here on was acknowledged before this claim."""
        for low, high in runs:
            self._beyond.update(range(low, high + 1))
            self.known_end = max(self.known_end, high + 1)
        self._several: dict[int, int] = {}
        """Per row, a mask of the readers that have not acknowledged it."""
        self._stragglers: dict[int, int] = {}
        """Stamps of stored weak productions by number; older than their commit's stamp."""

    def sent(self, end: int, hold: int, size: int, stamp: int = 0) -> None:
        """Note records from `next_seq` up to `end` as sent, as one batch.

        Args:
            hold: the least hold of the records, which now holds the low watermark.
            size: bytes of credits.
            stamp: of the commit that produced them.
        """
        self.next_seq = end
        self.unacked_bytes += size
        self._holds.add(hold)
        self._batches.append(Batch(end, hold, size, stamp))
        if self._gaps:
            self._advance()

    def skip(self, end: int) -> None:
        """Skip records up to `end`, which are acknowledged."""
        self.next_seq = end
        self._advance()

    def lack(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Add gaps: numbers without records.

        Args:
            gaps: first number, at or past `next_seq`, and one past the last, of each; in order.
        """
        beyond = self._beyond
        for first, end in gaps:
            self._gaps.append((first, end))
            self.absent += end - first
            if beyond:  # acknowledged rows that have since vanished from the source
                beyond.difference_update([seq for seq in beyond if first <= seq < end])

    def stored(self, stragglers: Iterable[Delivery[Any]]) -> None:
        """The next commit stores un-ACKed weak productions: until their ACKs, their own stamps
        count for the floor."""
        self._stragglers.update((d.seq, d.stamp) for d in stragglers if not d.origin)

    def wait_for_several(self, seq: int, readers: int) -> None:
        """Make row `seq` wait for the ACKs of a mask of readers."""
        self._several[seq] = readers

    def is_acknowledged(self, seq: int) -> bool:
        return seq < self.first or seq in self._beyond

    def acknowledge(self, seqs: Iterable[int], reader: int = 0) -> None:
        """Note ACKs: the effects of these records are durable.

        Args:
            reader: the bit of the acknowledging reader, for rows with several.
        """
        if self._several:
            seqs = [seq for seq in seqs if self._is_last_reader(seq, reader)]
        if self._stragglers:
            seqs = list(seqs)
            for seq in seqs:
                self._stragglers.pop(seq, None)
        first, end, beyond = self.first, self.next_seq, self._beyond
        done = seqs if isinstance(seqs, range) else sorted(set(seqs))
        self.changed = True
        if done and not beyond and done[0] == first and done[-1] == first + len(done) - 1 < end:
            self.first += len(done)  # the usual case: exactly the next records
        else:
            beyond.update(seq for seq in done if first <= seq < end)
        self._advance()

    def settle(self, numbers: range) -> None:
        """Records are done with, whether this claim has sent them again or not."""
        self.acknowledge(numbers)
        unsent = range(max(self.next_seq, numbers.start), numbers.stop)
        self._beyond.update(unsent)
        self.known_end = max(self.known_end, numbers.stop)

    def _advance(self) -> None:
        """Extend the acknowledged prefix, up to the last record sent (of a source: read)."""
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
        """Number of records sent and un-ACKed."""
        end, beyond = self.next_seq, self._beyond
        done = len(beyond) if end >= self.known_end else sum(seq < end for seq in beyond)
        return max(0, end - self.first - self.absent - done)

    @property
    def span(self) -> int:
        """Number of records past the acknowledged prefix, acknowledged or not: they use credits
        (I8)."""
        return self.next_seq - self.first - self.absent

    def state(self, max_runs: int) -> list[Any]:
        """The ACKs to store: the first number that is not acknowledged, and acknowledged runs
        beyond it."""
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
        """The oldest stamp of a record that may be sent again; None: all are acknowledged, or it is
        a source."""
        if not self._batches or self.source:
            return None
        return min((self._batches[0].stamp, *self._stragglers.values()))

    @property
    def drained(self) -> bool:
        return self.first >= self.next_seq and self.complete

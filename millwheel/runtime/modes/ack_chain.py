"""The ACK chain of weak productions (paper 6.1.3), which are sent before anything is stored.

An input of a weak computation is acknowledged upstream when all its productions have been
acknowledged downstream. So the ACKs of a chain of weak computations return hop by hop, and nothing
is written on the way. Until its ACK the input is in flight here, and its sender keeps it and sends
it again if this interval starts over. The second run's productions have the same ids, and receivers
that have them already drop them (`millwheel.runtime.seen.weak_ids`). ::

    sent ──all productions acknowledged──▶ finished: acknowledged upstream; nothing was stored
      │
      ├─ the input has stored effects (state, rows, counters, a dead letter)
      └─ `straggler_after` has passed
          ▼
    noted ──commit──▶ finished: the input is seen; unacknowledged productions are stored as
                      *stragglers*

An input is *noted* when a commit has to store it as seen. The rule that makes this safe: *the
commit that stores an input as seen also stores its productions that are not acknowledged*, as the
input is not sent again and could not make them again. After a crash, stragglers are sent again from
the store, with the same ids and in the same buckets, until they are acknowledged.

The chain keeps unacknowledged productions in memory. The credits of the log limit them (I8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.core.model import MAX_TIME, Delivery
from millwheel.runtime.interval.sent_log import SentLog

Caused = tuple[Delivery[Any], Delivery[Any]]
"""An input, and one production that it caused."""


class WaitingInput:
    """An input, and its productions that are not acknowledged."""

    __slots__ = ("cause", "noted", "outputs", "since")

    def __init__(self, cause: Delivery[Any], since: float, *, noted: bool) -> None:
        self.cause = cause
        self.since = since
        self.noted = noted
        """A commit stores the input as seen, and finishes it when that is durable, not before."""
        self.outputs: dict[int, Delivery[Any]] = {}
        """The unacknowledged productions, by their numbers in the log."""


class AckChain:
    """The inputs of one interval that have unacknowledged productions.

    Args:
        logs: the interval's logs; the last one numbers weak productions as they are sent.
        straggler_seconds: time that an input waits for ACKs before it is noted.
    """

    def __init__(self, logs: list[SentLog], straggler_seconds: float) -> None:
        self._log = logs[-1]
        self.straggler_seconds = straggler_seconds
        self._pending: dict[int, WaitingInput] = {}
        """Inputs by `id` of their delivery, in the order of sending."""
        self._by_seq: dict[int, WaitingInput] = {}
        """The pending input of each unacknowledged production, by the production's number."""
        self._watched: deque[WaitingInput] = deque()
        """Inputs that were not noted when sent and may become overdue, in the order of sending."""
        self.passed = 0
        """Number of inputs finished without a commit of their own since `take_passed`."""

    def send(
        self,
        inputs: Iterable[Delivery[Any]],
        caused: Sequence[Caused],
        *,
        promised: int,
        now: float,
        stamp: int,
        noted: bool,
    ) -> list[Delivery[Any]]:
        """Number the productions of some inputs, and track them from now on.

        Args:
            inputs: the inputs that user code has processed.
            caused: their productions, each with its input.
            promised: the promised low watermark; no hold is less.
            now: the monotonic clock, in seconds.
            stamp: a stamp that no later commit is before.
            noted: a commit stores the inputs as seen; otherwise they wait for ACKs.

        Returns:
            The inputs that are finished: they caused nothing, and are not noted.
        """
        here: dict[int, WaitingInput] = {}
        done: list[Delivery[Any]] = []
        causes = {id(cause) for cause, _ in caused}
        for cause in inputs:
            if id(cause) in causes:
                here[id(cause)] = WaitingInput(cause, now, noted=noted)
            elif not noted:
                done.append(cause)
        self.passed += len(done)
        if not caused:
            return done
        log = self._log
        number, seq = log.id, log.next_seq
        least, size = MAX_TIME, 0
        by_seq = self._by_seq
        for cause, output in caused:
            hold = output.hold
            if hold < promised:
                hold = output.hold = promised
            output.log = number
            output.seq = seq
            pending = by_seq[seq] = here[id(cause)]
            pending.outputs[seq] = output
            size += output.size
            if hold < least:
                least = hold
            seq += 1
        log.sent(seq, least, size, stamp)
        self._pending.update(here)
        if not noted:
            self._watched.extend(here.values())
        return done

    def arrived(self, seqs: Iterable[int]) -> list[Delivery[Any]]:
        """Note ACKs of productions; gives the inputs that this finishes."""
        done: list[Delivery[Any]] = []
        take = self._by_seq.pop
        for seq in seqs:
            pending = take(seq, None)
            if pending is None:
                continue  # a repeated ACK, or a straggler, which only the log tracks
            del pending.outputs[seq]
            if not pending.outputs:
                del self._pending[id(pending.cause)]
                if not pending.noted:
                    done.append(pending.cause)
        self.passed += len(done)
        return done

    def next_overdue(self) -> float | None:
        """Monotonic time at which the oldest pending input is overdue."""
        watched = self._watched
        while watched and not watched[0].outputs:
            watched.popleft()
        return watched[0].since + self.straggler_seconds if watched else None

    def overdue(self, now: float) -> list[WaitingInput]:
        """Mark overdue inputs as noted, and return them; the caller adds them to a commit."""
        found: list[WaitingInput] = []
        while (due := self.next_overdue()) is not None and due <= now:
            pending = self._watched.popleft()
            pending.noted = True
            found.append(pending)
        return found

    def stragglers(self, inputs: Iterable[Any]) -> list[Delivery[Any]]:
        """The unacknowledged productions of noted inputs, in order, to store in the same commit."""
        if not self._pending:
            return []
        found = [
            pending.outputs
            for item in inputs
            if (pending := self._pending.get(id(item))) is not None
        ]
        return [outputs[seq] for outputs in found for seq in outputs]

    def stored(self, inputs: Iterable[Any]) -> None:
        """Stop tracking inputs with a durable commit: now only the log tracks their stragglers."""
        for item in inputs:
            pending = self._pending.pop(id(item), None)
            if pending is not None:
                for seq in pending.outputs:
                    del self._by_seq[seq]
                pending.outputs.clear()

    def clear(self) -> None:
        """Forget all inputs: they will be processed again."""
        self._pending.clear()
        self._by_seq.clear()
        self._watched.clear()

    def take_passed(self) -> int:
        """Number of inputs finished without a commit of their own since the last call.

        If the commit that should count them fails, the number is lost. A sender that starts over
        together with this interval sends those inputs again, and then they count.
        """
        passed, self.passed = self.passed, 0
        return passed

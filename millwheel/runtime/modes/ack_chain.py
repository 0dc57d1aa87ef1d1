"""Weak productions (paper 6.1.3): sent before anything is stored, vouched for by who sent the input.

An input of a weak computation is acknowledged upstream when everything that came of it has been
acknowledged downstream: the ACKs of a chain of weak computations run back through it hop by hop,
and nothing is written on the way. Until then the input is in flight here, un-ACKed at its sender,
who sends it again if this interval starts over; what it produces then has the ids that it had, and
is dropped where it has arrived (`millwheel.runtime.interval.weak_ids`). ::

    sent ──all have arrived──▶ landed: acknowledged upstream; nothing of it was ever stored
      │
      ├─ it has effects of its own (state, rows, counters, a letter)
      └─ `straggler_after` has passed
          ▼
    noted ──commit──▶ landed: seen, and what had not arrived by then is stored as a *straggler*

One rule holds all this together: *the commit that notes an input as seen also stores what has come
of it and has not arrived.* From then on nobody sends the input again, so nobody would make its
productions again. Stragglers are sent again from the store after a crash, under the ids and in the
buckets that they had, and are forgotten when they are acknowledged, like any production.

Kept in memory is what is not acknowledged, which the credits of the log bound (I8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.model import MAX_TIME, Delivery
from millwheel.runtime.interval.sent_log import SentLog

Caused = tuple[Delivery[Any], Delivery[Any]]
"""An input, and one thing that came of it."""


class WaitingInput:
    """An input, and what of its productions has not arrived."""

    __slots__ = ("cause", "noted", "outputs", "since")

    def __init__(self, cause: Delivery[Any], since: float, *, noted: bool) -> None:
        self.cause = cause
        self.since = since
        self.noted = noted
        """It is in a bundle: it lands when that is durable, and not before."""
        self.outputs: dict[int, Delivery[Any]] = {}
        """By number in the log."""


class AckChain:
    """The inputs of one interval whose productions are on their way.

    Args:
        logs: the interval's; in the last one weak productions are numbered as they are sent.
        straggler_seconds: how long an input waits for what came of it before it is noted.
        keeps_percentiles: the log wants to know every hold.
    """

    def __init__(
        self, logs: list[SentLog], straggler_seconds: float, *, keeps_percentiles: bool
    ) -> None:
        self._log = logs[-1]
        self.straggler_seconds = straggler_seconds
        self._keeps_percentiles = keeps_percentiles
        self._waiting: dict[int, WaitingInput] = {}
        """By the identity of the input, in the order of sending."""
        self._of: dict[int, WaitingInput] = {}
        """By the number of a production."""
        self._watched: deque[WaitingInput] = deque()
        """In the order of sending, those that were not noted when they were sent."""
        self.passed = 0
        """Inputs that have landed without a commit since the last one."""

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
        """Number what has come of some inputs, which is on its way from here on.

        Args:
            promised: the low watermark promised: nothing counts for less.
            now: seconds, by the monotonic clock.
            stamp: a time of the logical clock that no later commit is before.
            noted: the inputs are in a bundle; otherwise they wait for what came of them.

        Returns:
            The inputs that are done with: nothing came of them, and they are not noted.
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
        holds: list[int] = []
        of = self._of
        for cause, output in caused:
            hold = output.hold
            if hold < promised:
                hold = output.hold = promised
            output.log = number
            output.seq = seq
            waiting = of[seq] = here[id(cause)]
            waiting.outputs[seq] = output
            size += output.size
            if hold < least:
                least = hold
            if self._keeps_percentiles:
                holds.append(hold)
            seq += 1
        log.sent(seq, least, size, stamp, holds)
        self._waiting.update(here)
        if not noted:
            self._watched.extend(here.values())
        return done

    def arrived(self, seqs: Iterable[int]) -> list[Delivery[Any]]:
        """Productions were acknowledged; gives the inputs of which nothing is on its way now."""
        done: list[Delivery[Any]] = []
        take = self._of.pop
        for seq in seqs:
            waiting = take(seq, None)
            if waiting is None:
                continue  # a second ACK, or of what is stored and counts by itself
            del waiting.outputs[seq]
            if not waiting.outputs:
                del self._waiting[id(waiting.cause)]
                if not waiting.noted:
                    done.append(waiting.cause)
        self.passed += len(done)
        return done

    def next_overdue(self) -> float | None:
        """When the oldest input that waits will have waited too long, by the monotonic clock."""
        watched = self._watched
        while watched and not watched[0].outputs:
            watched.popleft()
        return watched[0].since + self.straggler_seconds if watched else None

    def overdue(self, now: float) -> list[WaitingInput]:
        """The inputs that have waited too long: noted from now on, the caller puts them in a bundle."""
        found: list[WaitingInput] = []
        while (due := self.next_overdue()) is not None and due <= now:
            waiting = self._watched.popleft()
            waiting.noted = True
            found.append(waiting)
        return found

    def stragglers(self, inputs: Iterable[Any]) -> list[Delivery[Any]]:
        """What has come of noted inputs and has not arrived: to be stored with them, in its order."""
        if not self._waiting:
            return []
        found = [
            waiting.outputs
            for item in inputs
            if (waiting := self._waiting.get(id(item))) is not None
        ]
        return [outputs[seq] for outputs in found for seq in outputs]

    def stored(self, inputs: Iterable[Any]) -> None:
        """Noted inputs are durable, with what had not arrived: the log alone keeps that now."""
        for item in inputs:
            waiting = self._waiting.pop(id(item), None)
            if waiting is not None:
                for seq in waiting.outputs:
                    del self._of[seq]
                waiting.outputs.clear()

    def clear(self) -> None:
        """The inputs are to be processed again: what has come of them counts for nothing here."""
        self._waiting.clear()
        self._of.clear()
        self._watched.clear()

    def take_passed(self) -> int:
        """How many inputs have landed without a commit since this was asked last.

        If the commit that is to count them fails, that is lost: a sender who starts over along with
        this interval makes those inputs land once more, which counts then.
        """
        passed, self.passed = self.passed, 0
        return passed

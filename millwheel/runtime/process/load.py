"""What the work of each interval costs: measured as it runs, told with the heartbeat.

The operating system knows what a whole process costs. Which interval it goes to is found by the
time that chunks of records run: each has its clock read when it begins and when it ends, and
whenever user code waits and goes on, but never for a record. The process' CPU time, with that of
commits, deliveries and chores, is shared out in the same proportion.

Where in an interval's slots the work is comes from one record in `SAMPLED`. What was counted is
forgotten by half every `HALF_LIFE_SECONDS`, so that a key that was hot is soon no reason to split.

A heartbeat every third of a lease (5 s) is often enough: nothing is moved again for half a minute.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millwheel.clock import Clock

if TYPE_CHECKING:
    from millwheel.runtime.interval.interval import Interval

BARS = 32
"""Of a histogram, at the most: a split is found to a thirty-second of an interval's slots."""

SAMPLED = 17
"""One record in so many is looked at: a prime, since sources that go round 16 keys are common."""

HALF_LIFE_SECONDS = 10.0

CHUNK_SECONDS = 0.01
"""For so long user code runs over a chunk of records before others have their turn, the heartbeat among
them."""

FIRST_CHUNK = 32
"""Records in the chunk that shows what a record takes."""


def resident_bytes() -> int:
    """The memory of this process; where the system does not say, or no file can be opened, the most it
    ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


@dataclass(frozen=True)
class Process:
    """What this process costs: a parameter, as the clock is."""

    cpu_seconds: Callable[[], float] = time.process_time
    """CPU time used so far, by all its threads. Asking takes 0.3 µs: not for every chunk."""
    run_seconds: Callable[[], float] = time.perf_counter
    """A clock that is quick to read, 0.05 µs: by it chunks are measured."""
    rss_bytes: Callable[[], int] = resident_bytes


FREE_OF_CHARGE = Process(cpu_seconds=lambda: 0.0, run_seconds=lambda: 0.0)
"""Where time is virtual: what something costs the machine moves no interval and cuts no chunk short."""


class Slotted(Protocol):
    """A record, or a timer that is due."""

    @property
    def slot(self) -> int: ...


class Workload:
    """What was done for one interval since its figures were last taken, and at which slots."""

    __slots__ = ("_bars", "_first", "_record_bytes", "_record_seconds", "_skip", "_width", "records",
                 "run_seconds")  # fmt: skip

    def __init__(self, slots: tuple[int, int]) -> None:
        first, end = slots
        self.run_seconds = 0.0
        self.records = 0
        """Processed and durable; of an injector, read."""
        self._first = first
        self._width = -(-(end - first) // BARS)
        self._bars = [0.0] * -(-(end - first) // self._width)
        self._skip = 0
        """Records up to the next that is looked at."""
        self._record_seconds = CHUNK_SECONDS / FIRST_CHUNK
        """What a record took, in the chunk that ran last."""
        self._record_bytes = 0.0
        """And how much of effects it had."""

    def sample(self, items: Sequence[Slotted]) -> None:
        """Look at some of a chunk: every so many-th over all chunks, however long they are."""
        place, count = self._skip, len(items)
        while place < count:
            self._bars[(items[place].slot - self._first) // self._width] += 1.0
            place += SAMPLED
        self._skip = place - count

    def chunk(self, most: int, most_bytes: int) -> int:
        """How many records to run as the next chunk, by the last one: as many as take `CHUNK_SECONDS`, and
        have effects of `most_bytes`; `most` at the most."""
        if most * self._record_seconds > CHUNK_SECONDS:
            most = max(1, int(CHUNK_SECONDS / self._record_seconds))
        if most * self._record_bytes > most_bytes:
            most = max(1, int(most_bytes / self._record_bytes))
        return most

    def chunk_ran(self, records: int, seconds: float, bytes_: int) -> None:
        """A chunk of so many records has run for so long, and has effects of so many bytes."""
        if seconds >= 0:  # else the time was forgotten meanwhile
            self._record_seconds = seconds / records
        self._record_bytes = bytes_ / records

    def forget(self, seconds: float) -> None:
        """So much time has passed: begin to count anew, and let the histogram fade."""
        self.run_seconds = 0.0
        self.records = 0
        left = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        self._bars = [bar * left for bar in self._bars]

    def histogram(self) -> list[tuple[int, float]]:
        """(first slot, how many of those looked at): each bar up to the next one's first slot."""
        bars = [round(bar, 2) for bar in self._bars]
        if not any(bars):
            return []
        return [(self._first + number * self._width, bar) for number, bar in enumerate(bars)]


class Measured:
    """Awaits something, and adds up how long it runs: not how long it waits."""

    __slots__ = ("_clock", "_coroutine", "_workload")

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], workload: Workload, clock: Callable[[], float]
    ) -> None:
        self._coroutine = coroutine
        self._workload = workload
        self._clock = clock

    def __await__(self) -> Generator[Any, None, None]:
        clock, coroutine, workload = self._clock, self._coroutine, self._workload
        thrown: BaseException | None = None
        while True:
            began = clock()
            try:
                awaited = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
            except StopIteration:
                return
            finally:
                workload.run_seconds += clock() - began
            thrown = None
            try:
                yield awaited
            except BaseException as error:  # whoever cancels means what is awaited
                thrown = error


class Meter:
    """Makes figures of what was counted, once in a while."""

    def __init__(self, clock: Clock, process: Process) -> None:
        self._clock = clock
        self._process = process
        self._looked_at = clock.monotonic()
        self._cpu_seconds = process.cpu_seconds()

    def take(self, intervals: Iterable[Interval]) -> dict[str, Any]:
        """The figures since the last time, as the heartbeat publishes them."""
        now, cpu_seconds = self._clock.monotonic(), self._process.cpu_seconds()
        passed, used = now - self._looked_at, cpu_seconds - self._cpu_seconds
        self._looked_at, self._cpu_seconds = now, cpu_seconds
        cpu = used / passed if passed > 0 else 0.0
        owned = list(intervals)
        ran = sum(interval.workload.run_seconds for interval in owned)
        return {
            "cpu": round(cpu, 4),
            "rss_bytes": self._process.rss_bytes(),
            "intervals": {
                str(interval.id): _figures(interval, passed, cpu / ran if ran else 0.0)
                for interval in owned
            },
        }


def _figures(interval: Interval, passed: float, cpu_per_second_run: float) -> dict[str, Any]:
    """One interval's part; its counting begins anew."""
    workload = interval.workload
    figures = {
        "cpu": round(workload.run_seconds * cpu_per_second_run, 4),
        "records": round(workload.records / passed, 2) if passed > 0 else 0.0,
        "queue": len(interval.intake),
        "state_bytes": 0 if interval.states is None else interval.states.size,
        "histogram": workload.histogram(),
    }
    flow = None if interval.source_task is None else interval.source_task.flow()
    if flow is not None:
        figures["flow"] = flow._asdict()
    workload.forget(passed)
    return figures

"""The load of each interval, measured while it runs and published with the heartbeat.

The worker measures the run time of chunks of records, without the waits of user code, and divides
the CPU time of the process, including commits and chores, in proportion.

A histogram of slots shows where the work of an interval lies, for splits.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from millwheel.core.clock import Clock
from millwheel.runtime.process.durations import CODE_BOUNDS, Durations

BARS = 32
"""Bars of a histogram: it locates a split to 1/32 of an interval's slots."""

SAMPLED = 17
"""One record in this number: a prime, since sources that cycle through 16 keys are common."""

HALF_LIFE_SECONDS = 10.0

CHUNK_SECONDS = 0.01
"""Time for which user code runs over a chunk before other tasks run, such as the heartbeat."""

FIRST_CHUNK = 32


def resident_bytes() -> int:
    """The peak, if the system does not report the present value."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


@dataclass(frozen=True)
class Process:
    cpu_seconds: Callable[[], float] = time.process_time
    """CPU time of all threads so far. A call takes 0.3 µs, too long to make one per chunk."""
    run_seconds: Callable[[], float] = time.perf_counter
    """Measures chunks; a call takes 0.05 µs."""
    rss_bytes: Callable[[], int] = resident_bytes


FREE_OF_CHARGE = Process(cpu_seconds=lambda: 0.0, run_seconds=lambda: 0.0)
"""A process without costs, for tests: the speed of the machine must not move an interval or shorten
a chunk."""


class Workload:
    __slots__ = (
        "_bars",
        "_bytes_before",
        "_first",
        "_record_bytes",
        "_record_seconds",
        "_seconds_before",
        "_skip",
        "_width",
        "code",
        "decided_bytes",
        "records",
        "records_out",
        "run_seconds",
    )

    def __init__(self, slots: tuple[int, int]) -> None:
        first, end = slots
        self.run_seconds = 0.0
        self.records = 0
        """Records that are processed and durable; for an injector, rows read."""
        self.records_out = 0
        """Records for readers, rows and lines, that durable commits counted."""
        self.code = Durations(CODE_BOUNDS)
        self._first = first
        self._width = -(-(end - first) // BARS)
        self._bars = [0.0] * -(-(end - first) // self._width)
        self.decided_bytes = 0
        self._skip = 0
        self._record_seconds = CHUNK_SECONDS / FIRST_CHUNK
        """Mean run time of a record in the latest chunk."""
        self._seconds_before = 0.0
        self._bytes_before = 0
        self._record_bytes = 0.0

    def sample(self, slots: Sequence[int]) -> None:
        place, count = self._skip, len(slots)
        while place < count:
            self._bars[(slots[place] - self._first) // self._width] += 1.0
            place += SAMPLED
        self._skip = place - count

    def chunk(self, limit: int, most_bytes: int) -> int:
        """Records for about `CHUNK_SECONDS`, and `most_bytes` of effects, by the latest figures."""
        if limit * self._record_seconds > CHUNK_SECONDS:
            limit = max(1, int(CHUNK_SECONDS / self._record_seconds))
        if limit * self._record_bytes > most_bytes:
            limit = max(1, int(most_bytes / self._record_bytes))
        return limit

    def chunk_begins(self) -> None:
        self._seconds_before, self._bytes_before = self.run_seconds, self.decided_bytes

    def chunk_ran(self, records: int) -> None:
        seconds = self.run_seconds - self._seconds_before
        if seconds >= 0:  # otherwise `forget` was called since
            self._record_seconds = seconds / records
        self._record_bytes = (self.decided_bytes - self._bytes_before) / records

    def forget(self, seconds: float) -> None:
        """Reset the counts, and decay the histogram by the time that has passed."""
        self.run_seconds = 0.0
        self.records = self.records_out = 0
        self.code = Durations(CODE_BOUNDS)
        left = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        self._bars = [bar * left for bar in self._bars]

    def histogram(self) -> list[tuple[int, float]]:
        """(first slot, count of sampled records); a bar ends at the next one's first slot."""
        bars = [round(bar, 2) for bar in self._bars]
        if not any(bars):
            return []
        return [(self._first + number * self._width, bar) for number, bar in enumerate(bars)]


class Measured:
    """Adds up the run time of a coroutine, without its waits."""

    __slots__ = ("_clock", "_coroutine", "_on_wait", "_workload")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        workload: Workload,
        clock: Callable[[], float],
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self._coroutine = coroutine
        self._workload = workload
        self._clock = clock
        self._on_wait = on_wait

    def __await__(self) -> Generator[Any, None, None]:
        clock, coroutine, workload = self._clock, self._coroutine, self._workload
        on_wait = self._on_wait
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
            if on_wait is not None:
                on_wait()
            try:
                yield awaited
            except BaseException as error:  # pass a cancellation on to the coroutine
                thrown = error


async def measured(
    make: Callable[[], Coroutine[Any, Any, None]],
    workload: Workload,
    clock: Callable[[], float],
    on_wait: Callable[[], None] | None = None,
) -> None:
    """The coroutine is made here: a task may be cancelled before it begins."""
    await Measured(make(), workload, clock, on_wait)


class Measurable(Protocol):
    id: int
    workload: Workload

    def figures(self) -> dict[str, Any]: ...


class Meter:
    def __init__(self, clock: Clock, process: Process) -> None:
        self._clock = clock
        self._process = process
        self._taken_at = clock.monotonic()
        self._cpu_seconds = process.cpu_seconds()

    def take(self, intervals: Iterable[Measurable]) -> dict[str, Any]:
        """The figures since the previous call, as the heartbeat publishes them."""
        now, cpu_seconds = self._clock.monotonic(), self._process.cpu_seconds()
        passed, used = now - self._taken_at, cpu_seconds - self._cpu_seconds
        self._taken_at, self._cpu_seconds = now, cpu_seconds
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


def _figures(interval: Measurable, passed: float, cpu_per_second_run: float) -> dict[str, Any]:
    workload, own = interval.workload, interval.figures()
    at_work = own.get("at_work")
    code = workload.code if at_work is None else workload.code.with_running(at_work["seconds"])
    figures = {
        "cpu": round(workload.run_seconds * cpu_per_second_run, 4),
        "records": round(workload.records / passed, 2) if passed > 0 else 0.0,
        "records_out": round(workload.records_out / passed, 2) if passed > 0 else 0.0,
        "histogram": workload.histogram(),
        "code": {
            "calls": workload.code.count,
            "seconds": round(workload.code.total, 6),
            "p99": round(code.percentile(0.99), 6),
        },
        **own,
    }
    workload.forget(passed)
    return figures

"""Beats at a fixed rate, from a separate process that the measured work does not delay.

Run as a program it writes its start time (8 bytes), then a byte at each beat.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

BEGIN = struct.Struct("d")
PAUSE_SECONDS = 0.05
"""Delay before the first beat."""


@asynccontextmanager
async def beats(rate: float, total: int, beat: Callable[[int], None]) -> AsyncIterator[list[float]]:
    """Call `beat` with 0, 1, ... at `rate` per second; yield the due time of each (`perf_counter`).

    A late beat is made up immediately and keeps its due time, so work that waits behind slow work
    counts as slow (no coordinated omission).
    """
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-S", __file__, str(rate), str(total), stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    (begin,) = BEGIN.unpack(await program.stdout.readexactly(BEGIN.size))
    listening = asyncio.create_task(_listen(program.stdout, beat))
    try:
        yield [begin + number / rate for number in range(total)]
    finally:
        listening.cancel()
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()


async def _listen(pipe: asyncio.StreamReader, beat: Callable[[int], None]) -> None:
    number = 0
    while received := await pipe.read(1 << 16):
        for _ in received:
            beat(number)
            number += 1


def main(rate: float, total: int) -> None:
    """Write the beats."""
    out = sys.stdout.fileno()
    begin = time.perf_counter() + PAUSE_SECONDS
    os.write(out, BEGIN.pack(begin))
    for number in range(total):
        if (left := begin + number / rate - time.perf_counter()) > 0:
            time.sleep(left)
        os.write(out, b".")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(float(sys.argv[1]), int(sys.argv[2]))

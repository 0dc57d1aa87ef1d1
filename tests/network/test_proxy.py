"""The proxy of the chaos tests does to frames what it is told, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from millwheel.runtime.network.frames import Frame, Gap, NotMine
from millwheel.testing.ether import Fate
from tests.support.network_sites import TcpSite, Worker, nothing_left

ROOT = Path(__file__).parents[2]


def numbered(*numbers: int) -> list[Frame]:
    return [NotMine(number, 0, 0) for number in numbers]


async def carried(site: TcpSite, one: Worker, two: Worker, count: int) -> list[Frame]:
    link = one.links._outgoing["two"]
    for frame in numbered(*range(1, 11)):
        one.send(link, frame)
    await site.until(lambda: len(two.heard.frames) == count)
    await site.settle()
    return two.heard.frames


async def test_frames_are_lost_doubled_and_overtaken_as_planned() -> None:
    async with nothing_left():
        site = TcpSite()
        one, two = await site.worker("one"), await site.worker("two")
        link = one.call(two)
        await site.until(lambda: link.up)
        proxy = site.proxies["two"]
        proxy.next(Gap, Fate(copies=0))  # none comes, and what stands behind it waits its turn
        assert await carried(site, one, two, 10) == numbered(*range(1, 11))
        one.send(link, Gap(1, 1, 1, 1))
        proxy.next(NotMine, Fate(copies=0))
        proxy.next(NotMine, Fate(copies=2))
        proxy.next(NotMine, Fate(delay=0.05, overtakes=True))
        two.heard.frames.clear()
        assert await carried(site, one, two, 10) == numbered(2, 2, 4, 5, 6, 7, 8, 9, 10, 3)
        await site.close()


async def test_as_a_process_it_takes_commands() -> None:
    site = TcpSite()
    one, two = await site.worker("one"), await site.worker("two")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.proxy", two.links.address,
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    async def tell(line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n".encode())
        return (await process.stdout.readline()).decode().strip()

    address = (await process.stdout.readline()).decode().split()[1]
    link = one.links.link("two", address)
    await site.until(lambda: link.up)
    assert await tell("next NotMine copies=0 count=9") == "ok"
    assert await carried(site, one, two, 1) == numbered(10)
    assert await tell("weather delay=0.01 duplicate=1 seed=3") == "ok"
    one.send(link, NotMine(11, 0, 0))
    await site.until(lambda: two.heard.frames == numbered(10, 11, 11))
    assert await tell("weather") == "ok"
    assert (await tell("dance")).startswith("error")
    assert await tell("cut") == "ok"
    await site.until(lambda: not link.up)
    async with asyncio.timeout(60):
        while not link.up:  # the proxy's process lives by another clock: it gets time of that one
            site.clock.advance(0.1)
            await asyncio.sleep(0.02)
    process.stdin.close()
    assert await process.wait() == 0
    await site.close()

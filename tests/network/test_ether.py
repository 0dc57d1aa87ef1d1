"""The made-up network: fates of frames, and the same ones again from the same seed."""

from __future__ import annotations

from random import Random

from millwheel.runtime.network.frames import Frame, NotMine, decode
from millwheel.testing.ether import Fate, Weather
from tests.support.network_sites import EtherSite, Worker, nothing_left


def numbered(*numbers: int) -> list[Frame]:
    return [NotMine(number, 0, 0) for number in numbers]


async def two(site: EtherSite) -> tuple[Worker, Worker]:
    one, two = await site.worker("one"), await site.worker("two")
    link = one.call(two)
    await site.until(lambda: link.up and two.heard.links)
    return one, two


async def sent(site: EtherSite, one: Worker, *numbers: int) -> None:
    for frame in numbered(*numbers):
        one.send(one.heard.links["two", True], frame)
    await site.settle()


async def test_what_comes_behind_a_late_frame_waits_for_it_unless_it_overtakes() -> None:
    async with nothing_left():
        site = EtherSite()
        one, two_ = await two(site)
        fates = {1: Fate(delay=0.75), 3: Fate(overtakes=True), 4: Fate(copies=2), 5: Fate(copies=0)}

        def weather(sender: str, receiver: str, body: bytes) -> Fate:
            frame = decode(body)
            return fates.get(frame.log, Fate()) if isinstance(frame, NotMine) else Fate()

        site.ether.weather = weather
        await sent(site, one, 1, 2, 3, 4, 5, 6)
        assert two_.heard.frames == numbered(3)
        site.clock.advance(0.5)
        await site.settle()
        assert two_.heard.frames == numbered(3)
        site.clock.advance(0.25)
        await site.settle()
        assert two_.heard.frames == numbered(3, 1, 2, 4, 4, 6)
        await site.close()


async def test_what_is_on_its_way_while_two_places_are_parted_comes_when_they_are_joined() -> None:
    async with nothing_left():
        site = EtherSite()
        one, two_ = await two(site)
        site.part(one, two_)
        await sent(site, one, 1, 2, 3)
        assert two_.heard.frames == []
        site.join(one, two_)
        await sent(site, one, 4)
        assert two_.heard.frames == numbered(1, 2, 3, 4)
        await site.close()


async def stormy(seed: int) -> list[Frame]:
    async with nothing_left():
        site = EtherSite()
        one, two_ = await two(site)
        site.ether.weather = Weather(Random(seed), drop=0.1, duplicate=0.1, overtake=0.3, delay=0.4)
        for number in range(200):
            await sent(site, one, number)
            site.clock.advance(0.01)
        await site.live(2)
        site.ether.weather = Weather(Random(0))
        await site.close()
        return two_.heard.frames


async def test_the_same_seed_gives_the_same_weather() -> None:
    first, again, other = await stormy(1), await stormy(1), await stormy(2)
    assert first == again
    assert first != other
    assert first != sorted(first, key=lambda frame: frame.log)  # type: ignore[attr-defined]
    numbers = [frame.log for frame in first]  # type: ignore[attr-defined]
    assert len(set(numbers)) < 200
    assert len(set(numbers)) < len(numbers)

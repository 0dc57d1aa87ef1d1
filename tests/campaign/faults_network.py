"""What happens between workers: by a proxy that knows frames, or at a cable between two
machines."""

from __future__ import annotations

import asyncio
from random import Random

from millwheel.testing.fake_network import Fate, Weather, fair
from tests.campaign.crew import Hand
from tests.campaign.faults import Outcome, Scene, fault, on_one
from tests.faults.chaos import STORM
from tests.support.machines import INTERFACE, Machine
from tests.support.proxy import SIDES, Proxy

STORM_FRAMES = 5
"""So many frames at the least went through a storm."""
NARROW = ("rate", "256kbit", "burst", "4kb", "limit", "16kb")
"""A cable that carries 32 kB a second and holds half a second of it: the rest waits, then is
lost."""


def _proxy(hand: Hand) -> Proxy:
    assert hand.proxy is not None
    return hand.proxy


@fault("cut", "frames")
@on_one
async def cut(scene: Scene, hand: Hand) -> Outcome:
    """All connections between a worker and the other workers break."""
    proxy = _proxy(hand)
    connected = proxy.connected
    proxy.cut()
    return Outcome(connected > 0, f"{connected} connections", scene.owned(hand))


@fault("deaf", "frames", counts_as="partition")
@on_one
async def deaf(scene: Scene, hand: Hand) -> Outcome:
    """A worker's connections are accepted, but carry no data in one or both directions for
    seconds."""
    proxy, owned = _proxy(hand), scene.owned(hand)
    connected = proxy.connected
    sides = scene.draw.choice((SIDES, SIDES[:1], SIDES[1:]))
    proxy.stall(*sides)
    try:
        await asyncio.sleep(scene.draw.uniform(1, 6))
    finally:
        proxy.resume()
    return Outcome(connected > 0, " and ".join(sides), owned)


class OneWay:
    """Weather for what one side sends."""

    def __init__(self, weather: Weather, sides: tuple[str, ...]) -> None:
        self._weather = weather
        self._sides = sides

    def __call__(self, sender: str, receiver: str, body: bytes) -> Fate:
        fates = self._weather if sender in self._sides else fair
        return fates(sender, receiver, body)


@fault("storm", "frames")
@on_one
async def storm(scene: Scene, hand: Hand) -> Outcome:
    """For seconds, frames in one or both directions of a worker's connections are lost, duplicated,
    delayed and reordered."""
    proxy, draw = _proxy(hand), scene.draw
    before, owned = proxy.carried, scene.owned(hand)
    sides = draw.choice((SIDES, SIDES[:1], SIDES[1:]))
    proxy.weather = OneWay(Weather(Random(draw.random()), **STORM), sides)
    try:
        await asyncio.sleep(draw.uniform(1, 6))
    finally:
        proxy.weather = fair
    carried = proxy.carried - before
    return Outcome(carried >= STORM_FRAMES, f"{carried} frames", owned)


@fault("shut", "frames", counts_as="partition")
@on_one
async def shut(scene: Scene, hand: Hand) -> Outcome:
    """The other workers' connections to a worker break, and none can be opened for seconds."""
    proxy, owned = _proxy(hand), scene.owned(hand)
    connected = proxy.connected
    proxy.shut = True
    proxy.cut()
    try:
        await asyncio.sleep(scene.draw.uniform(1, 5))
    finally:
        proxy.shut = False
    return Outcome(connected > 0, intervals=owned)


# -- machines ------------------------------------------------------------------------------


def _both_work(scene: Scene) -> bool:
    at_work = {hand.machine for hand in scene.crew.alive if scene.owned(hand)}
    return len(at_work) == len(scene.machines)


@fault("cable pulled", "machines", counts_as="partition")
async def cable_pulled(scene: Scene) -> Outcome:
    """The link between two machines is down for seconds; both still reach Postgres."""
    cable = scene.cable
    assert cable is not None
    working = _both_work(scene)
    await asyncio.to_thread(cable.cut)
    try:
        await asyncio.sleep(scene.draw.uniform(1, 8))
    finally:
        await asyncio.to_thread(cable.mend)
    return Outcome(working)


@fault("one way lost", "machines", counts_as="partition")
async def one_way_lost(scene: Scene) -> Outcome:
    """For seconds, all packets from one machine are lost without a signal; packets from the other
    machine arrive."""
    cable, sender = scene.cable, scene.draw.choice(scene.machines)
    assert cable is not None
    working = _both_work(scene)
    await asyncio.to_thread(cable.lose, sender)
    try:
        await asyncio.sleep(scene.draw.uniform(1, 8))
    finally:
        await asyncio.to_thread(cable.find, sender)
    return Outcome(working, sender.address)


@fault("cable narrow", "machines")
async def cable_narrow(scene: Scene) -> Outcome:
    """A cable with 32 kB a second in one or both directions: packets queue, and are lost when the
    queue is full."""
    senders = scene.draw.choice((scene.machines, scene.machines[:1], scene.machines[1:]))
    working = _both_work(scene)
    await asyncio.to_thread(_narrow, senders, True)
    try:
        await asyncio.sleep(scene.draw.uniform(2, 8))
    finally:
        await asyncio.to_thread(_narrow, senders, False)
    return Outcome(working, " and ".join(machine.address for machine in senders))


def _narrow(senders: tuple[Machine, ...], narrow: bool) -> None:
    for machine in senders:
        if narrow:
            machine.do("tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", *NARROW)
        else:
            machine.do("tc", "qdisc", "del", "dev", INTERFACE, "root")

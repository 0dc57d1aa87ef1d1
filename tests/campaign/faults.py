"""What can happen, one name each, and what happens to processes.

A fault is a coroutine that is given the `Scene`, does its harm, undoes it, and says how it went. It
was *effective* if what it is for came about: a kill met a worker that had just committed, a zombie
learned by a commit of its own that somebody else has the interval, a commit's reply was lost. What
was not is told, and counts for nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.campaign.control import POINTS
from tests.campaign.crew import Crew, Hand
from tests.campaign.pulse import Pulse
from tests.support.machines import Cable, Machine

MICROS = 1_000_000
LOOK_SECONDS = 0.02
OTHERS = "another owner has claimed the interval"
"""What the store says to a commit that the fence refuses."""

VICTIM_SECONDS = 5.0
NAMED_SECONDS = 3.0
"""Code that blocks for so long is named."""


@dataclass
class Scene:
    """Where faults take place."""

    crew: Crew
    pulse: Pulse
    draw: Random
    wanted: int
    """Workers that there are to be."""
    machines: tuple[Machine, ...] = ()
    cable: Cable | None = None
    cgroup: Any = None
    site_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def owned(self, hand: Hand) -> set[int]:
        """What a worker is known to have."""
        return set(self.pulse.owned.get(hand.id, ()))

    async def victim(self) -> Hand | None:
        """A worker that owns something, to which nothing is being done; waited for, for a while."""
        await until(self._free, VICTIM_SECONDS)
        free = self._free()
        return self.draw.choice(free) if free else None

    def _free(self) -> list[Hand]:
        owned = self.pulse.owned
        return [h for h in self.crew.alive if not h.busy and h.id and owned.get(h.id)]

    async def replace(self) -> None:
        """One more worker, if one is missing."""
        if len(self.crew.alive) < self.wanted and not self.crew.finished:
            await self.crew.add()

    async def replace_soon(self, seconds: float = 1.0) -> None:
        """The same, after a while of up to so long."""
        await asyncio.sleep(self.draw.uniform(0, seconds))
        await self.replace()


@dataclass
class Outcome:
    """How a fault went."""

    effective: bool
    note: str = ""
    intervals: Collection[int] | None = None
    """Those that it met; None: all."""
    times: int = 1
    """What it counts for: processes killed at once."""


Strike = Callable[[Scene], Awaitable[Outcome]]


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    what: str
    strike: Strike
    needs: frozenset[str]
    """What a run must have: frames, wire, machines, cgroup, or a site."""
    counts_as: str
    """The target it counts for: kill, zombie, crash, partition; or nothing."""


FAULTS: dict[str, Fault] = {}
NOBODY = Outcome(False, "nobody to harm", ())


def fault(name: str, *needs: str, counts_as: str = "") -> Callable[[Strike], Strike]:
    """Put a fault into the list; what it does is told by its docstring."""

    def add(strike: Strike) -> Strike:
        what = " ".join((strike.__doc__ or "").split())
        FAULTS[name] = Fault(name, what, strike, frozenset(needs), counts_as)
        return strike

    return add


def on_one(strike: Callable[[Scene, Hand], Awaitable[Outcome]]) -> Strike:
    """A fault of one worker, which is left alone by others meanwhile."""

    async def alone(scene: Scene) -> Outcome:
        hand = await scene.victim()
        if hand is None:
            return NOBODY
        hand.busy = True
        try:
            return await strike(scene, hand)
        finally:
            hand.busy = False

    alone.__doc__ = strike.__doc__
    return alone


async def until(true: Callable[[], object], seconds: float) -> bool:
    """Whether it comes to be so in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


async def put_down(hand: Hand) -> None:
    """kill -9."""
    hand.expected.add(-signal.SIGKILL)
    hand.send(signal.SIGKILL)
    await hand.wait()


@fault("kill", counts_as="kill")
@on_one
async def kill(scene: Scene, hand: Hand) -> Outcome:
    """SIGKILL to a worker that owns intervals, while rows arrive; another one starts within a
    second."""
    owned = scene.owned(hand)
    busy = scene.pulse.is_busy(owned)
    await put_down(hand)
    await scene.replace_soon()
    return Outcome(busy, "" if busy else "nothing was on its way", owned)


@fault("kill all", counts_as="kill")
async def kill_all(scene: Scene) -> Outcome:
    """SIGKILL to all workers at once, while rows arrive; all of them are replaced."""
    hands = [hand for hand in scene.crew.alive if not hand.busy]
    killed = sum(scene.pulse.is_busy(scene.owned(hand)) for hand in hands)
    for hand in hands:
        hand.busy = True
        hand.expected.add(-signal.SIGKILL)
        hand.send(signal.SIGKILL)
    for hand in hands:
        await hand.wait()
    for _ in hands:
        await scene.replace()
    return Outcome(killed > 0, f"{killed} workers", times=max(killed, 1))


async def killed_at(
    scene: Scene, hand: Hand, point: str, lead: Callable[[], Awaitable[Outcome]] | None = None
) -> Outcome:
    """A worker that kills itself when it comes to a point, to which it is led if it would not go
    there of itself; without effect if that was not done."""
    owned, since = scene.owned(hand), time.time()
    hand.expected.add(-signal.SIGKILL)
    hand.control.arm(point)
    led = None if lead is None else await lead()
    if led is not None and not led.effective and hand.alive:
        hand.control.arm("")
        return led
    died = await until(lambda: not hand.alive, 12.0)
    if not died:
        hand.control.arm("")
        return Outcome(False, f"{point}: it never came there", ())
    said = hand.has_said("dies", since)
    await scene.replace_soon()
    return Outcome(bool(said), point, owned)


def _at(point: str) -> Strike:
    async def strike(scene: Scene, hand: Hand) -> Outcome:
        return await killed_at(scene, hand, point)

    strike.__doc__ = f"A worker kills itself with SIGKILL: {point}."
    return on_one(strike)


IN_CUT = "in split or merge"
"""A point that a worker has to be led to (`faults_placement`)."""

for _point in POINTS[1:]:
    if "takeover" not in _point and _point != IN_CUT:
        fault(f"kill {_point}", counts_as="kill")(_at(_point))


async def _in_takeover(scene: Scene, point: str) -> Outcome:
    """Two must fall: one whose intervals are free then, and the one that takes them."""
    first = await scene.victim()
    if first is None:
        return NOBODY
    first.busy = True
    owned = scene.owned(first)
    busy = scene.pulse.is_busy(owned)
    others = [hand for hand in scene.crew.alive if not hand.busy and hand.id]
    since = time.time()
    for hand in others:
        hand.busy = True
        hand.expected.add(-signal.SIGKILL)
        hand.control.arm(point)
    try:
        await put_down(first)
        await until(
            lambda: any(not hand.alive for hand in others), 3 * scene.crew.work.lease_seconds
        )
    finally:
        for hand in others:
            hand.busy = False
            if hand.alive:
                hand.control.arm("")
    died = sum(bool(hand.has_said("dies", since)) for hand in others)
    for _ in range(1 + died):
        await scene.replace()
    return Outcome(died > 0, f"{point}: {died} takers died", owned, times=busy + died)


def _taking(point: str) -> Strike:
    async def strike(scene: Scene) -> Outcome:
        return await _in_takeover(scene, point)

    strike.__doc__ = f"SIGKILL to a worker and to the one that takes over its intervals: {point}."
    return strike


for _point in POINTS[1:]:
    if "takeover" in _point:
        fault(f"kill {_point}", counts_as="kill")(_taking(_point))


async def _stopped(scene: Scene, hand: Hand, seconds: float, *, clock_too: bool) -> Outcome:
    owned, began, since = scene.owned(hand), time.monotonic(), time.time()
    hand.send(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    lost = owned - scene.owned(hand)
    if clock_too:
        slept = round((time.monotonic() - began) * MICROS)
        hand.control.set("standing", hand.control.get("standing") + slept)
    hand.send(signal.SIGCONT)
    await until(lambda: refused(hand, since) or not hand.alive, 2.0)
    note = f"{len(lost)} of {len(owned)} intervals lost, {refused(hand, since)} commits refused"
    note += ", it let go by itself" if hand.has_said("lease_over", since) else ""
    await scene.replace()
    return Outcome(refused(hand, since) > 0, note, owned)


def refused(hand: Hand, since: float) -> int:
    """How many commits of a worker were refused, or intervals found to be somebody else's, since a
    time. Who lets go by itself because its lease is over is not fenced."""
    failed = hand.has_said("commit_failed", since)
    return len(hand.has_said("fenced", since)) + sum(OTHERS in event["error"] for event in failed)


@fault("freeze", counts_as="zombie")
@on_one
async def freeze(scene: Scene, hand: Hand) -> Outcome:
    """SIGSTOP for longer than the lease, then SIGCONT: the worker's clock has continued, so it may
    notice by itself."""
    seconds = scene.crew.work.lease_seconds * scene.draw.uniform(1.3, 2.2)
    return await _stopped(scene, hand, seconds, clock_too=False)


@fault("suspend", counts_as="zombie")
@on_one
async def suspend(scene: Scene, hand: Hand) -> Outcome:
    """Like `freeze`, and the worker's monotonic clock has stood still, as on a suspended machine:
    only the fence stops it."""
    seconds = scene.crew.work.lease_seconds * scene.draw.uniform(1.3, 2.2)
    return await _stopped(scene, hand, seconds, clock_too=True)


@fault("blocked")
@on_one
async def blocked(scene: Scene, hand: Hand) -> Outcome:
    """User code of a worker blocks its event loop for longer than the lease. It keeps its
    intervals, and its log names the code."""
    owned, since = scene.owned(hand), time.time()
    seconds = max(NAMED_SECONDS, scene.crew.work.lease_seconds * scene.draw.uniform(1.3, 3))
    hand.control.set("block", round(seconds * 1000))
    named = await until(lambda: hand.has_said("loop_blocked", since) or not hand.alive, 2 * seconds)
    await until(lambda: not hand.alive, seconds)
    hand.control.set("block", 0)
    lost = refused(hand, since) + len(hand.has_said("lease_over", since))
    await scene.replace()
    return Outcome(named and not lost, f"{seconds:.1f} s, {lost} intervals lost", owned)


@fault("leave")
@on_one
async def leave(scene: Scene, hand: Hand) -> Outcome:
    """SIGTERM to a worker; another one starts within a second."""
    owned = scene.owned(hand)
    code = await hand.end(signal.SIGTERM, 128 + signal.SIGTERM)
    await scene.replace_soon()
    return Outcome(code == 128 + signal.SIGTERM, intervals=owned)


@fault("join")
async def join(scene: Scene) -> Outcome:
    """One worker too many starts; one leaves when the new one has taken an interval."""
    if len(scene.crew.alive) > scene.wanted:
        return NOBODY
    made = await scene.crew.add()
    made.busy = True
    took = await until(lambda: scene.owned(made) or not made.alive, 8.0)
    made.busy = False
    if made.alive:
        await made.end(signal.SIGTERM, 128 + signal.SIGTERM)
    return Outcome(took)


@fault("clock")
@on_one
async def clock(scene: Scene, hand: Hand) -> Outcome:
    """The wall clock of a worker is set by up to an hour in either direction, and back after some
    seconds."""
    owned, draw = scene.owned(hand), scene.draw
    step = draw.choice((-1, 1)) * draw.choice((0.5, 30, 3600)) * draw.uniform(0.1, 1)
    hand.control.set("wall", round(step * MICROS))
    await asyncio.sleep(draw.uniform(1, 5))
    hand.control.set("wall", 0)
    return Outcome(hand.alive, f"{step:+.1f} s", owned)

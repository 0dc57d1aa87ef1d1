"""Broken and hostile peers (I18, decision 41): what they say costs them their link, and nobody else
anything.

The first half talks to the port of real workers, with nothing but the standard library. The second
half is on virtual time: a peer that knows the secret says what only an owner may say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millwheel import Computation, Context, Pipeline, Record, Stream, Table
from millwheel.core.clock import SystemClock
from millwheel.core.model import MAX_TIME, MIN_TIME, SLOTS
from millwheel.errors import InputError, PeerError, UserCodeError
from millwheel.runtime.engine import Engine
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.network.courier import Courier
from millwheel.runtime.network.frames import (
    FRAME_INTERVALS,
    FRAME_RECORDS,
    FRAME_RUNS,
    Acknowledge,
    Ask,
    Deliver,
    Frame,
    Gap,
    Loose,
    NotMine,
    Progress,
    RecordRow,
    Report,
    RootReport,
    Run,
    TooNew,
)
from millwheel.runtime.network.handshake import Identity
from millwheel.runtime.network.links import Links
from millwheel.runtime.network.peer_ports import Link
from millwheel.runtime.network.receiver import QUESTIONS_KEPT
from millwheel.runtime.network.trust import KEPT_REPORTS, ClaimStatus, Trust
from millwheel.runtime.network.wire_stream import (
    FIRST_PATIENCE_SECONDS,
    NOTHING,
    Outgoing,
    check_runs,
)
from millwheel.services.tcp import Tcp
from millwheel.store.memory import MemoryStore
from millwheel.store.port.placement import PlacedInterval, PlacedWorker, Placement, Wish
from millwheel.testing import inject
from millwheel.testing.fake_network import SECRET
from millwheel.testing.script import Script, ScriptReader
from tests.support import hostile
from tests.support.clusters import SHARED, Cluster, check, counting, cut_input, live, many
from tests.support.drawing import seeds
from tests.support.hostile import Attacker
from tests.support.peers import Listener, links_of, logged, next_of, record, until
from tests.support.values import TALLY, Counted, Item, key_of, time_of
from tests.support.worlds import end_scripts

LARGEST = (1 << 63) - 1


# -- at the port, with the standard library --------------------------------------------------------


class Plant:
    """Two workers over real sockets, in the midst of their work."""

    def __init__(self, values: list[Item]) -> None:
        settings = replace(SHARED, placement_seconds=0.05, lease_seconds=10.0)
        self.pipeline = pipeline = counting(values, settings)
        end_scripts(pipeline)
        self.name = pipeline.name
        self.values = values
        self.store = MemoryStore(pipeline.name, clock=SystemClock())

        def network(worker: str) -> Links:
            return Links(Identity(pipeline.name, worker, SECRET), Tcp())

        self.engines = [Engine(pipeline, self.store, network=network) for _ in range(2)]

    async def start(self) -> None:
        for engine in self.engines:
            await engine.start()
            engine.attend(Engine.claiming, "claiming")
        await until(lambda: all(min(e.processed, len(e.intervals)) for e in self.engines))

    @property
    def address(self) -> str:
        return links_of(self.engines[0]).address

    async def tally(self) -> Interval:
        """An interval of the tally that the first worker owns now; the balancer moves them."""
        found: list[Interval] = []

        def is_there() -> bool:
            found[:] = [i for i in self.engines[0].intervals if i.step.name == "tally"]
            return bool(found)

        await until(is_there)
        return found[0]

    async def attack(self, worker: str = "evil") -> Attacker:
        """A peer that knows the secret, greeted."""
        attacker = await Attacker.call(self.address)
        answer = await attacker.greet(
            self.name, worker, SECRET.value, incarnation=await self.store.incarnation()
        )
        assert answer[1] == hostile.WELCOME
        return attacker

    async def end(self) -> None:
        """What is read, and some more, is processed, once, and nobody has failed."""
        values = cut_input([self.pipeline], self.values, more=200)
        async with asyncio.timeout(60):
            await asyncio.gather(*(engine.run() for engine in self.engines))
        for engine in self.engines:
            assert engine.failure is None
        rows = [number for _, number, *_ in self.store.rows("out")]
        assert sorted(rows) == [item.number for item in values]
        assert not self.store.dead_letters
        for engine in self.engines:
            await engine.stop()


async def test_without_the_secret_nothing_is_said_to_a_worker() -> None:
    plant = Plant(many(1000))
    with capture_logs() as logs:
        await plant.start()
        before = [engine.progress()["low_watermark"] for engine in plant.engines]
        for secret, kind in (
            (None, "given"),
            (b"another sixteen bytes", "given"),
            (None, "store"),
        ):
            attacker = await Attacker.call(plant.address)
            answer = await attacker.greet(
                plant.name, "evil", secret, kind, await plant.store.incarnation()
            )
            assert answer[1] == hostile.REFUSE
            assert b"secret" in answer
            attacker.send(hostile.ACKNOWLEDGE, 2, 3, [[0, 22_000]])
            attacker.send(hostile.REPORT, [[1, 1, 0, 1, 10_000, 1 << 62, False]])
            await attacker.end()
        attacker = await Attacker.call(plant.address)
        attacker.send(hostile.ACKNOWLEDGE, 2, 3, [[0, 22_000]])  # without a greeting
        assert b"where Hello is expected" in await attacker.end()
        assert min(before) < MAX_TIME
        await plant.end()
    assert {line["kind"] for line in logged(logs, "stranger_refused")} == {"refused"}


def malformed(interval: int, computation: int, slot: int) -> Iterator[tuple[Any, str]]:
    """Frames that no worker sends, and what is wrong with each."""
    item = msgspec.json.encode(Item("key", 1))

    def row(**changes: Any) -> list[Any]:
        fields: dict[str, Any] = {
            "seq": 0, "stream": "items", "key": b'"key"', "slot": slot, "ts": 0, "hold": 0,
            "stamp": 0, "size": len(item), "id": b"", "named": False, "value": item, "version": 1,
            "origin": 0,
        }  # fmt: skip
        return list((fields | changes).values())

    def deliver(*rows: list[Any], log: int = 2, receiver: int = computation) -> tuple[Any, ...]:
        return (hostile.DELIVER, log, 1, 1, interval, receiver, -1, rows)

    yield deliver(row(value=b"no JSON")), "with the value b'no JSON'"
    yield deliver(row(value=b'{"a": 1}')), "missing required field"
    yield deliver(row(value=b"[" * 100_000)), "with the value"
    yield deliver(row(ts=1 << 62)), "<= 253402"
    yield deliver(row(ts=-(1 << 62))), ">= -62135"
    yield deliver(row(hold=1 << 62)), "<= 253402"
    yield deliver(row(slot=SLOTS)), "<= 65535"
    yield deliver(row(slot=-1)), ">= 0"
    yield deliver(row(id=b"i" * 40)), "length <= 16"
    yield deliver(row(id=b"i" * 7)), "has an id of 7 bytes"
    yield deliver(row(key=b"no JSON")), "with the key b'no JSON'"
    yield deliver(row(key=b"1.5")), "which is not a str, an int or a tuple"
    yield deliver(row(key=b'{"cell":0}')), "which is not a str, an int or a tuple"
    yield deliver(row(key=b'"' + b"k" * 2000 + b'"')), "length <= 1304"
    yield deliver(row(seq=-1)), ">= 0"
    yield deliver(row(seq=1 << 63)), "<= 9223372036854775807"
    yield deliver(row(version=1 << 40)), "<= 32767"
    yield deliver(row(origin=-1)), ">= 0"
    yield deliver(), "length >= 1"
    yield deliver(*([row()] * (FRAME_RECORDS + 1))), f"length <= {FRAME_RECORDS}"
    yield deliver(row(seq=2), row(seq=1)), "do not ascend"
    yield deliver(row(seq=2), row(seq=2)), "do not ascend"
    yield deliver(row(), receiver=computation + 1), "which belongs to computation"
    yield deliver(row(), log=-1), ">= 0"
    yield (hostile.ACKNOWLEDGE, 2, 3, []), "length >= 1"
    yield (hostile.ACKNOWLEDGE, 2, 3, [[5, 4]]), "a run from 5 to 4"
    yield (hostile.ACKNOWLEDGE, 2, 3, [[0, 4], [4, 5]]), "a run from 4 to 5 after 4"
    yield (hostile.ACKNOWLEDGE, 2, 3, [[7, 8], [1, 2]]), "a run from 1 to 2 after 8"
    yield (hostile.ACKNOWLEDGE, 2, 3, [[-5, 4]]), ">= 0"
    yield (hostile.ACKNOWLEDGE, 2, 3, [[0, 1 << 63]]), "<= 9223372036854775807"
    yield (
        (hostile.ACKNOWLEDGE, 2, 3, [[n, n] for n in range(0, 2 * FRAME_RUNS + 2, 2)]),
        f"length <= {FRAME_RUNS}",
    )
    yield (hostile.REPORT, [[1, 1, 0, 1, 9, 1 << 62, False]]), "<= 253402"
    yield (hostile.REPORT, [[1, 1, 0, 1, 9, MIN_TIME - 1, False]]), ">= -62135"
    yield (hostile.REPORT, [[0] * 6 + [False]] * (FRAME_INTERVALS + 1)), "length <="
    yield (hostile.PROGRESS, 1, 1, 1, -1, True), ">= 0"
    yield (hostile.GAP, 1, 1, 1, -2), ">= -1"
    yield (hostile.ASK, 1, 1, 1, 1, -2), ">= -1"
    yield (hostile.LOOSE, computation, []), "length >= 1"
    yield (hostile.LOOSE, computation, [[0, row()]]), ">= 1"
    yield (hostile.ROOT_REPORT, [[1, -1]]), ">= 0"
    yield (99, 1, 2), "no valid frame"
    yield (hostile.HELLO, 6, "", "", b"n" * 32), "a frame Hello after the greeting"


async def test_a_malformed_frame_closes_its_link_and_nothing_else() -> None:
    plant = Plant(many(3000))
    with capture_logs() as logs:
        await plant.start()
        cases = len(list(malformed(0, 0, 0)))
        assert cases > 40
        for number in range(cases):
            while True:
                interval = await plant.tally()
                frames = malformed(interval.id, interval.step.id, interval.slots[0])
                frame, wrong = next(islice(frames, number, None))
                attacker = await plant.attack()
                attacker.send(*frame)
                last = await attacker.end(until=hostile.NOT_MINE)
                if (
                    last[1] != hostile.NOT_MINE
                ):  # else the balancer has moved the interval meanwhile
                    break
            assert b"garbage: " in last, (frame, last)
            assert wrong in last.decode(errors="replace"), (frame, last)
        twenty_million = b"\xdd" + (20_000_000).to_bytes(4) + b"\x92\x01\x01" * 20_000_000
        attacker = await plant.attack()
        attacker.send_body(b"\x94\x06\x02\x03" + twenty_million)
        assert b"above the limit of 1,048,576" in await attacker.end()
        links = links_of(plant.engines[0])
        await until(lambda: "evil" not in links._incoming)
        assert len(links._incoming) == len(links._outgoing) == 1, "the other worker's"
        assert all(link.up for link in (*links._incoming.values(), *links._outgoing.values()))
        await plant.end()
    told = [line for line in logged(logs, "link_down") if line["kind"] == "garbage"]
    assert [line["peer"] for line in told] == ["evil"], "logged once"
    assert not [line for line in logs if line["log_level"] == "error"]


async def test_a_record_of_somebody_who_owns_nothing_is_not_taken() -> None:
    """It is well formed, from a peer that knows the secret: the store is asked, and knows
    better."""
    plant = Plant(many(1500))
    await plant.start()
    engine, _ = plant.engines
    interval = await plant.tally()
    item = msgspec.json.encode(Item("forged", 4711))
    row = (7, "items", b'"forged"', interval.slots[0], 0, 0, 0, len(item), b"", False, item, 1, 0)
    attacker = await plant.attack()
    for sequencer in (0, 1, interval.commits.sequencer, LARGEST):
        for log in (2, 4, 9999):
            attacker.send(
                hostile.DELIVER, log, sequencer, 1, interval.id, interval.step.id, -1, [row]
            )
            attacker.send(hostile.ASK, log, sequencer, 1, interval.id, 7)
    attacker.send(hostile.LOOSE, interval.step.id, [[5, row]])
    refused = links_of(engine)._handler.refused  # type: ignore[union-attr]
    await until(lambda: refused["not known to own it"] and refused["loose"])
    await plant.end()
    assert "forged" not in {key for key, *_ in plant.store.rows("out")}
    await attacker.hang_up()


async def test_a_goodbye_is_logged_shortened_and_on_one_line() -> None:
    plant = Plant(many(3000))
    with capture_logs() as logs:
        await plant.start()
        attacker = await plant.attack()
        attacker.send(hostile.GOODBYE, "so long\n2026-01-01 [error] " + "x" * 900_000)
        await attacker.end()
        await until(lambda: any(line["peer"] == "evil" for line in logged(logs, "link_down")))
        await plant.end()
    (line,) = [line for line in logged(logs, "link_down") if line["peer"] == "evil"]
    assert line["reason"].startswith("so long\N{REPLACEMENT CHARACTER}2026")
    assert len(line["reason"]) == 500


# -- a peer that knows the secret, on virtual time -------------------------------------------------


class Forger:
    """A peer with links to all workers, which owns nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.links: list[Link] = []
        self.ears = Listener()
        self.network = Links(
            Identity(cluster.pipeline.name, "forger", SECRET),
            cluster.ether.medium("forger"),
            clock=cluster.clock,
            random=Random(1),
        )

    async def start(self) -> None:
        await self.network.start(self.ears, await self.cluster.store.incarnation())

    async def call(self, engine: Engine) -> Link:
        link = self.network.link(engine.worker, f"w{self.cluster.engines.index(engine)}")
        self.links.append(link)
        await self.cluster.go(lambda: link.up)
        return link

    def send(self, frame: Frame) -> None:
        for link in self.links:
            link.send(frame)

    async def close(self) -> None:
        await self.cluster.pass_time(self.network.close())


def courier_of(engine: Engine) -> Courier:
    assert engine.courier is not None
    return engine.courier


@pytest.mark.parametrize("seed", seeds(1, 3))
async def test_forged_acknowledgements_lose_nothing_while_workers_are_killed(seed: int) -> None:
    """All numbers of all logs, for all computations, all the time."""
    random = Random(seed)
    values = many(750)
    cluster = Cluster(counting(values))
    for _ in range(2):
        await cluster.join()
    forger = Forger(cluster)
    await forger.start()
    for engine in cluster.alive:
        await forger.call(engine)
    turns = 0

    def forge(then: Callable[[], object]) -> Callable[[], object]:
        def condition() -> object:
            nonlocal turns
            turns += 1
            if turns % 20 == 0:
                for log in cluster.store.tables.logs:
                    for step in cluster.alive[0].exchange.steps:
                        forger.send(Acknowledge(log, step, [(0, LARGEST)]))
            return then()

        return condition

    for share in (0.2, 0.5):
        end = share * len(values)
        await cluster.go(forge(lambda end=end: len(cluster.rows()) >= end))  # type: ignore[misc]
        await cluster.crash(random.choice(cluster.alive))
        await forger.call(await cluster.join())
    await cluster.go(forge(cluster.finished))
    check(cluster, values)
    await forger.close()
    for engine in list(cluster.alive):
        await cluster.leave(engine)


async def test_forged_answers_about_a_stream_count_for_nothing() -> None:
    """Only the worker that a stream goes to may say that it is not there, wants it again or has
    it."""
    values = many(900)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    forger = Forger(cluster)
    await forger.start()
    await forger.call(first)
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    cluster.ether.part("w0", "w1")
    await cluster.go(
        lambda: any(s.unacked for r in first.remotes.remotes() for s in r.streams.values())
    )

    def told() -> dict[tuple[int, int], Any]:
        return {
            (remote.id, log): (
                remote.owner,
                stream.epoch,
                stream.halted,
                stream.held,
                stream.unacked,
            )
            for remote in first.remotes.remotes()
            for log, stream in remote.streams.items()
        }

    before = {name: (*of[:4], set(of[4])) for name, of in told().items()}
    for (interval, log), (_, begun, *_) in before.items():
        forger.send(NotMine(log, begun, interval))
        forger.send(TooNew(log, begun, interval))
        forger.send(Gap(log, begun, interval, -1))
        forger.send(Progress(log, begun, interval, LARGEST, False))
    await live(cluster, 0.3)
    after = told()
    for name, (*of, unacked) in before.items():
        assert [*after[name][:4]] == of
        assert unacked <= after[name][4].keys()
    cluster.ether.join("w0", "w1")
    await cluster.finish_soon(values)
    await forger.close()


async def test_forged_reports_move_no_watermark() -> None:
    values = many(900)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    forger = Forger(cluster)
    await forger.start()
    for engine in (first, second):
        await forger.call(engine)
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    cluster.store.pause("source_0", "source_1")
    await live(cluster, 2.0)

    def watermarks() -> list[int]:
        return [
            *(
                e.publisher.watermarks.least(id_)
                for e in (first, second)
                for id_ in e.exchange.steps
            ),
            *(i.watermarks.input for e in (first, second) for i in e.intervals),
            *(i.watermarks.durable for e in (first, second) for i in e.intervals),
        ]

    before = watermarks()
    assert max(before) < MAX_TIME
    rows = (await cluster.store.read_placement()).intervals
    for ahead in (0, 1, 1000, 1 << 40):
        forger.send(
            Report(
                [
                    (r.id, r.computation, r.slot_from, r.slot_to, r.sequencer + ahead, MAX_TIME,
                     False)
                    for r in rows
                ]
            )
        )  # fmt: skip
    for r in rows:  # slots that no interval has, and intervals that are not there
        forger.send(Report([(r.id, r.computation, 0, SLOTS, r.sequencer, MAX_TIME, False)]))
        forger.send(Report([(r.id + 99, r.computation, 0, SLOTS, 1 << 40, MAX_TIME, False)]))
    await live(cluster, 2.0)
    assert watermarks() == before
    assert all(courier_of(e).refused["report"] >= 4 * len(rows) for e in (first, second))
    assert not first.remotes.trust.take_kept(), "nothing is kept once the store has answered"
    cluster.store.pause()
    await cluster.finish_soon(values)
    await forger.close()


async def test_an_owner_is_not_believed_about_slots_that_its_interval_does_not_have() -> None:
    values = many(900)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    interval = next(i for i in second.intervals if i.step.name == "tally")
    tally, sequencer = interval.step.id, interval.commits.sequencer
    of = first.publisher.watermarks.least
    before = of(tally)
    for low, high, computation in ((0, SLOTS, tally), (*interval.slots, tally + 1)):
        first.remotes.receive_reports(
            second.worker, [(interval.id, computation, low, high, sequencer, MAX_TIME, False)]
        )
    assert of(tally) == before
    assert courier_of(first).refused["report"] == 2
    await cluster.finish_soon(values)


async def test_a_true_new_owner_is_believed_within_one_look_at_the_store() -> None:
    """Nobody waits until a sender asks by itself, or until a watermark is said again."""
    values = many(2000)
    cluster = Cluster(counting(values, replace(SHARED, placement_seconds=1.0, lease_seconds=10.0)))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    interval = next(i for i in first.intervals if i.step.name == "tally")
    await cluster.store.wish(
        [Wish(interval.id, interval.commits.sequencer, second.worker, "test", pinned=True)]
    )

    def taken() -> bool:
        return any(i.id == interval.id for i in second.intervals)

    await cluster.go(taken, tick=0.001)
    moved = next(i for i in second.intervals if i.id == interval.id)
    began = cluster.clock.monotonic()
    receivers = [i.id for i in first.intervals if i.step.name == "recount"]
    assert receivers
    courier = courier_of(first)
    await cluster.go(
        lambda: all((moved.log.id, id_) in courier.receiver._incoming for id_ in receivers),
        tick=0.001,
    )
    assert cluster.clock.monotonic() - began < 0.5 < FIRST_PATIENCE_SECONDS
    assert courier.refused["not known to own it"], (
        "its first records came before the store was asked"
    )
    await cluster.finish_soon(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_a_sender_that_was_not_believed_sends_again_as_soon_as_the_store_says_so() -> None:
    """Though it has nothing new to send, and would ask by itself only after its patience."""
    values = many(750)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 100)
    courier, place = courier_of(first), first.remotes.place
    first.remotes.place = lambda placement: None  # type: ignore[method-assign]
    interval = next(i for i in first.intervals if i.step.name == "tally")
    await cluster.store.wish(
        [Wish(interval.id, interval.commits.sequencer, second.worker, "test", pinned=True)]
    )
    await cluster.go(lambda: any(i.id == interval.id for i in second.intervals))
    moved = next(i for i in second.intervals if i.id == interval.id)
    await cluster.go(lambda: courier.refused["not known to own it"])
    await live(cluster, 2 * FIRST_PATIENCE_SECONDS)
    asked = courier.refused["not known to own it"]
    await cluster.go(lambda: courier.refused["not known to own it"] > asked)
    first.remotes.place = place  # type: ignore[method-assign]
    began = cluster.clock.monotonic()
    await cluster.go(
        lambda: any(log == moved.log.id for log, _ in courier.receiver._incoming), tick=0.001
    )
    assert cluster.clock.monotonic() - began < 0.5 < FIRST_PATIENCE_SECONDS
    await cluster.finish_soon(values)
    for engine in (first, second):
        await cluster.leave(engine)


async def test_a_former_owner_is_not_believed_about_what_was_sent_to_it() -> None:
    values = many(900)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    courier = courier_of(first)
    cluster.ether.part("w0", "w1")
    link = courier.peers._links[second.worker]
    await cluster.go(
        lambda: any(s.unacked for r in first.remotes.remotes() for s in r.streams.values())
    )
    for remote in first.remotes.remotes():
        owner, remote.owner = remote.owner, "its successor"
        for log, stream in remote.streams.items():
            assert stream.receiver == second.worker or not stream.unacked
            before = [*stream.unacked]
            courier.received(link, Acknowledge(log, remote.step.id, [(0, LARGEST)]))
            courier.received(link, Progress(log, stream.epoch, remote.id, LARGEST, True))
            assert [*stream.unacked] == before
            to, remote.owner, stream.receiver = stream.receiver, owner, "its predecessor"
            courier.received(link, Acknowledge(log, remote.step.id, [(0, LARGEST)]))
            courier.received(link, Progress(log, stream.epoch, remote.id, LARGEST, True))
            assert [*stream.unacked] == before, "it was never sent to this one"
            stream.receiver, remote.owner = to, "its successor"
        remote.owner = owner
    cluster.ether.join("w0", "w1")
    await cluster.finish_soon(values)


async def test_a_log_that_is_lost_and_still_sent_from_here_is_not_taken_from_its_new_owner() -> (
    None
):
    """What is taken would be acknowledged to this worker itself. Its next commit tells it of the
    loss."""
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    courier, trust = courier_of(first), first.remotes.trust
    lost = next(i for i in first.intervals if i.step.name == "tally")
    receiver = next(i for i in first.intervals if i.step.name == "recount")
    row = trust._of_log[lost.log.id]
    trust._of_log[lost.log.id] = replace(row, owner=second.worker, sequencer=row.sequencer + 1)
    sequencer, log = row.sequencer + 1, lost.log.id
    value = b'{"key":"k","number":1,"count":1}'
    item: RecordRow = (5, "tally", b"1", receiver.slots[0], 0, 0, 0, 32, b"", False, value, 1, 0)
    link, tried = courier.peers._links[second.worker], cluster.tried
    courier.received(
        link, Deliver(log, sequencer, 1, receiver.id, receiver.step.id, NOTHING, [item])
    )
    courier.received(link, Ask(log, sequencer, 1, receiver.id, 5))
    assert courier.refused["sent from here"] == 2
    assert (log, receiver.id) not in courier.receiver._incoming
    assert log not in courier.receiver._ack_links
    await cluster.go(lambda: cluster.tried > tried)
    trust._of_log[log] = row
    await cluster.finish_soon(values)


async def test_what_waits_for_the_store_is_bounded() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    place = first.remotes.place
    first.remotes.place = lambda placement: None  # type: ignore[method-assign]
    courier, link = courier_of(first), courier_of(first).peers._links[second.worker]
    receiver = next(i for i in first.intervals if i.step.name == "tally")
    for log in range(QUESTIONS_KEPT + 500):
        courier.received(link, Ask(10_000 + log, 1 << 40, 1, receiver.id, 5))
    assert len(courier.receiver._deferred[link]) == QUESTIONS_KEPT
    for number in range(KEPT_REPORTS + 500):
        first.remotes.receive_reports(
            second.worker, [(10_000 + number, 1, 0, 1, 1 << 40, 0, False)] * 2
        )
    assert courier.refused["report"] == 1000
    first.remotes.place = place  # type: ignore[method-assign]
    await cluster.go(cluster.finished)
    assert not courier.receiver._deferred.get(link)
    check(cluster, values)


async def test_what_was_not_sent_to_an_owner_is_not_held_until_the_owner_answers_for_it() -> None:
    """Its answer would count for nothing, as the stream goes to nobody yet."""
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    await cluster.go(lambda: min(first.processed, second.processed) > 50)
    remote = next(r for r in first.remotes.remotes() if r.owner == second.worker and r.streams)
    (log, of_owner), *_ = remote.streams.items()
    remote.streams[log + 1] = unsent = stream(1, sent=0, to="")
    of_owner.unacked[1] = record(1)
    remote.refused_by, remote.owner = second.worker, None
    remote.set_owner(second.worker, remote.sequencer)
    assert of_owner.held
    assert not unsent.held
    del remote.streams[log + 1], of_owner.unacked[1]
    await cluster.finish_soon(values)


class Frozen(msgspec.Struct, frozen=True):
    """As `Item`; no copy of a frozen value is made, so a wrong field is not met on the way."""

    key: str
    number: int
    second: float = 0


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
async def test_a_source_that_gives_a_value_of_another_type_is_told_and_no_peer_is_blamed(
    on_error: Literal["fail", "dead_letter"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver would close the link, again and again."""
    read: Stream[Any] = Stream("read", Frozen)
    made = Pipeline("giving", settings=SHARED)
    values = [
        Frozen(f"key {number}", "wrong" if number % 50 == 7 else number, number // 10)  # type: ignore[arg-type]
        for number in range(300)
    ]
    source = Script("rows", [inject(read, value) for value in values])
    made.inject(read, source, timestamp=time_of, on_error=on_error)
    made.add(Told(), read.by(key_of))
    made.sink(TALLY, Table("out", Counted, numbered=True))
    monkeypatch.setattr(ScriptReader, "_value_of", lambda self, step: step.value)
    cluster = Cluster(made)
    with capture_logs() as logs:
        for _ in range(2):
            await cluster.join()
        if on_error == "fail":
            with pytest.raises(
                InputError, match=r"rows, line \d+: stream 'read': .* at `\$.number`"
            ):
                await cluster.go(cluster.finished)
        else:
            await cluster.go(cluster.finished)
            letters = {letter.key for letter in cluster.store.dead_letters}
            assert letters
    assert not [line for line in logged(logs, "link_down") if line["kind"] == "garbage"]


class Told(Computation[Any, None]):
    """Tells of each record."""

    writes = (TALLY,)

    async def process_record(self, record: Record[Any], ctx: Context[None]) -> None:
        if isinstance(record.value.number, int):
            ctx.produce(TALLY, Counted(record.value.key, record.value.number, 1))


async def test_unknown_streams_are_garbage_of_the_same_generation_and_too_new_of_another() -> None:
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    courier = courier_of(first)
    await cluster.go(
        lambda: min(first.processed, second.processed) > 50 and courier.receiver._incoming
    )
    (log, interval_id), stream = next(iter(courier.receiver._incoming.items()))
    interval = first.exchange.held(interval_id)
    assert interval is not None
    link = courier.receiver._ack_links[log]
    sequencer, epoch = stream.epoch
    before = stream.last

    def deliver(name: str) -> Deliver:
        seq = stream.last + 1
        value = b'{"key":"k","number":1,"count":1}'
        row: RecordRow = (
            seq,
            name,
            b'"k"',
            interval.slots[0],
            0,
            0,
            0,
            32,
            b"",
            False,
            value,
            1,
            0,
        )
        return Deliver(log, sequencer, epoch, interval_id, interval.step.id, stream.last, [row])

    def loose(name: str, id_: bytes) -> Loose:
        row = deliver(name).records[0]
        return Loose(interval.step.id, [(5, (*row[:8], id_, *row[9:]))])

    with pytest.raises(PeerError, match="in no log has no id"):
        courier.received(link, loose("tally", b""))
    for name in ("no such stream", "again"):
        with pytest.raises(PeerError, match="which no code of generation 1 sends"):
            courier.received(link, deliver(name))
        with pytest.raises(PeerError, match="which no code of generation 1 sends"):
            courier.received(link, loose(name, b"\xff" * 16))
    first.env.generation = 0  # the peer's code is newer
    courier.received(link, deliver("no such stream"))
    assert courier.refused["too new"] == 1
    assert stream.last == before, "nothing of it was taken"
    first.env.generation = 1
    await cluster.finish_soon(values)


@pytest.mark.parametrize("value", ["the code's fault", "the peer's fault"])
async def test_a_migration_that_fails_stops_the_worker_and_not_the_link(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a peer of other code sends is right by that code: the error is of the migration. What is
    no JSON is right by no code."""
    values = many(600)
    cluster = Cluster(counting(values))
    first, second = await cluster.join(), await cluster.join()
    courier = courier_of(first)
    await cluster.go(
        lambda: min(first.processed, second.processed) > 50 and courier.receiver._incoming
    )
    (log, interval_id), stream = next(iter(courier.receiver._incoming.items()))
    interval = first.exchange.held(interval_id)
    assert interval is not None
    (name,) = interval.step.codecs

    def fail(_: Any) -> Any:
        raise ValueError("no such form")

    monkeypatch.setattr(first.graph.streams[name], "migrations", {2: fail})
    text, seq = (b'{"v": 2}' if value.startswith("the code") else b"{v"), stream.last + 1
    row: RecordRow = (seq, name, b'"k"', interval.slots[0], 0, 0, 0, 8, b"", False, text, 2, 0)
    frame = Deliver(log, *stream.epoch, interval_id, interval.step.id, stream.last, [row])
    if text == b"{v":
        with pytest.raises(PeerError, match=r"with the value b'\{v'"):
            courier.received(courier.receiver._ack_links[log], frame)
        assert first.failure is None
        return
    courier.received(courier.receiver._ack_links[log], frame)
    assert isinstance(first.failure, UserCodeError)
    told = str(first.failure)
    assert f"stream {name!r}" in told
    assert "the migration from version 2 to 1 failed on {'v': 2}: ValueError: no such form" in told
    assert "ValueError: no such form" in told
    assert "Correct it and start again. Nothing is lost" in told
    assert stream.last == seq - 1, "nothing of it was taken"


async def test_root_reports_of_no_worker_count_for_nothing() -> None:
    cluster = Cluster(counting(many(100)))
    first = await cluster.join()
    forger = Forger(cluster)
    await forger.start()
    await forger.call(first)
    heard: list[Any] = []
    with record_calls(first.modes.trees, "receive_reports", heard):
        before = first.remotes.trust.refreshes
        forger.send(RootReport([(1, 1)]))
        await live(cluster, 0.1)
        assert not heard
        assert first.remotes.trust.refreshes > before, "it may be a worker that has just joined"
        courier_of(first).received(WorkerLink(first.worker), RootReport([(1, 1)]))
        assert heard
    await forger.close()


@contextmanager
def record_calls(owner: Any, name: str, calls: list[Any]) -> Iterator[None]:
    setattr(owner, name, lambda *arguments: calls.append(arguments))
    yield
    delattr(owner, name)


class WorkerLink:
    """A link of a worker that the store knows."""

    outgoing = False
    up = True
    full = False

    def __init__(self, peer: str) -> None:
        self.peer = peer

    def send(self, frame: Frame) -> None: ...
    def close(self) -> None: ...


# -- plain data ------------------------------------------------------------------------------------


def stream(*numbers: int, sent: int = 99, to: str = "a") -> Outgoing:
    """A stream of some records, so many of which were sent to a worker."""
    found = Outgoing()
    for number in numbers:
        found.append(record(number))
    found.begin(1)
    found.set_receiver(to)
    found.take(sent, 1 << 20)
    return found


def test_what_was_not_sent_is_not_acknowledged_however_much_is_named() -> None:
    found = stream(3, 4, 8, 9, 12, sent=3)
    assert found.acknowledge([(0, 1 << 62)]) == [3, 4, 8]
    assert [*found.unacked] == [9, 12]
    assert found.acknowledge([(0, 1 << 62)]) == []
    assert found.progress(1, 1 << 62) == []
    found.take(99, 1 << 20)
    assert found.acknowledge([(0, 1), (9, 10), (11, 11), (13, 1 << 62)]) == [9]
    assert found.progress(1, 1 << 62) == [12]


def test_a_gap_of_any_length_costs_nothing_whatever_is_acknowledged() -> None:
    """A source leaves out numbers; a range over them would never end."""
    numbers = [0, 1, 1 << 40, (1 << 60) + 5, LARGEST - 1]
    found = stream(*numbers, sent=4)
    assert found.acknowledge([(1, 1 << 39), (1 << 50, LARGEST)]) == [1, (1 << 60) + 5]
    assert found.acknowledge([(0, LARGEST - 1)]) == [0, 1 << 40]
    assert [*found.unacked] == [LARGEST - 1]


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(0, 40), st.lists(st.integers(0, 9)))
def test_runs_acknowledge_what_is_in_them_and_was_sent(
    numbers: set[int], count: int, steps: list[int]
) -> None:
    runs: list[Run] = []
    end = -1
    for gap, length in zip(steps[::2], steps[1::2], strict=False):
        runs.append((end + 1 + gap, end + 1 + gap + length))
        end = runs[-1][1]
    found = stream(*sorted(numbers), sent=count + 1)
    sent = sorted(numbers)[: count + 1]
    within = [number for number in sent if any(low <= number <= high for low, high in runs)]
    assert found.acknowledge(runs) == within
    assert [*found.unacked] == [number for number in sorted(numbers) if number not in within]


def test_what_was_sent_to_another_worker_is_not_acknowledged_by_this_one() -> None:
    found = stream(1, 2, 3)
    found.begin(2)
    found.set_receiver("b")
    assert found.acknowledge([(0, 9)]) == []
    found.take(2, 1 << 20)
    assert found.acknowledge([(0, 9)]) == [1, 2]


def test_a_number_that_was_sent_in_an_earlier_epoch_to_the_same_worker_counts() -> None:
    found = stream(1, 2, 3)
    found.begin(2)
    assert found.acknowledge([(2, 2)]) == [2]
    assert next_of(found, 9, 1 << 20) == [1, 3]


def test_runs_ascend_and_do_not_overlap() -> None:
    check_runs([(0, 0), (1, 5), (7, 7), (9, 1 << 62)])
    for wrong in ([(1, 0)], [(0, 3), (3, 4)], [(5, 6), (1, 2)], [(-1, 4)], [(4, 4), (4, 4)]):
        with pytest.raises(PeerError, match="a run from"):
            check_runs(wrong)


def placed(id_: int, sequencer: int, owner: str | None, *logs: int) -> PlacedInterval:
    return PlacedInterval(
        id_, 3, 0, 100, sequencer, owner, None, False, 1, "tally", "computation", 1, logs=logs
    )


def placement(*rows: PlacedInterval) -> Placement:
    workers = [PlacedWorker(name, "", "", 1, "", [], 9.0, {}, 1) for name in "ab"]
    return Placement(0, list(rows), workers, frozenset())


def test_only_the_owner_is_believed_and_only_what_is_newer_is_looked_into() -> None:
    trust = Trust()
    assert trust.owns("a", 7, 5) is trust.sends("a", 70, 5) is ClaimStatus.UNKNOWN
    trust.learn(placement(placed(7, 5, "a", 70, 71), placed(8, 6, None, 80)), trust.begin_refresh())
    assert (
        trust.owns("a", 7, 5)
        is trust.sends("a", 70, 5)
        is trust.sends("a", 71, 5)
        is ClaimStatus.CONFIRMED
    )
    assert trust.owns("b", 7, 5) is trust.sends("b", 70, 5) is ClaimStatus.REFUTED
    assert trust.owns("a", 7, 4) is trust.sends("a", 70, 4) is ClaimStatus.REFUTED, "a former owner"
    assert trust.owns("a", 8, 6) is trust.sends("a", 80, 6) is ClaimStatus.REFUTED, "nobody has it"
    assert trust.owns("b", 7, 6) is trust.sends("b", 70, 6) is ClaimStatus.UNKNOWN
    assert trust.owns("b", 9, 1) is trust.sends("b", 90, 1) is ClaimStatus.UNKNOWN
    trust.learn(placement(placed(7, 6, "b", 70, 72)), trust.begin_refresh())
    assert trust.owns("b", 7, 6) is trust.sends("b", 70, 6) is ClaimStatus.CONFIRMED
    assert trust.sends("a", 70, 5) is trust.owns("a", 7, 5) is ClaimStatus.REFUTED
    assert trust.sends("b", 71, 6) is ClaimStatus.UNKNOWN, "retired, or somebody else's"
    assert trust.knows("a")
    assert not trust.knows("c")


def test_what_came_during_a_look_waits_for_the_next_one() -> None:
    trust = Trust()
    before, look = trust.refreshes, trust.begin_refresh()
    during = trust.refreshes
    assert not trust.is_settled(before)
    trust.learn(placement(), look)
    assert trust.is_settled(before)
    assert not trust.is_settled(during)
    trust.learn(placement(), trust.begin_refresh())
    assert trust.is_settled(during)


def test_of_an_interval_the_newest_report_of_each_peer_is_kept() -> None:
    trust = Trust()

    def report(id_: int, sequencer: int, watermark: int) -> Any:
        return (id_, 3, 0, 100, sequencer, watermark, False)

    for sequencer, watermark in ((5, 10), (5, 30), (5, 20), (4, 90)):
        assert trust.keep("a", report(7, sequencer, watermark), 0)
    assert trust.keep("b", report(7, 1, 1), 0)
    assert trust.keep("c", report(7, 1, 1), 0)
    trust.forget("c")
    kept = {peer: [w.report[4:6] for w in waiting] for peer, waiting in trust.take_kept()}
    assert kept == {"a": [(5, 30)], "b": [(1, 1)]}
    assert not trust.take_kept()

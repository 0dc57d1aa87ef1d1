"""What every network keeps to, in the fake network and over TCP."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

from millwheel.errors import InvariantBroken
from millwheel.runtime.network import frames
from millwheel.runtime.network import handshake as greeting
from millwheel.runtime.network.frames import (
    VERSION,
    Acknowledge,
    Ask,
    Deliver,
    DeliverChunk,
    Frame,
    Gap,
    Loose,
    Message,
    NotMine,
    Progress,
    Report,
    RootReport,
    TooNew,
)
from millwheel.runtime.network.peer_ports import Limits, Link
from millwheel.testing import fake_network
from tests.support.network_sites import SMALL, Heard, Site, Worker, everywhere

SECRET = greeting.Secret(b"sixteen bytes or more", "given")
WRONG = greeting.Secret(b"another sixteen bytes", "given")
STORED = greeting.Secret(b"thirty-two bytes of the store's.", "store")

TALK: list[Frame] = [
    Deliver(1, 9, 1, 5, 7, 0, [(3, "words", b'"a"', 65535, -5, 6, 8, 3, b"", False, b'"x"', 1, 0)]),
    DeliverChunk(
        1,
        9,
        1,
        5,
        7,
        0,
        frames.WireChunk(
            "words",
            3,
            True,
            0,
            [3, 1 << 62],
            [b"1" * 16, b"2" * 16],
            [b'"a"', b"7"],
            [65535, 0],
            [-5, 0],
            [6, 0],
            [b'"x"', b"1"],
        ),
    ),
    Acknowledge(1, 7, [(3, 3), (5, 1 << 62)]),
    NotMine(1, 1, 5),
    Gap(1, 1, 5, 3),
    Report([(1, 2, 0, 65536, 9, -62135510400000000, True)]),
]


def numbered(first: int, last: int) -> list[Frame]:
    return [NotMine(number, 0, 0) for number in range(first, last + 1)]


def warnings(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["log_level"] == "warning"]


async def two(site: Site, limits: Limits | None = None) -> tuple[Worker, Worker, Link]:
    """Worker one has a link to worker two, and it is up."""
    one, two = await site.worker("one", limits=limits), await site.worker("two", limits=limits)
    link = one.call(two)
    assert not link.up
    assert link.outgoing
    await site.until(lambda: link.up and ("one", False) in two.heard.links)
    return one, two, link


@everywhere
async def test_a_link_carries_every_kind_of_frame_both_ways(site: Site) -> None:
    one, two_, link = await two(site)
    back = two_.heard.links["one", False]
    assert (link.peer, back.peer, back.outgoing) == ("two", "one", False)
    for frame in TALK:
        one.send(link, frame)
        two_.send(back, frame)
    await site.until(lambda: len(one.heard.frames) == len(two_.heard.frames) == len(TALK))
    assert one.heard.frames == two_.heard.frames == TALK


@everywhere
async def test_frames_come_once_and_in_the_order_in_which_they_were_sent(site: Site) -> None:
    one, two_, link = await two(site)
    for burst in range(20):
        for frame in numbered(100 * burst, 100 * burst + 99):
            one.send(link, frame)
        await site.turn()
    await site.until(lambda: len(two_.heard.frames) >= 2000)
    await site.settle()
    assert two_.heard.frames == numbered(0, 1999)


@everywhere
async def test_a_frame_of_the_greatest_length_passes(site: Site) -> None:
    one, two_, link = await two(site, Limits(frame_bytes=3_000_000, waiting_bytes=3_000_004))
    overhead = len(frames.encode(Deliver(1, 1, 1, 1, 1, 0, [row(70_000)]), 1 << 30)) - 4 - 70_000
    frame = Deliver(1, 1, 1, 1, 1, 0, [row(3_000_000 - overhead)])
    one.send(link, frame)
    await site.until(lambda: two_.heard.frames)
    assert two_.heard.frames == [frame]


def row(size: int) -> frames.RecordRow:
    return (1, "s", b"1", 0, 0, 0, 0, size, b"", False, b"x" * size, 1, 0)


def chunk(size: int) -> frames.WireChunk:
    return frames.WireChunk("s", 1, False, 7, [1], [], [b"1"], [0], [0], [0], [b"x" * size])


@everywhere
async def test_a_longer_frame_ends_the_link_and_does_not_raise(site: Site) -> None:
    one, two_, link = await two(site, SMALL)
    one.send(link, Deliver(1, 1, 1, 1, 1, 0, [row(100_001)]))
    assert not link.up
    await site.until(lambda: two_.heard.reasons)
    assert "too long: a frame Deliver of 100," in one.heard.reasons[0]
    assert "too long: a frame Deliver of 100," in two_.heard.reasons[0]
    assert two_.heard.frames == []


@everywhere
async def test_what_is_sent_while_the_link_is_down_is_dropped(site: Site) -> None:
    one, two_ = await site.worker("one"), await site.worker("two")
    link = one.call(two_)
    one.send(link, NotMine(1, 1, 1))
    await site.until(lambda: link.up)
    one.send(link, NotMine(2, 2, 2))
    await site.until(lambda: two_.heard.frames)
    assert two_.heard.frames == [NotMine(2, 2, 2)]


@everywhere
async def test_every_message_gets_through_both_ways(site: Site) -> None:
    one, two_, link = await two(site, SMALL)
    messages: list[Frame] = [
        Deliver(1, 1, 1, 1, 1, 0, [row(9)]),
        DeliverChunk(1, 1, 1, 1, 1, 0, chunk(9)),
        Ask(1, 2, 3, 4, 5),
        Report([]),
        Acknowledge(1, 1, [(1, 2)]),
        NotMine(1, 2, 3),
        Gap(1, 2, 3, 4),
        Progress(1, 2, 3, 4, takes=True),
        TooNew(1, 2, 3),
        Loose(1, [(7, row(9))]),
        RootReport([(7, 8), (9, 0)]),
    ]
    assert {type(message) for message in messages} == set(get_args(Message))
    await site.until(lambda: ("one", False) in two_.heard.links)
    back = two_.heard.links["one", False]
    for message in messages:
        one.send(link, message)
        two_.send(back, message)
    await site.until(lambda: len(two_.heard.frames) == len(one.heard.frames) == len(messages))
    assert two_.heard.frames == one.heard.frames == messages


@everywhere
async def test_a_cut_is_told_once_on_both_sides_and_the_link_comes_back(site: Site) -> None:
    one, two_, link = await two(site)
    for cuts in (1, 2, 3):
        site.cut(one, two_)
        await site.until(lambda: not one.heard.links and not two_.heard.links)
        one.send(link, NotMine(0, 0, 0))
        await site.live(5, until=lambda: one.heard.links and two_.heard.links)
        one.send(link, NotMine(cuts, 0, 0))
        await site.until(lambda wanted=cuts: len(two_.heard.frames) == wanted)  # type: ignore[misc]
    assert one.heard.events == [("up", "two"), *3 * [("down", "two"), ("up", "two")]]
    assert two_.heard.events == [("up", "one"), *3 * [("down", "one"), ("up", "one")]]
    assert two_.heard.frames == numbered(1, 3)


@everywhere
async def test_a_listener_may_come_late_and_come_again(site: Site) -> None:
    one, two_ = await site.worker("one"), await site.worker("two")
    address = two_.links.address
    site.workers.remove(two_)
    await site.closing(two_.links.close())
    with capture_logs() as logs:
        link = one.call(two_)
        await site.live(60)
    assert not link.up
    assert len(warnings(logs)) == 1, "the same failure was logged again"
    two_ = await site.worker("two")
    assert two_.links.address == address
    await site.live(10, until=lambda: link.up)


@everywhere
async def test_another_worker_at_the_same_address_is_not_taken_for_it(site: Site) -> None:
    one, two_ = await site.worker("one"), await site.worker("two")
    with capture_logs() as logs:
        one.call(two_, "three")
        await site.live(60)
    assert one.heard.events == two_.heard.events == []
    assert len(warnings(logs)) == 2, "once on each side"
    assert "worker 'two' listens at the address of worker 'three'" in logs[0]["reason"]


@everywhere
async def test_who_does_not_fit_never_gets_up(site: Site) -> None:
    two_ = await site.worker("two", secret=SECRET)
    for name, pipeline, secret, reason in (
        ("stranger", "other", SECRET, "a worker of the pipeline 'other' and one of 'p'"),
        ("liar", "p", WRONG, "the two workers have different shared secrets"),
        ("naive", "p", STORED, "the two workers have different shared secrets"),
        ("namesake", "p", SECRET, "both sides call themselves worker 'two'"),
    ):
        with capture_logs() as logs:
            worker = await site.worker(name, pipeline=pipeline, secret=secret)
            if name == "namesake":
                worker.links._identity = greeting.Identity("p", "two", SECRET)
            link = worker.call(two_, "two")
            await site.live(20)
            worker.send(link, NotMine(1, 1, 1))
            await site.settle()
            link.close()
        assert any(reason in line["reason"] for line in logs), (reason, logs)
        assert len(warnings(logs)) <= 2, logs
        assert worker.heard.events == []
    friend = (await site.worker("friend", secret=SECRET)).call(two_)
    await site.live(10, until=lambda: friend.up)
    await site.until(lambda: two_.heard.events)
    assert two_.heard.events == [("up", "friend")]
    assert two_.heard.frames == []


@everywhere
async def test_a_given_secret_and_the_stores_refuse_each_other_and_say_which_is_which(
    site: Site,
) -> None:
    """Also if the given one is what the store's is: somebody has configured one of the two
    wrongly."""
    same = greeting.Secret(SECRET.value, "store")
    one, two_ = await site.worker("one", secret=SECRET), await site.worker("two", secret=same)
    with capture_logs() as logs:
        one.call(two_)
        two_.call(one)
        await site.live(20)
    assert one.heard.events == two_.heard.events == []
    told = {(line["worker"], line["secret"]) for line in warnings(logs)}
    assert told == {
        ("one", "the secret from --secret-file or MILLWHEEL_SECRET"),
        ("two", "the secret in the store"),
    }
    for line in warnings(logs):
        assert "give the same one to all workers of the pipeline, or to none" in line["reason"]


@everywhere
async def test_another_version_is_refused(site: Site) -> None:
    one, two_ = await site.worker("one"), await site.worker("two")
    make = one.links._connection

    def newer(expected: str | None, remote: str = "") -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(greeting, "VERSION", VERSION + 1)
            return make(expected, remote)

    one.links._connection = newer  # type: ignore[method-assign]
    with capture_logs() as logs:
        link = one.call(two_)
        await site.live(10)
    assert not link.up
    told = {line["reason"] for line in warnings(logs)}
    assert told == {
        f"a worker with version {VERSION + 1} of the protocol connected to one with version "
        f"{VERSION}; install the same version of millwheel everywhere"
    }


@everywhere
async def test_a_quiet_link_stays_up(site: Site) -> None:
    one, two_, link = await two(site)
    await site.live(100)
    assert link.up
    assert one.heard.events == [("up", "two")]
    assert two_.heard.events == [("up", "one")]


@everywhere
async def test_silence_is_noticed_by_both_sides_in_time_and_not_before(site: Site) -> None:
    one, two_, link = await two(site)
    await site.live(30)
    site.part(one, two_)
    await site.live(7)
    assert link.up
    await site.live(6, until=lambda: not one.heard.links and not two_.heard.links)
    assert one.heard.reasons[0].startswith("silent: nothing was heard for 1")
    assert two_.heard.reasons[0].startswith("silent: nothing was heard for 1")
    await site.live(20)
    assert not link.up
    site.join(one, two_)
    await site.live(30, until=lambda: link.up and two_.heard.links)


@everywhere
async def test_who_takes_nothing_is_deaf_and_what_waits_for_it_is_bounded(site: Site) -> None:
    limits = Limits(frame_bytes=100_000, waiting_bytes=400_000)
    one, two_, link = await two(site, limits)
    site.part(one, two_)
    frame = Deliver(1, 1, 1, 1, 1, 0, [row(50_000)])
    sent = 0
    while link.up:
        one.send(link, frame)
        sent += 1
        if sent % 3 == 0:
            await site.turn()
        assert sent < 1000, "it piles up without end"
    assert sent >= 8
    await site.until(lambda: one.heard.reasons)
    assert one.heard.reasons[0].startswith("deaf: 4")
    site.join(one, two_)
    await site.live(20, until=lambda: link.up and two_.heard.links)


@everywhere
async def test_who_waits_while_the_link_is_full_is_not_hung_up_on(site: Site) -> None:
    one, two_, link = await two(site, SMALL)
    site.part(one, two_)
    frame = Deliver(1, 1, 1, 1, 1, 0, [row(90_000)])
    left = 100

    def send_what_fits() -> None:
        nonlocal left
        while left and not link.full:
            one.send(link, frame)
            left -= 1

    one.heard.on_drained = send_what_fits
    send_what_fits()
    await site.settle()
    assert left, "it never was full"
    one.send(link, NotMine(1, 1, 1))
    assert link.up, "what cannot wait still goes"
    site.join(one, two_)
    await site.until(lambda: len(two_.heard.frames) == 101)
    assert one.heard.events == [("up", "two")]
    await site.until(lambda: not link.full)


@everywhere
async def test_a_link_that_was_full_is_empty_when_it_comes_back(site: Site) -> None:
    one, two_, link = await two(site, SMALL)
    site.part(one, two_)
    while not link.full:
        one.send(link, Deliver(1, 1, 1, 1, 1, 0, [row(90_000)]))
        await site.turn()
    site.cut(one, two_)
    await site.until(lambda: not one.heard.links)
    site.join(one, two_)
    await site.live(20, until=lambda: link.up and two_.heard.links)
    await site.settle()
    assert not link.full


@everywhere
async def test_much_that_is_taken_is_no_deafness(site: Site) -> None:
    one, two_, link = await two(site, SMALL)
    frame = Deliver(1, 1, 1, 1, 1, 0, [row(90_000)])
    for number in range(1, 101):
        one.send(link, frame)
        await site.until(lambda wanted=number: len(two_.heard.frames) == wanted)  # type: ignore[misc]
    assert one.heard.events == [("up", "two")]


@everywhere
async def test_the_newer_of_two_connections_of_a_worker_counts(site: Site) -> None:
    one, two_, link = await two(site)
    old = two_.heard.links["one", False]
    link.close()
    newer = one.call(two_)
    await site.live(5, until=lambda: newer.up and ("one", False) in two_.heard.links)
    await site.settle()
    assert two_.heard.links["one", False] is not old
    assert two_.heard.events == [("up", "one"), ("down", "one"), ("up", "one")]


@everywhere
async def test_a_restarted_connection_takes_the_place_of_one_that_looks_alive(site: Site) -> None:
    _, two_, _ = await two(site)
    old = two_.heard.links["one", False]
    twin = await site.worker("twin")
    twin.links._identity = greeting.Identity(
        "p", "one", fake_network.SECRET
    )  # the same worker, after a broken line
    newer = twin.call(two_)
    await site.until(lambda: newer.up and two_.heard.links.get(("one", False)) is not old)
    assert not old.up
    assert two_.heard.events == [("up", "one"), ("down", "one"), ("up", "one")]
    assert "the same worker connected again" in two_.heard.reasons[0]
    newer.close()


@everywhere
async def test_nothing_of_before_comes_to_who_starts_over_and_who_has_not_is_refused(
    site: Site,
) -> None:
    one, two_ = [await site.worker(name, incarnation="first") for name in ("one", "two")]
    link = one.call(two_)
    await site.until(lambda: link.up and ("one", False) in two_.heard.links)
    for frame in numbered(1, 50):
        one.send(link, frame)
    two_.links.hang_up()
    await site.until(lambda: two_.heard.reasons and one.heard.reasons)
    before = two_.heard
    two_.heard = Heard()
    two_.links.begin_again(two_.heard, "second")
    await site.live(20, until=lambda: one.heard.refused)
    assert not link.up
    assert not two_.heard.events
    came = list(before.frames)

    one.links.hang_up()
    one.links.begin_again(one.heard, "second")
    link = one.call(two_)
    await site.live(20, until=lambda: link.up and ("one", False) in two_.heard.links)
    one.send(link, numbered(99, 99)[0])
    await site.until(lambda: two_.heard.frames)
    assert two_.heard.frames == numbered(99, 99)
    assert before.frames == came
    assert before.events == [("up", "one"), ("down", "one")]


@everywhere
async def test_who_starts_over_lets_nobody_in_meanwhile(site: Site) -> None:
    _, two_, link = await two(site)
    two_.links.hang_up()
    await site.until(lambda: not link.up)
    await site.live(20)
    assert not link.up
    two_.links.begin_again(two_.heard, "")
    await site.live(20, until=lambda: link.up)


@everywhere
async def test_who_was_let_in_while_the_other_started_over_is_sent_away(site: Site) -> None:
    """A TLS handshake may begin before and end after: what is said then is of the former
    incarnation."""
    one = await site.worker("one", incarnation="first")
    one.links.hang_up()
    visitor = one.links._admit("10.0.0.9:1")
    one.links.begin_again(one.heard, "second")
    assert visitor.end_reason is not None
    visitor.abandon()
    welcome = one.links._admit("10.0.0.9:2")
    assert welcome.end_reason is None
    welcome.abandon()


@everywhere
async def test_a_closed_link_says_goodbye_and_is_not_dialed_again(site: Site) -> None:
    one, two_, link = await two(site)
    for frame in numbered(1, 50):
        one.send(link, frame)
    one.heard.busy = True
    link.close()
    link.close()
    one.heard.busy = False
    assert not link.up
    await site.until(lambda: two_.heard.reasons and one.heard.reasons)
    assert two_.heard.frames == numbered(1, 50), "what was sent before still goes"
    assert two_.heard.reasons == ["goodbye: closed: the link is not needed any more"]
    await site.live(30)
    assert len(two_.heard.events) == 2


@everywhere
async def test_the_end_of_a_network_is_told_to_all_before_it_is_over(site: Site) -> None:
    one, two_, link = await two(site)
    back = two_.call(one)
    await site.until(lambda: back.up and len(one.heard.links) == 2)
    await site.closing(two_.links.close())
    assert [event for event, _ in two_.heard.events].count("down") == 2
    await site.until(lambda: len(one.heard.reasons) == 2)
    assert one.heard.reasons == 2 * ["goodbye: closed: the worker stops"]
    one.send(link, NotMine(1, 1, 1))
    with pytest.raises(InvariantBroken):
        two_.call(one)


@everywhere
async def test_a_network_ends_though_the_other_side_does_not_answer(site: Site) -> None:
    one, two_, link = await two(site)
    site.part(one, two_)
    for _ in range(100):
        one.send(link, Deliver(1, 1, 1, 1, 1, 0, [row(50_000)]))
    await site.turn()
    closing = asyncio.ensure_future(one.links.close())
    await site.settle()
    await site.live(1.5, until=closing.done)
    await closing


@everywhere
async def test_a_network_ends_in_the_midst_of_greetings(site: Site) -> None:
    one, two_ = await site.worker("one"), await site.worker("two")
    for turns in range(12):
        link = one.call(two_)
        for _ in range(turns):
            await asyncio.sleep(0)
        link.close()
    one.call(two_)
    await asyncio.sleep(0)
    await site.closing(one.links.close())
    await site.closing(two_.links.close())
    assert one.heard.links == two_.heard.links == {}


@everywhere
async def test_there_is_one_link_to_a_worker(site: Site) -> None:
    one, two_, _ = await two(site)
    with pytest.raises(InvariantBroken, match="already"):
        one.call(two_)


@everywhere
async def test_pauses_between_two_calls_grow_up_to_a_bound_and_differ(site: Site) -> None:
    one, two_ = await site.worker("one"), await site.worker("two")
    calls: list[float] = []
    make = one.links._connection

    def counted(expected: str | None, remote: str = "") -> Any:
        calls.append(site.clock.monotonic())
        return make(expected, remote)

    one.links._connection = counted  # type: ignore[method-assign]
    one.call(two_, "nobody")
    await site.live(120)
    pauses = [later - sooner for sooner, later in itertools.pairwise(calls)]
    assert pauses[0] <= 1.0, "three round trips of a greeting, and the first pause"
    assert max(pauses) <= 5.5
    assert min(pauses[-10:]) >= 2.25
    assert len(set(pauses[-10:])) > 1


def test_the_handler_of_these_tests_notices_a_link_that_is_up_twice() -> None:
    heard = Heard()

    class Fake:
        peer, outgoing, up = "x", True, True

    heard.link_up(Fake())  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        heard.link_up(Fake())  # type: ignore[arg-type]

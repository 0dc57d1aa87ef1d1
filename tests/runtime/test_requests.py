"""Requests of operators: each takes its turn among the records of its key, and has its effect
once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table, Timer
from millwheel.errors import CommitUnknown
from millwheel.runtime.interval.key_requests import IntervalRequests, KeyRequest
from millwheel.store.port.commit import Commit
from millwheel.store.port.requests import SettledRequest
from millwheel.testing import inject
from tests.support.pipelines import QUICK, Kept, doing, produce, script
from tests.support.store_sites import REFUSED
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, at, key_of, time_of
from tests.support.worlds import Gate, World

BAD: set[int] = set()
"""Numbers that `work` refuses."""


@pytest.fixture(autouse=True)
def all_are_good() -> None:
    BAD.clear()


async def work(record: Record[Item], ctx: Context[Kept]) -> None:
    number = record.value.number
    if number in BAD:
        raise ValueError(f"{number} is bad")
    ctx.state.count += 1
    ctx.state.marks.put(str(number), number)
    ctx.set_timer(at(1000 + number), "later")
    produce(ctx, number, ctx.state.count)


async def ring(timer: Timer, ctx: Context[Kept]) -> None:
    ctx.state.count += 100
    produce(ctx, -1, int(timer.at.timestamp()))


def world_of(*numbers: int) -> World:
    source = script(ITEMS, [Item("a", number, float(number)) for number in numbers])
    return World(doing(source, work, ring, on_error="dead_letter"))


async def settled(world: World, number: int) -> SettledRequest:
    """The outcome of a request."""
    await world.until(lambda: world.store.outcome(number) is not None, tick=0.05)
    found = world.store.outcome(number)
    assert found is not None
    return found


async def ask(world: World, verb: str, **payload: Any) -> tuple[str, str]:
    """Ask for something, and wait for its outcome."""
    found = await settled(world, world.store.ask(verb, "do", "a", payload))
    return found.outcome, found.detail


async def ready(world: World, count: int) -> None:
    await world.start()
    await world.until(lambda: len(world.rows()) + len(world.letters()) == count, tick=0.05)


async def test_a_field_of_the_state_is_set_and_its_collections_stay() -> None:
    source = script(ITEMS, [Item("a", 1), Item("a", 2)])
    world = World(doing(source, work, ring, on_error="dead_letter"))
    await ready(world, 2)
    before = world.state("do", "a")
    assert await ask(world, "set_state", merge={"count": 7}) == (
        "done", 'was {"count":2,"numbers":[]}',
    )  # fmt: skip
    after = world.state("do", "a")
    assert {**after, "": None} == {**before, "": None}
    assert after[""]["count"] == 7
    source.append(inject(ITEMS, Item("a", 3)))
    await world.until(lambda: len(world.rows()) == 3, tick=0.05)
    assert world.rows()[-1][:3] == ("a", 3, 8), "the key goes on from there"
    assert len(world.state("do", "a")) == len(after) + 1
    await world.close()


async def test_a_state_is_replaced_if_its_condition_holds() -> None:
    world = world_of(1, 2)
    await ready(world, 2)
    value = {"count": 3, "numbers": [1]}
    found = await ask(world, "set_state", value=value, **{"if": {"count": 1}})
    assert found == (
        "refused", 'the condition does not hold: the state is {"count":2,"numbers":[]}',
    )  # fmt: skip
    assert (await ask(world, "set_state", value=value, **{"if": {"count": 2}}))[0] == "done"
    assert world.state("do", "a")[""] == value
    await world.close()


@pytest.mark.parametrize("value", [{"count": "many"}, {"numbers": [1.5]}, 3])
async def test_a_state_of_another_type_is_refused(value: Any) -> None:
    world = world_of(1)
    await ready(world, 1)
    outcome, detail = await ask(world, "set_state", value=value)
    assert outcome == "refused"
    assert "cannot be the state" in detail
    assert world.state("do", "a")[""]["count"] == 1
    await world.close()


async def test_a_state_is_deleted_with_its_collections() -> None:
    world = world_of(1, 2)
    await ready(world, 2)
    assert (await ask(world, "delete_state"))[0] == "done"
    assert world.state("do", "a") == {}
    await world.close()


async def test_a_timer_is_cancelled() -> None:
    world = world_of(1)
    await ready(world, 1)
    assert (await ask(world, "cancel_timer", kind="watermark", tag="later"))[0] == "done"
    assert world.store.timers() == []
    outcome, detail = await ask(world, "cancel_timer", kind="watermark", tag="later")
    assert (outcome, detail) == ("refused", "the key has no watermark timer with the tag 'later'")
    await world.close()


@pytest.mark.parametrize("in_memory", [1, 1000])
async def test_a_timer_fires_with_the_time_that_it_was_set_for(in_memory: int) -> None:
    """Also one that is in the store alone."""
    source = script(ITEMS, [Item(key, n, float(n)) for n, key in enumerate("cba")])
    limits = replace(QUICK, timers_in_memory=in_memory)
    world = World(doing(source, work, ring, settings=limits))
    await ready(world, 3)
    assert (await ask(world, "fire_timer", kind="watermark", tag="later"))[0] == "done"
    assert world.rows()[-1][:3] == ("a", -1, int(at(1002).timestamp()))
    assert len(world.store.timers()) == 2
    await world.close()


async def test_a_dead_letter_is_processed_at_last() -> None:
    BAD.add(2)
    world = world_of(1, 2, 3)
    await ready(world, 3)
    (letter,) = world.store.dead_letters
    failed = await settled(world, world.store.ask("retry", "do", "a", letter=letter))
    assert (failed.outcome, failed.detail) == ("failed", "ValueError: 2 is bad")
    (letter,) = world.store.dead_letters
    assert letter.attempts == 2
    BAD.clear()
    done = await settled(world, world.store.ask("retry", "do", "a", letter=letter))
    assert (done.outcome, done.detail) == ("done", "attempt 3")
    assert world.store.dead_letters == []
    assert world.numbers() == [1, 3, 2]
    assert world.counter("do", "processed") == 3, "it was counted when it was given up"
    gone = await settled(world, world.store.ask("retry", "do", "a", letter=letter))
    assert (gone.outcome, gone.detail) == ("refused", "the dead letter is gone")
    await world.close()


async def test_a_dead_letter_is_processed_with_another_value() -> None:
    BAD.add(2)
    world = world_of(2)
    await ready(world, 1)
    (letter,) = world.store.dead_letters
    value = {"key": "a", "number": 20, "seconds": 2.0}
    number = world.store.ask("retry", "do", "a", {"value": value}, letter=letter)
    assert (await settled(world, number)).outcome == "done"
    assert world.numbers() == [20]
    await world.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_the_value_of_a_dead_letter_is_migrated(fails: bool) -> None:
    """A letter of a former version of the stream's type is no value of the present one."""

    def upgrade(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "number": old["gone"] if fails else old["number"] * 10}

    BAD.add(2)
    world = world_of(2)
    await ready(world, 1)
    (letter,) = world.store.dead_letters
    assert letter.version == 1
    world.interval("do").step.streams["items"] = Stream(
        "items", Item, version=2, migrations={1: upgrade}
    )
    found = await settled(world, world.store.ask("retry", "do", "a", letter=letter))
    if fails:
        assert found.outcome == "refused"
        assert "the migration from version 1 to 2 failed" in found.detail
        assert world.store.dead_letters == [letter]
    else:
        assert found.outcome == "done"
        assert world.numbers() == [20]
    await world.close()


@pytest.mark.parametrize("on_error", ["dead_letter", "park"])
@pytest.mark.parametrize("changed", ["the value", "the code"])
async def test_a_dead_letter_stays_one_of_its_key(on_error: Any, changed: str) -> None:
    """Neither an operator's value nor newer code moves its effects to the state of another key."""
    BAD.add(2)
    source = script(ITEMS, [Item("a", 2, 2.0), Item("b", 3, 3.0)])
    world = World(doing(source, work, ring, on_error=on_error))
    await ready(world, 2)
    (letter,) = world.store.dead_letters
    BAD.clear()
    value = {"key": "b", "number": 20, "seconds": 2.0}
    payload = {"value": value} if changed == "the value" else {}
    if changed == "the code":
        (input_,) = world.interval("do").step.node.inputs
        object.__setattr__(input_, "extractor", lambda item: item.key.upper())
    found = await settled(world, world.store.ask("retry", "do", "a", payload, letter=letter))
    assert found.outcome == "refused"
    assert "a retry keeps the key" in found.detail
    assert world.store.dead_letters == [letter]
    assert world.state("do", "a") == {}
    assert world.numbers() == [3]
    await world.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no JSON": ({"key": b"a"}, "A text is in quotes"),
    "empty": ({"key": b""}, "is none"),
    "a number out of range": ({"key": b"1e999"}, "is none"),
    "no key": ({"key": b"true"}, "is none"),
    "too deep": ({"key": b"[" * 5000 + b"]" * 5000}, "is none"),
    "nested": ({"key": b'["a",[1]]'}, "is none"),
    "other spaces": ({"key": b'[ "a", 1]'}, 'is stored as ["a",1]'),
    "slot": ({"slot": 7}, 'is stored as "a", with the slot'),
    "verb of owners": ({"verb": "unpark"}, "by itself"),
    "payload": ({"payload": [1]}, "no JSON object"),
    "unreadable payload": ({"payload": None}, "no JSON object"),
    "no timer": ({"verb": "fire_timer"}, "names no timer"),
    "a hold": ({"verb": "cancel_timer", "payload": {"kind": "hold", "tag": ""}}, "names no timer"),
    "a tag": ({"verb": "fire_timer", "payload": {"kind": "wall", "tag": 5}}, "names no timer"),
}


@pytest.mark.parametrize("wrong", list(WRONG))
async def test_a_row_that_an_operator_has_written_by_hand_is_refused(wrong: str) -> None:
    """It ends no worker, and makes no second state of a key."""
    world = world_of(1)
    await ready(world, 1)
    before = world.state("do", "a")
    changes, reason = WRONG[wrong]
    number = world.store.ask("set_state", "do", "a", {"merge": {"count": 9}})
    row = world.store.tables.requests[number]
    for name, value in changes.items():
        setattr(row, name, value)
    found = await settled(world, number)
    assert found.outcome == "refused"
    assert reason in found.detail
    assert world.state("do", "a") == before
    assert (await ask(world, "set_state", merge={"count": 9}))[0] == "done", "and it goes on"
    await world.close()


async def test_requests_of_a_key_are_carried_out_in_their_order_and_in_its_turn() -> None:
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        before = ctx.state.count
        await gate.wait()
        ctx.state.count = before + 1

    world = World(doing(script(ITEMS, [Item("a", 1)]), slowly))
    await world.start()
    await world.until(lambda: gate.reached == 1)
    asked = [
        world.store.ask("set_state", "do", "a", {"merge": {"count": n}, "if": {"count": n - 1}})
        for n in (2, 3, 4)
    ]
    await world.turns(200, tick=0.05)
    assert [world.store.outcome(number) for number in asked] == [None] * 3, "its record runs"
    gate.open()
    for number in asked:
        assert (await settled(world, number)).outcome == "done"
    assert world.state("do", "a")[""]["count"] == 4
    await world.close()


@pytest.mark.parametrize("verb", ["retry", "discard"])
async def test_a_letter_that_is_asked_for_again_after_a_late_withdrawal_is_processed_once(
    verb: str,
) -> None:
    """The owner has begun it when the operator takes it back."""
    gate = Gate()

    async def slowly(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number in BAD:
            raise ValueError("it is bad")
        await gate.wait()
        produce(ctx, record.value.number)

    BAD.add(1)
    world = World(doing(script(ITEMS, [Item("a", 1)]), slowly, on_error="dead_letter"))
    await ready(world, 1)
    BAD.clear()
    (letter,) = world.store.dead_letters
    first = world.store.ask("retry", "do", "a", letter=letter)
    await world.until(lambda: gate.reached == 1, tick=0.05)
    world.store.withdraw(first)
    second = world.store.ask(verb, "do", "a", letter=letter)
    await world.turns(100, tick=0.05)
    gate.open()
    assert (await settled(world, first)).outcome == "done"
    assert (await settled(world, second)).outcome == "refused"
    assert (gate.reached, world.numbers()) == (1, [1])
    await world.close()


@pytest.mark.parametrize("durable", [True, False])
async def test_a_request_has_its_effect_once_when_its_commit_is_lost(durable: bool) -> None:
    BAD.add(2)
    world = world_of(1, 2)
    await ready(world, 2)
    BAD.clear()
    (letter,) = world.store.dead_letters

    def lose(commit: Commit) -> None:
        if commit.settled:
            world.on_try = world.on_durable = None
            raise CommitUnknown("the connection was lost")

    if durable:
        world.on_durable = lose
    else:
        world.on_try = lose
    number = world.store.ask("retry", "do", "a", letter=letter)
    assert (await settled(world, number)).outcome == "done"
    await world.turns(200, tick=0.05)
    assert world.numbers() == [1, 2]
    assert world.state("do", "a")[""]["count"] == 2
    assert sum(len(commit.settled) for commit in world.commits) == 1
    await world.close()


async def test_a_request_with_a_refused_statement_fails_alone() -> None:
    async def refuse(record: Record[Item], ctx: Context[Kept]) -> None:
        if record.value.number == 2:
            if BAD:
                raise ValueError("2 is bad")
            ctx.execute(REFUSED)
        produce(ctx, record.value.number)

    BAD.add(2)
    source = script(ITEMS, [Item("a", 1), Item("a", 2)])
    world = World(doing(source, refuse, on_error="dead_letter"))
    world.store.faults.refuse = lambda what, _: "no such table" if what == REFUSED else None
    await ready(world, 2)
    BAD.clear()
    (letter,) = world.store.dead_letters
    number = world.store.ask("retry", "do", "a", letter=letter)
    for n in range(3, 8):
        source.append(inject(ITEMS, Item("b", n)))
    found = await settled(world, number)
    assert found.outcome == "failed"
    assert "no such table" in found.detail
    assert len(world.store.dead_letters) == 1
    await world.until(lambda: len(world.rows()) == 6, tick=0.05)
    await world.close()


def request(number: int) -> KeyRequest:
    async def nothing(kind: str, tag: str) -> None: ...

    return KeyRequest(number, "retry", ("a", b'"a"', 1), {}, None, nothing)


async def test_an_unknown_verb_is_refused_by_older_code() -> None:
    world = world_of(1)
    await ready(world, 1)
    outcome, detail = await ask(world, "paint")
    assert outcome == "refused"
    assert "set_state" in detail
    await world.close()


class Weak(Computation[Item, Count]):
    writes = (TALLY,)
    order_insensitive = True

    async def process_record(self, record: Record[Item], ctx: Context[Count]) -> None:
        ctx.produce(TALLY, Counted(record.value.key, record.value.number, 0))


async def test_a_request_of_a_weak_computation_is_refused() -> None:
    pipeline = Pipeline("weak", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, [Item("a", 1)]), timestamp=time_of)
    pipeline.add(Weak(), ITEMS.by(key_of), name="do", productions="weak")
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    world = World(pipeline)
    await ready(world, 1)
    outcome, detail = await ask(world, "delete_state")
    assert outcome == "refused"
    assert "does not commit its productions with its state" in detail
    await world.close()


def test_a_request_that_was_read_before_the_claim_is_read_again() -> None:
    """It came between the start of a recovery and the claim, so nobody runs it."""
    requests = IntervalRequests()
    apart, begun, late = (request(number) for number in (1, 2, 3))
    requests.add([apart, begun])
    requests.take(2)
    requests.start_over({id(apart)})
    requests.add([late])
    requests.forget_waiting()
    assert list(requests.taken) == [1]
    assert list(requests.waiting) == []

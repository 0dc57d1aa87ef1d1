"""Dead letters are counted, logged, and told to whoever tests a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from millwheel import Context, JsonLines, Pipeline, Record
from millwheel.core.clock import VirtualClock
from millwheel.runtime.engine import Engine
from millwheel.runtime.lane.dead_letter_log import DeadLetterLog, raised_at
from millwheel.services.run import Run
from millwheel.sources import Row, Rows
from millwheel.store.port.requests import DeadLetter
from millwheel.testing import Harness, assert_exactly_once, inject
from millwheel.testing.script import Script, ScriptReader
from tests.support.pipelines import QUICK, Tally, doing, produce
from tests.support.store_sites import PostgresSite
from tests.support.values import ITEMS, TALLY, Counted, Item, items, key_of, time_of
from tests.support.worlds import World


async def refuse_odd(record: Record[Item], ctx: Context[Any]) -> None:
    if record.value.number % 2:
        raise ValueError(f"{record.value.number} is odd\nsecond line")
    produce(ctx, record.value.number)


def letter(error: str = "ValueError: no", traceback: str = "", **fields: Any) -> DeadLetter:
    return DeadLetter(
        slot=0, computation=1, stream="items", record_id=None, key=b'"a"', value="{}", ts=None,
        place="here", error=error, traceback=traceback, attempts=1, stamp=0,
    )._replace(**fields)  # fmt: skip


def raised(line: int) -> str:
    return (
        'Traceback (most recent call last):\n  File "engine.py", line 1, in run\n    await do()\n'
        f'  File "user.py", line {line}, in process_record\n    fail()\nValueError: no, here\n'
    )


async def test_a_dead_letter_is_logged_once_it_is_durable() -> None:
    world = World(doing(items(1, 2), refuse_odd, on_error="dead_letter"))
    with capture_logs() as logs:
        await world.run()
    (line,) = [line for line in logs if line["event"] == "dead_letter"]
    assert line["log_level"] == "warning"
    assert (line["computation"], line["stream"], line["key"]) == ("do", "items", '"a"')
    assert line["error"] == "ValueError: 1 is odd"
    assert "test_dead_letters.py" in line["raised_at"]
    assert line["raised_at"].endswith("in refuse_odd")
    await world.close()


async def test_many_letters_of_a_kind_take_one_line_and_a_number() -> None:
    world = World(doing(items(*range(200)), refuse_odd, on_error="dead_letter"))
    with capture_logs() as logs:
        await world.run(tick=0.0)
    assert len(world.letters()) == 100
    (first,) = [line for line in logs if line["event"] == "dead_letter"]
    (rest,) = [line for line in logs if line["event"] == "dead_letters_left_out"]
    assert first["left_out"] == 0
    assert (rest["computation"], rest["left_out"]) == ("do", 99)
    await world.close()


def test_each_kind_has_a_line_of_its_own_and_says_how_many_were_left_out() -> None:
    clock = VirtualClock()
    log = DeadLetterLog(structlog.get_logger(), clock, {})
    with capture_logs() as logs:
        log.add([letter(traceback=raised(1))] * 3)
        log.add([letter(traceback=raised(2)), letter("KeyError: 1", traceback=raised(1))])
        log.add([letter("file, line 3: bad", computation=2), letter("file, line 4", computation=2)])
    assert [line["left_out"] for line in logs] == [0, 0, 0, 0]
    clock.advance(20.0)
    with capture_logs() as logs:
        log.add([letter(traceback=raised(1))])
        log.flush()
        log.flush()
    assert [(line["event"], line["left_out"]) for line in logs] == [
        ("dead_letter", 2),
        ("dead_letters_left_out", 1),
    ]


def test_the_place_of_an_error_is_the_innermost_line() -> None:
    assert raised_at(raised(7)) == "user.py:7 in process_record"
    assert raised_at("") == ""


async def in_a_harness(*numbers: int, then: Callable[[Harness], object] | None = None) -> None:
    """A block that injects, does something, and injects one more odd number if that says so."""
    async with Harness(doing([], refuse_odd, on_error="dead_letter")) as harness:
        await harness.inject(ITEMS, *items(*numbers))
        if then is not None and then(harness) == "again":
            await harness.inject(ITEMS, *items(33))


async def test_a_harness_ends_with_the_letters_that_nobody_has_read() -> None:
    with pytest.raises(AssertionError) as failed:
        await in_a_harness(1, 2, 3, 5, 7)
    text = str(failed.value)
    assert text.startswith("4 unexpected dead letters\n'do' gave up on stream 'items', key \"a\"")
    assert "in refuse_odd" in text
    assert "ValueError: 1 is odd" in text
    assert "and 1 more" in text
    assert "read harness.dead_letters at the end" in text


async def test_letters_that_a_test_has_read_are_expected() -> None:
    await in_a_harness(1, 2, then=lambda harness: harness.dead_letters)
    with pytest.raises(AssertionError, match=r"1 unexpected dead letter\n.*: 33 is odd"):
        await in_a_harness(1, then=lambda harness: harness.dead_letters and "again")


async def test_letters_do_not_hide_why_a_test_failed() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_a_harness(1, then=lambda _: 1 // 0)


async def test_exactly_once_is_not_kept_by_giving_up() -> None:
    pipeline = doing([], refuse_odd, on_error="dead_letter")
    inputs = [inject(ITEMS, item) for item in items(1, 2)]
    with pytest.raises(AssertionError, match="coalesced: 1 unexpected dead letter\n"):
        await assert_exactly_once(pipeline, inputs, {TALLY: [Counted("a", 2, 0)]})
    await assert_exactly_once(
        pipeline, inputs, {TALLY: [Counted("a", 2, 0)]}, dead_letters="expected"
    )


@pytest.mark.newest
async def test_a_run_counts_all_letters_also_those_of_its_first_moments(
    postgres: PostgresSite, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"key": "a", "number": 1}\nbad\n' * 7)
    pipeline = Pipeline(postgres.schema.name, settings=QUICK)
    pipeline.inject(ITEMS, JsonLines(path), timestamp=time_of, on_error="dead_letter")
    pipeline.add(Tally(), ITEMS.by(key_of))
    start = Engine.start

    async def slowly(engine: Engine) -> None:
        await start(engine)
        await engine.done.wait()  # as on a busy machine: rows are read before the start is over

    monkeypatch.setattr(Engine, "start", slowly)
    summary = await Run(pipeline, postgres.schema.url).run()
    assert summary.counters["bad_rows"] == 7
    assert summary.counters["processed"] == 7


class Bytes(Script):
    """A source of the user's that passes on bytes which are no text."""

    def opened(self, reader: ScriptReader) -> ScriptReader:
        read = reader.read

        async def with_bytes(limit: int) -> Sequence[Row]:
            rows = await read(limit)
            if isinstance(rows, Rows):
                rows.raws = [b'{"key":"a","number":1,"note":"caf\xe9"}'] * len(rows)
            return rows

        reader.read = with_bytes  # type: ignore[method-assign]
        return super().opened(reader)


@pytest.mark.parametrize("on_error", ["dead_letter", "park"])
async def test_whatever_came_in_can_be_a_letter(on_error: Any) -> None:
    source = Bytes("items", [inject(ITEMS, Item("a", 1))])
    world = World(doing(source, refuse_odd, on_error=on_error))
    await world.start()
    await world.until(lambda: world.store.dead_letters, tick=0.01)
    (letter,) = world.store.dead_letters
    assert letter.value == '{"key":"a","number":1,"note":"caf\\xe9"}'
    await world.close()

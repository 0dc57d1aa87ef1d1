"""A record that was accepted and cannot be read: one command, which the error names, sets it
aside."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import Computation, Context, Inbox, Pipeline, Record, Stream, Table
from millwheel.errors import InputError, UsageError
from millwheel.store.console.asking import Actor, Asking
from tests.support.pipelines import QUICK
from tests.support.servers import database
from tests.support.shells import Shell
from tests.support.store_sites import Owner, PostgresSite
from tests.support.worlds import World


class Row(msgspec.Struct):
    number: int


ROWS = Stream("rows", Row)


def pipeline(name: str = "aside") -> Pipeline:
    made = Pipeline(name, settings=QUICK)
    made.inject(ROWS, Inbox())
    made.sink(ROWS, Table("kept", Row))
    return made


NEXT = Stream("next", Row)


class Successor(Computation[Row, None]):
    """The next number, which for the largest one is none that the table can hold."""

    writes = (NEXT,)

    async def process_record(self, record: Record[Row], ctx: Context[Any]) -> None:
        ctx.produce(NEXT, Row(record.value.number + 1))


def computed(name: str = "aside") -> Pipeline:
    """A computation between the stream and the table."""
    made = Pipeline(name, settings=QUICK)
    made.inject(ROWS, Inbox())
    made.add(Successor(), ROWS.by(lambda row: f"{row.number} of 'them'"))
    made.sink(NEXT, Table("kept", Row))
    return made


def ask(world: World, row: Any, verb: str = "set_aside") -> int:
    """Ask as the command does; gives the request's number."""
    number = world.store.ask(verb, "rows_injector", "inbox", {"row": row})
    world.store.tables.requests[number].slot = 0
    return number


def kept(world: World) -> list[int]:
    return sorted(row[0] for row in world.store.rows("kept"))


async def test_a_row_that_was_asked_for_becomes_a_letter() -> None:
    """The others are processed; a good row can be set aside as well."""
    world = World(pipeline())
    first = await world.start()
    for number in range(5):
        world.store.send("rows", b"null" if number == 1 else b'{"number":%d}' % number)
    with pytest.raises(InputError, match=r"stream 'rows', inbox, record 1: .*value 'null'"):
        await world.until(lambda: False, tick=0.01)
    await first.kill()
    asked = [ask(world, row) for row in (1, 3, 1)]
    await world.start()
    await world.until(lambda: len(kept(world)) == 3, tick=0.01)
    assert kept(world) == [0, 2, 4]
    await world.until(
        lambda: all(world.store.outcome(number) is not None for number in asked), tick=0.01
    )
    assert {world.store.outcome(number).outcome for number in asked} == {"done"}  # type: ignore[union-attr]
    letters = {letter.place: letter for letter in world.store.dead_letters}
    assert letters.keys() == {"inbox, record 1", "inbox, record 3"}
    assert letters["inbox, record 1"].value == "null"
    assert "an operator has set this row aside" in letters["inbox, record 3"].error


async def test_a_row_that_is_processed_stays_so() -> None:
    world = World(pipeline())
    first = await world.start()
    for number in range(3):
        world.store.send("rows", b'{"number":%d}' % number)
    await world.until(lambda: kept(world) == [0, 1, 2], tick=0.01)
    await world.turns(20, tick=0.1)
    await first.kill()
    asked = ask(world, 1)
    await world.start()
    await world.until(lambda: world.store.outcome(asked) is not None, tick=0.01)
    assert world.store.outcome(asked).detail == "the injector is past the row"  # type: ignore[union-attr]
    assert not world.store.dead_letters


@pytest.mark.parametrize(
    ("verb", "row"),
    [
        ("set_aside", "1"),
        ("set_aside", None),
        ("set_aside", True),
        ("set_aside", -1),
        ("retry", 1),
    ],
)
async def test_a_request_that_was_written_by_hand_is_not_believed(verb: str, row: Any) -> None:
    world = World(pipeline())
    first = await world.start()
    await world.turns(5, tick=0.01)
    await first.kill()
    asked = ask(world, row, verb)
    await world.start()
    await world.until(lambda: world.store.outcome(asked) is not None, tick=0.01)
    assert world.store.outcome(asked).outcome == "refused"  # type: ignore[union-attr]


@pytest.mark.newest
async def test_the_command_names_partitions_that_there_are(postgres: PostgresSite) -> None:
    await Owner.take(postgres.store)
    with psycopg.connect(postgres.schema.url) as connection:
        asking = Asking(connection, postgres.schema.name)
        with pytest.raises(UsageError, match="no injector 'words'"):
            asking.set_aside(Actor("ada", ""), "words", None, 1)
        with pytest.raises(UsageError, match="name a partition"):
            asking.set_aside(Actor("ada", ""), "lines", "elsewhere", 1)


@pytest.fixture
def shell(postgres_url: Callable[[int], str], tmp_path: Path) -> Iterator[Shell]:
    """Commands on a store."""
    with database(postgres_url(18)) as url:
        made = Shell(tmp_path, url, "aside")
        made.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        yield made
        made.end()


def query(shell: Shell, text: str) -> list[Any]:
    with psycopg.connect(shell.url(), options="-c search_path=aside") as connection:
        return connection.execute(text.encode()).fetchall()


@dataclass(frozen=True)
class Bad:
    """A record that stops a pipeline, and how its error names it."""

    pipeline: str
    value: str
    code: int
    error: str
    place: str
    """The place of its dead letter."""


BAD = {
    "no value of the stream": Bad(
        "pipeline",
        "null",
        5,
        "stream 'rows', inbox, record 1: Expected `object`, got `null`; value 'null'",
        "inbox, record 1",
    ),
    "no row of the table behind a computation": Bad(
        "computed",
        '{"number": 9223372036854775807}',
        6,
        "failed on a record of stream 'rows', key \"9223372036854775807 of 'them'\"",
        "log 2 number 1",
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_error_names_the_command(shell: Shell, bad: Bad) -> None:
    """Records are sent before a worker has run, and one of them stops it until the command is
    given."""
    target = f"tests.inbox.test_set_aside:{bad.pipeline}"
    assert "stream rows takes records" in shell("migrate", target)
    assert "takes records" not in shell("migrate", target)
    for number in range(3):
        value = bad.value if number == 1 else f'{{"number":{number}}}'
        query(shell, f"SELECT send('rows', '{value}')")
    code, _, told = shell.start("run", target).end()
    assert code == bad.code
    assert bad.error in told
    (command,) = re.findall(r"millwheel (set-aside .*?)(?:\. All|\n)", told)
    assert "will become a dead letter" in shell(*shlex.split(command))
    running = shell.start("run", target)
    deadline = time.monotonic() + 60
    while query(shell, "SELECT count(*) FROM kept") != [(2,)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert query(shell, "SELECT value, place FROM dead_letters") == [(bad.value, bad.place)]
    running.end(2)

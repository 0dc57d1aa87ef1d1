"""Typical mistakes in user code: each is told with what is wrong, where, and what to write."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import (
    Computation,
    Console,
    Context,
    Discard,
    JsonLines,
    JsonLinesFiles,
    ListState,
    MapState,
    Pipeline,
    Record,
    Stream,
    Table,
)
from millwheel.bundles import Bundles
from millwheel.computations import (
    FlatMap,
    LastingJoin,
    TemporalJoin,
    Windowed,
    count,
    distinct,
    first,
    maximum,
    mean,
    top,
    total,
)
from millwheel.core.model import Statement
from millwheel.errors import GraphError, InputError, StatementError, UserCodeError
from millwheel.graph.node import Productions
from millwheel.testing import Harness
from millwheel.windows import Pane, Tumbling
from tests.support.pipelines import QUICK, doing, script
from tests.support.values import ITEMS, Count, Item, at, items, key_of, time_of
from tests.support.worlds import World

OUT = Stream("out", Item)


class Good(Computation[Item, None]):
    writes = (OUT,)

    async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
        ctx.produce(OUT, record.value)


def made(*values: Any) -> Pipeline:
    pipeline: Any = Pipeline("made", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, values), timestamp=time_of)
    return pipeline  # type: ignore[no-any-return]


def refused(add: Callable[[Any], object]) -> str:
    with pytest.raises(GraphError) as raised:
        add(made())
    return str(raised.value)


def test_a_stream_without_a_way_to_read_it() -> None:
    told = refused(lambda pipeline: pipeline.add(Good(), ITEMS))
    assert told.startswith(
        "'good' does not say how it reads the stream 'items'; give STREAM.by(key)"
    )
    assert "STREAM.spread()" in told
    assert "STREAM.broadcast()" in told
    assert "cannot read 5" in refused(lambda pipeline: pipeline.add(Good(), 5))


def test_a_class_in_place_of_an_instance() -> None:
    assert "give Good()" in refused(lambda p: p.add(Good, ITEMS.by(key_of)))
    assert "give JsonLines(...)" in refused(lambda p: p.inject(OUT, JsonLines, timestamp=time_of))
    assert "give Table(...)" in refused(lambda p: p.sink(ITEMS, Table))
    assert "give Console(...)" in refused(lambda p: p.sink(ITEMS, Console))


def test_something_else_in_place_of_what_is_wanted() -> None:
    assert "extends Computation" in refused(lambda p: p.add(key_of, ITEMS.by(key_of)))
    assert "is not a source" in refused(lambda p: p.inject(OUT, "lines.jsonl", timestamp=time_of))
    assert "is not a sink" in refused(lambda p: p.sink(ITEMS, "lines.jsonl"))
    assert "is not a stream" in refused(lambda p: p.sink(Item, Discard()))
    assert "is not a stream" in refused(
        lambda p: p.inject("items", JsonLines("a"), timestamp=time_of)
    )


PANES = Stream("panes", Pane[int])
LAST = Stream("last", Item)


async def wait(value: Any) -> Any:
    return value


WITHOUT_A_FUNCTION: dict[str, Callable[[Any, Any], object]] = {
    "stream 'items': the key in by(...)": lambda p, f: ITEMS.by(f),
    "inject into 'out': timestamp=": lambda p, f: p.inject(OUT, JsonLines("a"), timestamp=f),
    "inject into 'out': seen=": lambda p, f: p.inject(
        OUT, JsonLines("a"), timestamp=time_of, seen=f
    ),
    "inject into 'out': watermark=": lambda p, f: p.inject(
        OUT, JsonLines("a"), timestamp=time_of, watermark=f
    ),
    "inject into 'out': id=": lambda p, f: p.inject(OUT, JsonLines("a"), timestamp=time_of, id=f),
    "sink of 'items': row=": lambda p, f: p.sink(ITEMS, Console(), row=f),
    "sink of 'items': by=": lambda p, f: p.sink(ITEMS, JsonLinesFiles("a", by=f)),
    "FlatMap to 'out': the function": lambda p, f: FlatMap(f, to=OUT),
    "total(...): the number": lambda p, f: total(f),
    "mean(...): the number": lambda p, f: mean(f),
    "maximum(...): the number": lambda p, f: maximum(f, int),
    "top(...): the number": lambda p, f: top(3, f, Item),
    "first(...) or last(...): the time": lambda p, f: first(f, Item),
    "distinct(...): the part": lambda p, f: distinct(f),
    "windows of stream 'panes': row=": lambda p, f: Windowed(
        Tumbling(minutes=1), count, to=PANES, row=f
    ),
    "LastingJoin: combine=": lambda p, f: LastingJoin(ITEMS, OUT, to=LAST, combine=f),
    "LastingJoin: on=": lambda p, f: LastingJoin(
        ITEMS, OUT, to=LAST, combine=lambda left, right: left, on=f
    ),
    "TemporalJoin: combine=": lambda p, f: TemporalJoin(ITEMS, OUT, to=LAST, combine=f),
}


@pytest.mark.parametrize("where", WITHOUT_A_FUNCTION)
def test_a_value_in_place_of_a_function(where: str) -> None:
    add = WITHOUT_A_FUNCTION[where]
    told = refused(lambda pipeline: add(pipeline, "number"))
    assert told.startswith(f"{where} is 'number'; give a function that ")
    assert "lambda left, right: " in told if "Join" in where else "lambda value: " in told
    assert "FlatMap" in where or "Join" in where or told.endswith("value.number")
    told = refused(lambda pipeline: add(pipeline, wait))
    assert f"{where} is a coroutine function, wait ({__file__}:" in told
    assert "nothing awaits it" in told


def test_writes_without_its_comma() -> None:
    class Bare(Good):
        writes = OUT  # type: ignore[assignment]

    assert "Bare.writes must be a tuple of streams, as in writes = (OUT,)" in refused(
        lambda p: p.add(Bare(), ITEMS.by(key_of))
    )


class Plain(Computation[Item, None]):
    def process_record(self, record: Record[Item], ctx: Context[None]) -> None:  # type: ignore[override]
        """Not awaitable."""


class PlainTimer(Good):
    def process_timer(self, timer, ctx):  # type: ignore[no-untyped-def]
        """Not awaitable."""


class PlainBroadcast(Good):
    def process_broadcast(self, record: Any, shared: Any) -> None:  # type: ignore[override]
        """Not awaitable."""


class PlainBundle(Computation[Item, None]):
    def process_bundle(self, records: Any, ctx: Any) -> None:  # type: ignore[override]
        """Not awaitable."""


class Yields(Computation[Item, None]):
    async def process_record(  # type: ignore[override]
        self, record: Record[Item], ctx: Context[None]
    ) -> AsyncIterator[Item]:
        yield record.value


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Plain, "process_record"),
        (PlainTimer, "process_timer"),
        (PlainBroadcast, "process_broadcast"),
        (PlainBundle, "process_bundle"),
    ],
)
def test_a_plain_function_where_a_coroutine_is_awaited(kind: Any, method: str) -> None:
    told = refused(lambda p: p.add(kind(), ITEMS.by(key_of)))
    line = getattr(kind, method).__code__.co_firstlineno
    assert (
        told == f"{kind.__name__}.{method} ({__file__}:{line}) is a plain function; "
        f"write `async def {method}`"
    )


def test_a_class_without_the_types_of_its_records_and_state() -> None:
    with pytest.raises(
        GraphError, match=r"write class Bare\(Computation\[Value, State\]\), with the"
    ):

        class Bare(Computation):  # type: ignore[type-arg]
            pass

    class Late(Computation[Item, None]):
        pass

    class Child(Late):  # it inherits the types
        pass


class NoMethod(Computation[Item, None]):
    pass


class Plural(Computation[Item, None]):
    async def process_records(self, record: Record[Item], ctx: Context[None]) -> None: ...


class TimerAlone(Good):
    async def process_timers(self, timer: Any, ctx: Any) -> None: ...


def test_a_class_without_the_method_that_is_called() -> None:
    told = refused(lambda p: p.add(NoMethod(), ITEMS.by(key_of)))
    line = inspect.getsourcelines(NoMethod)[1]
    assert told.startswith(
        f"NoMethod ({__file__}:{line}) defines no process_record, which is called"
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(Plural, "process_record"), (TimerAlone, "process_timer")]
)
def test_a_method_whose_name_is_almost_right(kind: Any, name: str) -> None:
    told = refused(lambda p: p.add(kind(), ITEMS.by(key_of)))
    line = inspect.getsourcelines(kind)[1]
    assert (
        told
        == f"{kind.__name__} ({__file__}:{line}) defines {name}s, which is never called; rename it"
        f" to {name}"
    )


def test_a_method_beside_the_one_that_is_called_may_have_any_name() -> None:
    class Both(Good):
        def process_records(self) -> None: ...

    made().add(Both(), ITEMS.by(key_of))


def test_a_generator_where_a_coroutine_is_awaited() -> None:
    told = refused(lambda p: p.add(Yields(), ITEMS.by(key_of)))
    assert "Yields.process_record" in told
    assert "ctx.produce" in told


def test_a_function_that_returns_a_coroutine_is_none_of_these() -> None:
    class Passes(Good):
        def process_record(
            self, record: Record[Item], ctx: Context[None]
        ) -> Coroutine[Any, Any, None]:
            return super().process_record(record, ctx)

    made().add(Passes(), ITEMS.by(key_of))


def test_a_state_that_may_be_none() -> None:
    class Really(Computation[Item, Count | None]):
        async def process_record(self, record: Any, ctx: Any) -> None: ...

    told = refused(lambda p: p.add(Really(), ITEMS.by(key_of)))
    assert "the state of really is of type" in told
    assert "Name one class" in told


@pytest.mark.parametrize("productions", ["strong", "weak"])
async def test_a_timer_that_nothing_takes_is_refused_when_it_is_set(
    productions: Productions,
) -> None:
    class Sets(Computation[Item, None]):
        async def process_record(self, record: Record[Item], ctx: Context[None]) -> None:
            ctx.set_timer(at(5))

    pipeline = made(*items(1))
    pipeline.add(Sets(), ITEMS.by(key_of), productions=productions)
    world = World(pipeline)
    with pytest.raises(UserCodeError, match="sets sets a timer but defines no process_timer"):
        await world.run()
    await world.close()


async def failing(
    *, key: Callable[[Item], Any] = key_of, error: type[Exception], **injected: Any
) -> str:
    pipeline = Pipeline("failing", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(1)), **{"timestamp": time_of, **injected})
    pipeline.add(Good(), ITEMS.by(key))
    world = World(pipeline)
    with pytest.raises(error) as raised:
        await world.run()
    await world.close()
    return str(raised.value)


def no_time(item: Item) -> Any:
    return None


def breaks(item: Item) -> Any:
    return item.nothing  # type: ignore[attr-defined]


def place(function: Callable[..., Any]) -> str:
    return f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})"


@pytest.mark.parametrize("option", ["timestamp", "seen", "watermark"])
@pytest.mark.parametrize("function", [no_time, breaks])
async def test_a_function_of_inject_that_gives_no_time_is_blamed(
    option: str, function: Callable[[Item], Any]
) -> None:
    if (option, function) == ("watermark", no_time):
        pytest.skip("None means that a record says nothing of time")
    told = await failing(error=InputError, **{option: function})
    assert (
        f"{option}= of inject('items', ...), {place(function)}, failed or returned no time" in told
    )
    assert "Correct that function or the row" in told
    assert "Correct the file" not in told


async def test_a_function_that_gives_no_key_is_blamed() -> None:
    def half(item: Item) -> Any:
        return 1.5

    told = await failing(key=half, error=InputError)
    assert (
        "the key extractor of 'good' returned an invalid key for a value of stream 'items'" in told
    )
    assert f"the extractor is {place(half)}" in told
    assert "1.5 cannot be a key" in told
    assert "Correct the file" not in told


async def test_long_keys_are_not_shown_in_full() -> None:
    told = await failing(key=lambda item: "x" * 2000, error=InputError)
    assert "it takes 2,002 bytes" in told
    assert "x" * 100 not in told

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        raise ValueError("no")

    world = World(doing(items(1, key="x" * 1200), do))
    with pytest.raises(UserCodeError) as raised:
        await world.run()
    told, command = str(raised.value).split("millwheel set-aside")
    assert "x" * 100 not in told
    assert "xxx…" in told
    assert "x" * 1200 in command
    await world.close()


async def number() -> int:
    return 1


async def test_a_forgotten_await_is_asked_for() -> None:
    forgotten: list[Coroutine[Any, Any, int]] = []

    def numbered() -> Coroutine[Any, Any, int]:
        forgotten.append(number())
        return forgotten[-1]

    async def add(record: Record[Item], ctx: Context[Any]) -> None:
        ctx.state.count += numbered()

    async def keep(record: Record[Item], ctx: Context[Any]) -> None:
        ctx.state.count = numbered()

    for do in (add, keep):
        world = World(doing(items(1), do))
        with pytest.raises(UserCodeError, match=r'Did you forget "await"\?'):
            await world.run()
        await world.close()
    for coroutine in forgotten:
        coroutine.close()


ROW_USES: dict[str, Callable[[Any], object]] = {
    "first row": lambda found: found[0],
    "loop": lambda found: [*found],
    "number": len,
    "condition": lambda found: 1 if found else 0,
    "method of a cursor": lambda found: found.fetchone(),
    "unpacking": lambda found: (lambda row, *rest: row)(*found),
}


@pytest.mark.parametrize("use", ROW_USES)
async def test_the_rows_of_a_statement_cannot_be_used(use: str) -> None:
    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        ROW_USES[use](ctx.execute("SELECT 1"))  # type: ignore[func-returns-value]

    world = World(doing(items(1), do))
    with pytest.raises(UserCodeError, match=r"ctx\.execute returns no rows: .* keep it in ctx"):
        await world.run()
    await world.close()


async def test_a_statement_cannot_be_awaited() -> None:
    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        found: Any = ctx.execute("SELECT 1")  # type: ignore[func-returns-value]
        assert repr(found).startswith("<no rows")
        copy.copy(found)
        await found

    world = World(doing(items(1), do))
    with pytest.raises(UserCodeError, match=r"ctx\.execute returns no rows"):
        await world.run()
    await world.close()


async def test_a_statement_knows_the_line_that_asked_for_it() -> None:
    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        ctx.execute("INSERT INTO nosuch VALUES (%s)", (1,))

    async with Harness(doing([], do)) as harness:
        await harness.inject(ITEMS, *items(1))
        ((statement, parameters),) = harness.store.statements
    assert (statement, parameters) == ("INSERT INTO nosuch VALUES (%s)", (1,))
    assert isinstance(statement, Statement)
    line = do.__code__.co_firstlineno + 1
    assert repr(statement).endswith(f"VALUES (%s)' (ctx.execute at {__file__}:{line})")


@pytest.mark.newest
async def test_a_refused_statement_is_told_with_its_line(postgres: Any) -> None:
    from millwheel.services.run import Run

    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        ctx.execute(
            "INSERT INTO nosuch VALUES (%s)",
            (record.value.number,),
        )

    pipeline = doing(items(1), do)
    pipeline.name = postgres.schema.name
    with pytest.raises(UserCodeError) as raised:
        await Run(pipeline, postgres.schema.url).run()
    line = do.__code__.co_firstlineno + 1
    assert f"(ctx.execute at {__file__}:{line}): relation" in str(raised.value)
    assert isinstance(raised.value.__cause__, StatementError)
    assert isinstance(raised.value.__cause__.__cause__, psycopg.errors.UndefinedTable)


class Inner(msgspec.Struct):
    marks: MapState[str, int] = msgspec.field(default_factory=MapState)


class Nested(msgspec.Struct):
    inner: Inner = msgspec.field(default_factory=Inner)
    queue: ListState[int] = msgspec.field(default_factory=ListState)


class Listed(msgspec.Struct):
    queues: list[ListState[int]] = []


class Optional(msgspec.Struct):
    queue: ListState[int] | None = None


class Odd(msgspec.Struct):
    found: dict[str, list[Odd]] = {}
    kind: complex = 0j


@pytest.mark.parametrize(
    ("state", "place", "instead"),
    [
        (Nested, "Inner.marks is a MapState", "a dict"),
        (Listed, "a value in Listed.queues is a ListState", "a list"),
        (Optional, "Optional.queue is a ListState", "a list"),
        (Odd, "Odd.kind is of type complex", "plain Python types"),
    ],
)
def test_a_part_of_a_type_that_cannot_be_stored_is_named(
    state: Any, place: str, instead: str
) -> None:
    class Keeps(Computation[Item, state]):
        async def process_record(self, record: Any, ctx: Any) -> None: ...

    told = refused(lambda p: p.add(Keeps(), ITEMS.by(key_of)))
    assert told.startswith("state of keeps: values of type ")
    assert f"cannot be stored as JSON: {place}" in told
    assert instead in told
    assert "schema_hook" not in told
    told = refused(lambda p: Stream("bad", state))
    assert told.startswith("stream 'bad': values of type ")
    if state is not Nested:  # of a stream, the first part is another one
        assert place in told


def test_an_unknown_choice_is_answered_with_the_nearest() -> None:
    def add(**options: Any) -> str:
        return refused(lambda p: p.add(Good(), ITEMS.by(key_of), **options))

    told = add(on_error="dead-letter")
    assert told == (
        "'good': on_error must be 'fail', 'dead_letter', 'park' or Park(...), not 'dead-letter'. "
        "Did you mean dead_letter?"
    )
    assert "Did you mean weak?" in add(productions="week")
    assert "Did you mean at_most_once?" in add(delivery="at-most-once")
    assert "Did you mean tree?" in add(acknowledgement="trees")
    assert "retries must be a whole number, 0 or more, not 1.5" in add(retries=1.5)
    told = refused(
        lambda p: p.inject(OUT, JsonLines("a"), timestamp=time_of, on_error="deadletter")
    )
    assert told.startswith("inject into 'out': on_error must be 'fail' or 'dead_letter', not 'dea")
    told = refused(lambda p: p.sink(ITEMS, Outside(), on_error="park"))
    assert told == "sink of 'items': on_error must be 'fail' or 'dead_letter', not 'park'"


class Outside:
    """A sink outside the store."""

    bundles = Bundles()
    key = None

    def describe(self) -> dict[str, Any]:
        return {}

    async def deliver(self, records: Any, ctx: Any) -> None: ...

    async def close(self) -> None: ...

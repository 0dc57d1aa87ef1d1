"""`Computation`, the base class of user code."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Never, get_args, get_origin

from typing_extensions import TypeVar

from millwheel.bundles import Bundles
from millwheel.context import Context
from millwheel.core.codec import Migration
from millwheel.core.model import Record, Timer
from millwheel.errors import GraphError
from millwheel.streams import Input, Stream
from millwheel.windows import PaneOrder

__all__ = ["Computation"]

V = TypeVar("V")
S = TypeVar("S", contravariant=True)
B = TypeVar("B", default=Never)
T = TypeVar("T", default=None)


class Computation(Generic[V, S, B, T]):
    """One step of a pipeline: reads records of type `V` and keeps state `S` per key.

    ```python
    class Receipts(Computation[Order, None]):  # reads orders, keeps no state
        writes = (SPENT,)

        async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
            ctx.produce(SPENT, record.value.cents)

    pipeline.add(Receipts(), ORDERS.by(customer))
    ```

    The records of one key are processed one at a time, in order; different keys in parallel.
    Effects (state, timers, productions, statements) happen exactly once, even if the call is
    repeated after a failure (paper section 5).

    With `S` None there is no state; otherwise ``S()`` is the empty state. ``Computation[V, S, B,
    T]`` also reads records of type `B` by broadcast, into a table `T` (`process_broadcast`).
    """

    writes: tuple[Stream[Any], ...] = ()
    """The streams that this computation may produce to."""

    bundles: Bundles | None = None
    """Limits of the numbered bundles in which records arrive (`process_bundle`); None: one by
    one."""

    version: ClassVar[int] = 1
    """Increase it by one with every change of the type of the state or of the shared table."""

    migrations: ClassVar[Mapping[int, Migration]] = {}
    """For each older version, a function that converts the state's JSON to the next version.

    Its argument is the result of ``json.loads`` (for a struct or dataclass a ``dict``); it returns
    such a value, or one of the new type. Entries of `MapState` and `ListState` fields have
    `entry_migrations`. To go back to older code, give a function from each newer version: ``{2:
    down}`` with ``version = 1``. A migration runs when the state of a key is read;
    ``docs/why/mistakes-of-user-code.md`` describes failures.
    """

    entry_migrations: ClassVar[Mapping[str, Mapping[int, Migration]]] = {}
    """Migrations of the entries of `MapState` and `ListState` fields, by field.

    ``{"prices": {1: in_cents}}`` converts each value of the field ``prices`` from version 1 of the
    state to the next one, when it is read. A field whose type does not change needs none.
    """

    order_insensitive: ClassVar[bool] = False
    """Declares that the productions for a record do not depend on earlier records or on the time.

    Required for ``productions="weak"`` if the class keeps state or reads the time: after a crash,
    records are processed again, perhaps in another order, and must produce what has already
    arrived.
    """

    wall_timers: bool | None = None
    """Whether it sets ``"wall"`` timers, which cannot run on Spark; None: its own code shows it."""

    pane_order: PaneOrder | None = None
    """How the panes of a key follow one another, if it makes windows of its records."""

    state_rules: Mapping[str, Any] = {}
    """Parameters on which the meaning of stored state and timers depends, such as the size of its
    windows; JSON by name. Code with another value is refused, since it would misread them."""

    state_functions: Mapping[str, tuple[int, tuple[Callable[..., Any] | None, ...]]] = {}
    """Functions that stored state was made by, such as those of a fold, with a version; a change of
    their code has to be confirmed by another version."""

    rules: Mapping[str, Any] = {}
    """Parameters that decide about later records alone, such as how long something is kept; JSON by
    name. A deploy takes another value, and says so."""

    shared_migrations: ClassVar[Mapping[int, Migration]] = {}
    """Migrations of the shared table, as `migrations` are those of the state.

    Both have one `version`; a type that does not change in a step needs no migration for it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        typed = (get_origin(base) for base in vars(cls).get("__orig_bases__", ()))
        if (
            Computation in cls.__bases__
            and Computation not in typed
            and "state_type" not in vars(cls)
        ):
            raise GraphError(
                f"class {cls.__name__}(Computation) does not name its types: write "
                f"class {cls.__name__}(Computation[Value, State]), with the type of its records "
                "and that of the state of a key, or None for no state"
            )

    async def process_record(self, record: Record[V], ctx: Context[S, T]) -> None:
        """Called for each record of each input that is not read by broadcast."""
        raise NotImplementedError(f"{type(self).__name__} must define process_record")

    process_group: Callable[[Sequence[Record[V]], Context[S, T]], Awaitable[None]] | None = None
    """Define it as a method to process several records of one key in one call, where it saves time.

    ```python
    from collections.abc import Sequence

    class Totals(Computation[Order, Spent]):
        async def process_record(self, record: Record[Order], ctx: Context[Spent]) -> None:
            ctx.state.cents += record.value.cents

        async def process_group(
            self, records: Sequence[Record[Order]], ctx: Context[Spent]
        ) -> None:
            ctx.state.cents += sum(record.value.cents for record in records)

    pipeline.add(Totals(), ORDERS.by(customer))
    ```

    It must have the same effects as `process_record` for each of them, in their order. The engine
    calls one or the other as it likes: records that arrive one by one, and those of a call that has
    failed, are given to `process_record`. `Context.produce` takes the least of the timestamps,
    unless it is given one.
    """

    async def process_bundle(self, records: Sequence[Record[V]], ctx: Context[S, T]) -> None:
        """Called in place of `process_record` for each numbered bundle, if the class sets
        `bundles`.

        ```python
        from collections.abc import Sequence

        class ToBooks(Computation[Order, None]):
            bundles = Bundles(records=500)

            async def process_bundle(
                self, records: Sequence[Record[Order]], ctx: Context[None]
            ) -> None:
                rows = [(record.value.customer, record.value.cents) for record in records]
                print("BEGIN", rows, ctx.bundle_id.scope, ctx.bundle_id.number, "COMMIT")

        pipeline.add(ToBooks(), ORDERS.by(customer))
        ```

        Use it to write to a database that is not the store (decision 30). After a crash, a takeover
        or an error it is called again with the same number (`ctx.bundle_id`) and the same records
        in the same order, perhaps while another call still runs. Write the number in the
        transaction of the rows, and skip every bundle that is not above the number that is there.

        The calls of one scope (a key interval) follow one another; scopes run in parallel. A bundle
        has records of many keys, those of one key in order; so `ctx` has no key, state, timers or
        holds. It can produce (by default with the greatest timestamp of the records), execute and
        count.

        A call that raises is repeated at once, up to `retries` times; then `on_error` applies. With
        ``"dead_letter"`` all records become dead letters, and only the other database knows whether
        it has their rows.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_bundle")

    async def process_timer(self, timer: Timer, ctx: Context[S, T]) -> None:
        """Called for each timer that is due.

        ```python
        class Remind(Computation[Order, None]):
            writes = (SPENT,)

            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                ctx.set_timer(record.timestamp + timedelta(hours=1), tag=record.value.item)

            async def process_timer(self, timer: Timer, ctx: Context[None]) -> None:
                print(f"{timer.at}: does {ctx.key} still want {timer.tag}?")
        ```
        """
        raise NotImplementedError(
            f"{type(self).__name__} sets a timer but defines no process_timer"
        )

    async def process_broadcast(self, record: Record[B], shared: T) -> None:
        """Called for each record of an input read by broadcast: change `shared` in place.

        ```python
        class Menu(Struct):
            cents: dict[str, int] = {}

        class Charge(Computation[Order, None, Order, Menu]):
            async def process_broadcast(self, record: Record[Order], shared: Menu) -> None:
                shared.cents[record.value.item] = record.value.cents

            async def process_record(self, record: Record[Order], ctx: Context[None, Menu]) -> None:
                print(ctx.shared.cents.get(record.value.item))
        ```

        The empty table is ``T()``. Other records and timers see the table with all broadcast
        records applied so far, as `Context.shared`. Each of ``Settings.broadcast_cells`` ranges of
        keys has a table and a call; so the method gets nothing that could differ between them
        (time, key), and cannot produce.

        The broadcast records of one sender's log arrive in its order, but in no order with other
        records. To apply the rule of the record's instant, keep the record in the state and set a
        timer at its timestamp: then the table has every broadcast record that is on time and not
        newer, and perhaps newer ones, so store when each rule begins.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_broadcast")

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        """Called by `Pipeline.add`; override it to refuse some inputs.

        Raises:
            GraphError: the computation cannot read these streams with these keys.
        """

    @property
    def name(self) -> str:
        """The default name for `Pipeline.add`: that of the class in lower case."""
        return snake_case(type(self).__name__)

    @property
    def class_name(self) -> str:
        """The name of the class in the graph; override it in a computation around another one."""
        return type(self).__name__

    @property
    def state_type(self) -> Any:
        """The type of the state, from the class's bases; override it if it varies."""
        return _type_argument(type(self), 1)

    @property
    def shared_type(self) -> Any:
        """The type of the shared table, from the class's bases; None: there is no table."""
        return _type_argument(type(self), 3)

    def defines(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Computation, method)


def snake_case(class_name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower().strip("_")


def _type_argument(cls: type, index: int) -> Any:
    bindings: dict[Any, Any] = {}
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            origin = get_origin(base)
            if origin is None or not issubclass(origin, Computation):
                continue
            arguments = tuple(bindings.get(a, a) for a in get_args(base))
            if origin is Computation:
                return arguments[index]
            bindings.update(zip(origin.__parameters__, arguments, strict=False))
    return None

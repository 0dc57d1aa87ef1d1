"""`Computation`, the base class of user code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

    The records of one key are processed one at a time and in order; different keys are processed
    in parallel. The effects of a call (state, timers, productions, statements) happen exactly
    once, even if the call itself is repeated after a failure (paper section 5).

    ``Computation[int, None]`` keeps no state. For any other `S`, the empty state is ``S()``.

    ``Computation[V, S, B, T]`` also reads records of type `B` by broadcast, into a table `T` that
    all keys share: see `process_broadcast`.
    """

    writes: tuple[Stream[Any], ...] = ()
    """The streams this computation may produce to."""

    bundles: Bundles | None = None
    """Limits of the numbered bundles in which records arrive; None: they arrive one by one. See
    `process_bundle`."""

    version: ClassVar[int] = 1
    """Increase it by one with every change of the type of the state or of the shared table."""

    migrations: ClassVar[Mapping[int, Migration]] = {}
    """For each older version, a function that converts the state's JSON to the next version.

    Its argument is the result of ``json.loads``: for a struct or dataclass a ``dict``, not an
    object of the old class. It returns the same kind of value, or a value of the new type.
    `MapState` and `ListState` fields are not included: their entries stay unchanged.

    A migration runs when the state of a key is read. Before a deploy takes effect, the migrations
    are tried on some stored states; if one fails, the deploy is refused. A migration that fails
    later stops the worker (`MigrationFailed`), whatever ``on_error`` says. To go back to the code
    of an older version, give a function from each newer version to the one before: ``{2: down}``
    with ``version = 1``.
    """

    order_insensitive: ClassVar[bool] = False
    """Declares that the productions for a record do not depend on earlier records or on the time.

    It is required for ``productions="weak"`` if the class keeps state or reads the time. After a
    crash, records are processed again, perhaps in another order, and the productions must equal
    those that have already arrived.
    """

    wall_timers: bool | None = None
    """Whether it sets timers of kind ``"wall"``, which cannot run on Spark; None: its own code
    shows it."""

    pane_order: PaneOrder | None = None
    """How the panes of a key follow one another, if it makes windows of its records."""

    shared_migrations: ClassVar[Mapping[int, Migration]] = {}
    """Migrations of the shared table, as `migrations` are those of the state.

    State and shared table have one `version`. A type that does not change from one version to the
    next needs no migration for that step.
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
                f"class {cls.__name__}(Computation) does not say what it reads and keeps: write "
                f"class {cls.__name__}(Computation[Value, State]), with the type of its records "
                "and that of the state of a key, or None for no state"
            )

    async def process_record(self, record: Record[V], ctx: Context[S, T]) -> None:
        """Called for each record of each input that is not read by broadcast."""
        raise NotImplementedError(f"{type(self).__name__} must define process_record")

    async def process_bundle(self, records: Sequence[Record[V]], ctx: Context[S, T]) -> None:
        """Called for each numbered bundle, in place of `process_record`, if the class sets
        `bundles`.

        Use it to write to a database that is not the store (decision 30). The records of a bundle
        have many keys; those of one key are in order. `ctx.bundle_id` is the bundle's number. It is
        stored, with the ids of the records, before this method is called. After a crash, a takeover
        or an error, the method is called again with the same number and the same records in the
        same order, perhaps while another call for the bundle is still running. Write the number in
        the transaction of the rows, and skip every bundle that is not above the number that is
        already there.

        The calls of one scope (a key interval) follow one another; scopes are called in parallel.
        `ctx` can produce, execute and count; its effects are committed with the acknowledgement of
        the records. It has no key, and so no state, timers or holds. The default timestamp of a
        production is the greatest timestamp of the records.

        If the method raises, it is called again at once, up to `retries` times; then `on_error`
        applies. With ``"dead_letter"``, all records of the bundle become dead letters and its
        number is used up: only the other database knows whether it has their rows.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_bundle")

    async def process_timer(self, timer: Timer, ctx: Context[S, T]) -> None:
        """Called for each timer that is due."""
        raise NotImplementedError(
            f"{type(self).__name__} sets a timer but defines no process_timer"
        )

    async def process_broadcast(self, record: Record[B], shared: T) -> None:
        """Called for each record of an input read by broadcast: change `shared` in place.

        The empty table is ``T()``. Records of the other inputs and timers see the table, with all
        broadcast records applied so far, as `Context.shared`, and must not change it.

        The method is called once for each of ``Settings.broadcast_cells`` ranges of keys, each with
        its own table. It therefore receives nothing that could differ between the tables (no time,
        no meaningful key), and cannot produce: every production would be sent that many times.

        Order: the broadcast records of one sender's log arrive at every table in the order of the
        log. There is no order between broadcast and other records: a record may be processed before
        a rule that was sent earlier. To apply the rule of the record's instant, keep the record in
        the state and set a timer at its timestamp. When the timer fires, the table has every
        broadcast record that is on time and not newer. It may have newer ones too, so store in the
        table when each rule begins.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_broadcast")

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        """Called by `Pipeline.add` to check the inputs; override it to refuse some.

        Raises:
            GraphError: the computation cannot read these streams with these keys.
        """

    @property
    def name(self) -> str:
        """The default name for `Pipeline.add`: the name of the class in lower case."""
        return snake_case(type(self).__name__)

    @property
    def state_type(self) -> Any:
        """The type of the state, from the class's bases; override it if it varies."""
        return _type_argument(type(self), 1)

    @property
    def shared_type(self) -> Any:
        """The type of the shared table, from the class's bases; None if there is no table."""
        return _type_argument(type(self), 3)

    def defines(self, method: str) -> bool:
        """Whether the class overrides a method of `Computation`."""
        return getattr(type(self), method) is not getattr(Computation, method)


def snake_case(class_name: str) -> str:
    """The name of a class in lower case with underscores: ``flat_map`` for ``FlatMap``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower().strip("_")


def _type_argument(cls: type, index: int) -> Any:
    """The argument of a subclass for the type parameter `index` of Computation."""
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

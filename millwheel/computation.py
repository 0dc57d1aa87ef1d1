"""The class users write."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Never, get_args, get_origin

from typing_extensions import TypeVar

from millwheel.bundles import Bundles
from millwheel.codec import Migration
from millwheel.context import Context
from millwheel.model import Record, Timer
from millwheel.streams import Input, Stream

V = TypeVar("V")
S = TypeVar("S")
B = TypeVar("B", default=Never)
T = TypeVar("T", default=None)


class Computation(Generic[V, S, B, T]):
    """One step of a pipeline: reads records of type `V`, keeps state `S` per key.

    The records of one key are processed one at a time and in order; different keys in
    parallel. What a call decides (state, timers, productions, statements) takes effect
    once, even though the call itself may be repeated after a failure (paper section 5).

    ``Computation[int, None]`` keeps no state. Otherwise ``S()`` is the empty state.

    ``Computation[V, S, B, T]`` also reads records of type `B` by broadcast, into a table `T` that
    all keys share: see `process_broadcast`.
    """

    writes: tuple[Stream[Any], ...] = ()
    """The streams this computation may produce to."""

    bundles: Bundles | None = None
    """How its records gather, if they are to come in numbered bundles: see `process_bundle`."""

    version: ClassVar[int] = 1
    """Raised by one with every change of the type of the state or of the shared table."""

    migrations: ClassVar[Mapping[int, Migration]] = {}
    """For each older version, a function from the state's decoded JSON to the next version's.

    It is given what ``json.loads`` would give: for a struct or dataclass a ``dict``, not an object of
    the old class. So is what it returns, or a value of the new type. `MapState` and `ListState`
    fields are not in it: their entries stay as they are.

    Each runs when a key's state is read. Before a deploy takes effect they are tried on some stored
    states; one that fails there refuses the deploy. One that fails later stops the worker
    (`MigrationFailed`), whatever ``on_error`` says. To go back to the code of an older version, give
    for each newer one a function to the version before: ``{2: down}`` with ``version = 1``.
    """

    order_insensitive: ClassVar[bool] = False
    """What `process_record` produces for a record is the same whatever came before it, and whenever
    it runs, although it keeps state or looks at the time. To be declared for such a class to be
    added with ``productions="weak"``: after a crash its records are processed again, perhaps in
    another order, and what it produces then must be what has arrived already."""

    shared_migrations: ClassVar[Mapping[int, Migration]] = {}
    """The same for the shared table, where its type changed. State and shared table have one
    `version`; whichever of the two types stays the same from one version to the next needs no
    migration."""

    async def process_record(self, record: Record[V], ctx: Context[S, T]) -> None:
        """Called for each record of each input that is not read by broadcast."""
        raise NotImplementedError(f"{type(self).__name__} must define process_record")

    async def process_bundle(self, records: Sequence[Record[V]], ctx: Context[S, T]) -> None:
        """Called for each numbered bundle of a class that says `bundles`, in place of
        `process_record`: for a database that is not the store (decision 30).

        `records` are of many keys, those of one key in order. `ctx.bundle_id` is the bundle's
        number: stored, with the ids of the records, before this is called. After a crash, a
        takeover or an error it is called again with the same number and the same records in the
        same order, perhaps while another call for it is still going on. Write the number in the
        transaction of the rows, and leave out what is not above the number that is there.

        One call of a scope follows the other; scopes (key intervals) are called in parallel. `ctx`
        produces, executes and counts as ever, with what acknowledges the records; it has no key,
        and so no state, timers or holds. What is produced has the greatest timestamp of the
        records, if none is given.

        If it raises, it is called again at once, `retries` times; then `on_error` says what
        becomes of it. By ``"dead_letter"`` all its records are set aside, and the number is used:
        whether the outside has them is to be asked there.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_bundle")

    async def process_timer(self, timer: Timer, ctx: Context[S, T]) -> None:
        """Called for each timer that is due."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but defines no process_timer")

    async def process_broadcast(self, record: Record[B], shared: T) -> None:
        """Called for each record of an input read by broadcast: change `shared` in place.

        ``T()`` is the empty table. Records of the other inputs and timers see it as
        `Context.shared`, as it was left by the last broadcast record, and may not change it.

        It is called once for each of ``Settings.broadcast_cells`` ranges of keys, each with a
        table of its own. So it is given nothing that could differ between them (no time, no key
        of use), and cannot produce: what goes out would go out that many times.

        Order: broadcast records of one sender's log come in its order, to every table. Between
        them and other records there is none: a record may be processed before a rule that was
        there first. Where the rule of that instant is wanted, keep the record in the state and
        set a timer at its timestamp: when that fires, every broadcast record that is on time and
        not newer has been seen. Newer ones may have been as well: let the table say from when
        on each rule holds.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_broadcast")

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        """Called by `Pipeline.add`, for what can be told from the inputs alone.

        Raises:
            GraphError: the computation cannot read these streams with these keys.
        """

    @property
    def name(self) -> str:
        """What the computation is called when `Pipeline.add` gets no name: the class's name."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower().strip("_")

    @property
    def state_type(self) -> Any:
        """The type of the state, read from the class's bases; override it when it varies."""
        return _type_argument(type(self), 1)

    @property
    def shared_type(self) -> Any:
        """The type of the shared table, or None; read like the type of the state."""
        return _type_argument(type(self), 3)

    def defines(self, method: str) -> bool:
        """Whether the class has a method of its own in place of `Computation`'s."""
        return getattr(type(self), method) is not getattr(Computation, method)


def _type_argument(cls: type, index: int) -> Any:
    """What a subclass gave for the type parameter `index` of Computation."""
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

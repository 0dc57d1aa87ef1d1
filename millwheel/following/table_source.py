"""The source: each sender of a numbered table is a partition, with the row numbers (decision 56).

Event time comes from the followed pipeline: a partition that has read all that its sender had
written has come as far as the low watermark that the sender had promised at that moment. Senders
appear, with takeovers and splits; the search for them shows the least promise of everything that
may write the table, so a row of a sender that is not found yet is not late either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from millwheel.core.json_rows import BadRow
from millwheel.core.model import event_micros
from millwheel.core.numbered import COMPARED, Marks, Sign
from millwheel.errors import InputError, UsageError
from millwheel.fetching import FetchingReader
from millwheel.following.row_values import RowDecoder
from millwheel.following.upstream import Upstream
from millwheel.sources import Discovery, Lag, Partition, Row
from millwheel.store.address import StoreAddress

V = TypeVar("V")

FETCHED_ROWS = 1_000


WENT_BACK = (
    "the store that is followed was restored from a backup, or has lost commits in a failover"
)
WAY_OUT = (
    "Results of the rows since then cannot be undone: remove this pipeline and start again, or "
    "restore its store of that time as well"
)


class NumberedTable(Generic[V]):
    """The rows of a numbered table of another pipeline, each once, also those to come.

    ```python
    class Total(Struct):
        customer: str
        cents: int
        at: datetime

    TOTALS = Stream("totals", Total)
    pipeline.inject(
        TOTALS,
        NumberedTable("postgresql://app@db/shop", "shop", "totals", timestamp=lambda row: row.at),
    )
    ```

    Args:
        store: the address of that pipeline's store, a postgresql:// URL.
        pipeline: its name.
        table: the table, written with ``Table(..., numbered=True)``.
        timestamp: returns the event time of a row, an aware datetime. A row is on time if this is
            no earlier than the time of the production that the row was made from.

    The stream's type gets a row's columns as fields of the same names, besides `sender` and
    `sequence`, also if the fields have other names in JSON (``rename=``, ``field(name=...)``). NaN
    and infinity in a float field make a bad row, since JSON has neither; a field of type Decimal
    takes them.

    Raises:
        UsageError: the store is no URL.
    """

    bounded = False
    timestamps = True
    shows_time = True
    """Its readers show how far the followed pipeline is in event time (`TableReader.seen`)."""

    def __init__(
        self, store: str, pipeline: str, table: str, *, timestamp: Callable[[V], datetime]
    ) -> None:
        address = StoreAddress.parse(store)
        if address.url is None:
            raise UsageError(
                f"NumberedTable: the store {store!r} is not a postgresql:// URL. A pipeline in a "
                "directory can be followed by the URL of its server (millwheel url)"
            )
        if not callable(timestamp):
            raise UsageError(
                f"NumberedTable: timestamp must be a function of a row, not {timestamp!r}"
            )
        self.url = address.url
        self.pipeline = pipeline
        self.table = table
        self.timestamp = timestamp
        self._upstream: tuple[asyncio.AbstractEventLoop, Upstream] | None = None

    def partitions(self) -> list[Partition]:
        return []

    def describe(self) -> dict[str, Any]:
        """The pipeline and the table, without the address: servers may move."""
        return {"follows": [self.pipeline, self.table]}

    def partition(self, identity: str) -> TablePartition:
        return TablePartition(self, identity)

    def discover(self, position: dict[str, Any] | None) -> Discovery:
        return SenderDiscovery(self, None if position is None else position["id"])

    def upstream(self) -> Upstream:
        """The connection of this event loop, which all partitions share."""
        loop = asyncio.get_running_loop()
        if self._upstream is None or self._upstream[0] is not loop:
            self._upstream = loop, Upstream(self.url, self.pipeline, self.table)
        return self._upstream[1]

    def __repr__(self) -> str:
        return f"NumberedTable({self.pipeline!r}, {self.table!r})"


class TablePartition:
    row_name = "row"

    def __init__(self, source: NumberedTable[Any], identity: str) -> None:
        self._source = source
        self._identity = identity
        self.id, _, sender = identity.rpartition("/")
        self.sender = int(sender)

    @property
    def identity(self) -> str:
        return self._identity

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> TableReader:
        """Open the partition at a stored number, or at its first row.

        Raises:
            UsageError: rows cannot be decoded to this type.
        """
        try:
            decoder = RowDecoder(value_type)
        except (TypeError, NotImplementedError, NameError) as error:
            raise UsageError(
                f"{self._source!r}: rows cannot be read as {value_type!r}: {error}"
            ) from error
        stored = position or {"next": 0}
        sign = stored.get("last")
        return TableReader(
            self._source,
            self,
            decoder,
            int(stored["next"]),
            None if sign is None else Sign.parsed(sign),
        )


class TableReader(FetchingReader):
    def __init__(
        self,
        source: NumberedTable[Any],
        partition: TablePartition,
        decoder: RowDecoder,
        first: int,
        sign: Sign | None,
    ) -> None:
        super().__init__()
        self._source = source
        self._partition = partition
        self._decoder = decoder
        self._next = first
        self._opened = first, sign
        self._marks = Marks()
        """Of the rows that are not acknowledged, and some before them."""
        self._upstream = source.upstream()
        self._upstream.hold(self)
        self._written = first
        self._sure: int | None = None
        """The promise of the sender once all fetched rows are read."""
        self._shown: int | None = None

    @property
    def seen(self) -> int | None:
        """The low watermark that the sender has passed by the rows read, in microseconds; None: not
        known."""
        if not self.ahead:
            self._shown = self._sure
        return self._shown

    async def fetch(self) -> Sequence[Row]:
        """The next rows; it waits until there are some.

        Raises:
            InputError: rows were deleted before they were read, or the pipeline is another one.
        """
        while True:
            look = await self._upstream.look()
            partition = self._partition
            check_id(self._source, partition.id, look.id)
            found = look.senders.get(partition.sender)
            if found is None or found.rows < self._next:
                raise InputError(
                    f"{self._source!r}: {self._next} rows of sender {partition.sender} were read, "
                    f"but it has written only {0 if found is None else found.rows}: {WENT_BACK}. "
                    f"{WAY_OUT}"
                )
            self._written = found.rows
            if found.rows > self._next:
                return await self._read(found.rows)
            if found.low_watermark != self._sure:
                self._sure = found.low_watermark
                self.announce()
            self.found_none()
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _read(self, until: int) -> list[Row]:
        sender = self._partition.sender
        rows = await self._upstream.rows(sender, self._next, until, FETCHED_ROWS)
        numbers = [number for number, _ in rows]
        if numbers != list(range(self._next, self._next + len(rows))) or not rows:
            first = numbers[0] if numbers else until
            raise InputError(
                f"{self._source!r}: rows of sender {sender} from number {self._next} on, up to "
                f"{first - 1}, were deleted before they were read. Keep rows for as long as this "
                "pipeline may stand still; to start again with the rest, remove the pipeline"
            )
        await self._compare(self._next + len(rows))
        self._next += len(rows)
        return [self._row(number, text) for number, text in rows]

    async def _compare(self, until: int) -> None:
        """Compare the rows before the next one with those that were read, and mark those up to a
        number.

        Raises:
            InputError: they are others.
        """
        present = await self._upstream.marks(
            self._partition.sender, max(0, self._next - COMPARED), until
        )
        opened, sign = self._opened
        if self._next != opened:
            sign = self._marks.sign(self._next)
        if present.contradict(sign, self._next):
            raise InputError(
                f"{self._source!r}: the last of {self._next} rows of sender "
                f"{self._partition.sender} that were read are not those that it has now: "
                f"{WENT_BACK}, and has written other rows since; or rows were changed by hand. "
                f"{WAY_OUT}"
            )
        self._marks.add(present)

    def _row(self, number: int, text: str) -> Row:
        text = self._decoder.named(text)
        try:
            value = self._decoder.decode(text)
        except BadRow as error:
            return Row(
                number, number, error=InputError(f"{self._place(number)}: {error}"), text=text
            )
        try:
            micros = event_micros(self._source.timestamp(value))
        except Exception as error:
            wrong = InputError(
                f"{self._place(number)}: timestamp= failed or returned no time: {error!r}"
            )
            return Row(number, number, error=wrong, text=text)
        return Row(number, number, value, micros=micros)

    def _place(self, number: int) -> str:
        return f"table {self._source.table!r}, sender {self._partition.sender}, row {number}"

    def close(self) -> None:
        super().close()
        self._upstream.let_go(self)

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The number of the first row that is not acknowledged, and the sign of the rows before
        it."""
        opened, sign = self._opened
        if acknowledged != opened:
            sign = self._marks.sign(acknowledged)
        self._marks.forget(acknowledged - COMPARED)
        return {"next": acknowledged} | ({} if sign is None else {"last": sign.written()})

    def lag(self) -> Lag:
        return Lag(rows=max(0, self._written - self._next) + self.ahead, log_end=self._written)


LOOK_AGAIN_SECONDS = 0.1


class SenderDiscovery:
    def __init__(self, source: NumberedTable[Any], id_: str | None) -> None:
        self._source = source
        self._id = id_
        self._upstream = source.upstream()
        self._upstream.hold(self)
        self.seen: int | None = None
        """No row on time of a sender that is not found yet is older; in microseconds."""

    async def look(self) -> Sequence[str]:
        """The partitions of all senders that have written.

        Raises:
            InputError: the pipeline is not there, or it is another one of the same name.
        """
        look = await self._upstream.look()
        if self._id is None:
            self._id = look.id
        check_id(self._source, self._id, look.id)
        self.seen = look.low_watermark
        return [f"{look.id}/{sender}" for sender in sorted(look.senders)]

    async def wait(self) -> None:
        await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def first_position(self, identity: str) -> dict[str, Any] | None:
        return None

    def position(self) -> dict[str, Any]:
        return {"id": self._id}

    def close(self) -> None:
        """Release the connection, which partitions of this worker share."""
        self._upstream.let_go(self)


def check_id(source: NumberedTable[Any], before: str, now: str) -> None:
    """Refuse another pipeline of the same name.

    Raises:
        InputError: the pipeline's id has changed.
    """
    if before != now:
        raise InputError(
            f"{source!r}: the pipeline that is followed was dropped and made again, or "
            f"brought back to a savepoint (its id was {before}, and is {now}); or the address "
            "leads to another store. Remove this pipeline and start again, or correct the address"
        )

"""The readers of a stream, and the address that each gives a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from millwheel.core.addresses import Address, cell_address, spread_addresses
from millwheel.core.codec import encode_key, encode_keys, place_of, reason, shown
from millwheel.core.model import NAME_BYTES, Key
from millwheel.errors import UserCodeError
from millwheel.graph.node import Reading
from millwheel.runtime.routes.destinations import ReceivingStep
from millwheel.streams import Broadcast

Addresses = tuple[list[Key], list[bytes], list[int]]
"""Keys, their canonical bytes, and slots, as columns."""


class StreamReader(Protocol):
    """Determines the address of each record."""

    step: ReceivingStep
    bit: int
    """The reader's bit in the mask of the readers of a source's row."""

    def address(self, value: Any, stream: str, offset: int | None = None) -> tuple[Any, bytes, int]:
        """The key for a value, the key's canonical bytes, and its slot.

        Args:
            offset: the offset of a source's row; None: the value is a production.
        """
        ...

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        """The addresses of several values, as columns."""
        ...


@dataclass(eq=False)
class KeyedReader:
    """A reader that extracts the key from the value."""

    step: ReceivingStep
    bit: int
    extractor: Callable[[Any], Key]

    def address(self, value: Any, stream: str, offset: int | None = None) -> tuple[Key, bytes, int]:
        """Raises:
        UserCodeError: the extractor failed, or returned a value that cannot be a key.
        """
        extractor = self.extractor
        try:
            key = extractor(value)
        except BaseException as error:
            raise UserCodeError(
                f"the key extractor of {self.step.node.label!r} failed on a value of stream "
                f"{stream!r}: {reason(error)}; value {shown(value, 300)}; the extractor is "
                f"{place_of(extractor)}"
            ) from error
        try:
            key_text, slot = encode_key(key)
        except UserCodeError as error:
            raise UserCodeError(
                f"the key extractor of {self.step.node.label!r} returned an invalid key for a "
                f"value of stream {stream!r}: {error}; the extractor is {place_of(extractor)}"
            ) from error
        return key, key_text, slot

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        """Raises:
        UserCodeError: as `address`.
        """
        try:
            keys = list(map(self.extractor, values))
            return keys, *encode_keys(keys)
        except BaseException:
            return _one_by_one(self, values, stream, offsets)


@dataclass(eq=False)
class SpreadReader:
    """A reader that leaves the choice of the key to the engine."""

    step: ReceivingStep
    bit: int
    sent: int = 0

    def address(self, value: Any, stream: str, offset: int | None = None) -> Address:
        """The next address in turn.

        A source's row that is read again must get the same address, wherever the intervals are
        then: seen ids are kept by slot. A production's address is stored with it.
        """
        if offset is not None:
            everywhere = spread_addresses()
            return everywhere[offset % len(everywhere)]
        nearest = self.step.nearest
        self.sent += 1
        return nearest[self.sent % len(nearest)]

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        count = len(values)
        if offsets is None:
            found: Sequence[Address] = self.step.nearest
            offsets = range(self.sent + 1, self.sent + 1 + count)
            self.sent += count
        else:
            found = spread_addresses()
        of = len(found)
        taken = [found[offset % of] for offset in offsets[:count]]
        return [a.key for a in taken], [a.key_text for a in taken], [a.slot for a in taken]

    def address_of(self, id_: bytes) -> Address:
        """The address of a weak production: the same each time that it is made."""
        everywhere = spread_addresses()
        return everywhere[int.from_bytes(id_[:NAME_BYTES]) % len(everywhere)]


@dataclass(eq=False)
class CellReader:
    """One cell of a reader that gets every record in all its cells."""

    step: ReceivingStep
    bit: int
    cell: Address

    def address(self, value: Any, stream: str, offset: int | None = None) -> Address:
        return self.cell

    def addresses(
        self, values: Sequence[Any], stream: str, offsets: Sequence[int] | None = None
    ) -> Addresses:
        return _one_by_one(self, values, stream, offsets)


def _one_by_one(
    reader: StreamReader, values: Sequence[Any], stream: str, offsets: Sequence[int] | None
) -> Addresses:
    places: Iterable[int | None] = repeat(None) if offsets is None else offsets
    found = [reader.address(v, stream, o) for v, o in zip(values, places, strict=False)]
    return [f[0] for f in found], [f[1] for f in found], [f[2] for f in found]


def readers_of(step: ReceivingStep, input_: Reading, bit: int) -> list[StreamReader]:
    """The readers of one input: one for each cell of a broadcast, otherwise a single one. The graph
    makes sure that no source's row goes to several cells."""
    if isinstance(input_, Broadcast):
        node = step.node
        cells = [cell_address(cell, node.grain) for cell in range(node.cells)]
        return [CellReader(step, bit, cell) for cell in cells]
    if input_.extractor is None:
        return [SpreadReader(step, bit)]
    return [KeyedReader(step, bit, input_.extractor)]

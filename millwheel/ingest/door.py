"""Checks a record before it is accepted: a value that the injector would not take is refused.

An accepted record is stored, and a bad row stops the pipeline unless `inject` says otherwise. So
the door makes every step of the injector on the value while its sender waits: it decodes it, asks
``timestamp=`` and its like for times, each reader of the stream for the key, and tables that take
the stream as it is for the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from millwheel.core.codec import reason, shown
from millwheel.core.json_rows import BadRow, JsonRows, without_strings
from millwheel.errors import UserCodeError
from millwheel.graph.node import Injection, Node
from millwheel.graph.order import Graph
from millwheel.inbox import Inbox, InboxPartition
from millwheel.runtime.interval.step import Step
from millwheel.runtime.routes.routes import StreamRoute, connect
from millwheel.runtime.source.row_rules import RowRules
from millwheel.sinks import Table
from millwheel.sources import Row
from millwheel.streams import Stream

MOST_DIGITS = 1_000
"""Digits of a number, as Postgres writes numbers of JSON out: 1e131071 becomes 131,072 digits."""

_MAYBE_LONG = re.compile(rb"(?<![0-9.])[0-9.]{1000}|[eE][+-]?[0-9]{3}")
_NUMBER = re.compile(rb"([0-9]+)(?:\.([0-9]+))?(?:[eE][+-]?([0-9]+))?")
_MAYBE_NO_TEXT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<nul>u0000)|(?P<half>u[dD][89a-fA-F]..)|.)",
    re.DOTALL,
)
_BIGINT = range(-(1 << 63), 1 << 63)


class Door:
    """The checks for one stream.

    Args:
        graph: the pipeline's graph.
        node: the injector.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        assert node.injection is not None
        assert isinstance(node.injection.source, Inbox)
        self.stream: Stream[Any] = node.writes[0]
        self.inbox: Inbox = node.injection.source
        self._injection: Injection = node.injection
        self._json = JsonRows(self.stream.value_type)
        self._rules = RowRules(
            node.injection, self.stream.name, InboxPartition(), (node.name, graph.name)
        )
        self._route = StreamRoute(self.stream, [])
        steps = {other.name: Step(0, 0, other, {}) for other in graph.nodes}
        connect(steps, node, {self.stream.name: self._route})
        self._tables = [
            (use.sink, use.row)
            for reader in self._route.readers
            for uses in reader.step.node.sinks.values()
            for use in uses
            if reader.step.node.kind == "relay" and isinstance(use.sink, Table)
        ]

    @property
    def takes_times(self) -> bool:
        return self._injection.timestamp is None

    def value(self, raw: bytes, micros: int) -> Any:
        """The value of a record.

        Args:
            micros: its event time, if values have none.

        Raises:
            BadRow: the injector would not take it.
        """
        _check_texts(raw)
        value = self._json.one(raw)
        _check_numbers(raw)
        try:
            self._check(Row(0, 0, value, micros=micros))
        except (Exception, SystemExit) as error:  # functions of inject() may raise anything
            raise BadRow(self._rules.explained(value, error)) from None
        return value

    def _check(self, row: Row) -> None:
        value, route = row.value, self._route
        self._rules.shown_by(value, self._rules.time_of(row))
        route.codec.check(route.codec.encode(value), value)
        for reader in route.readers:
            reader.address(value, route.stream, 0)
        for table, make in self._tables:
            made = _row(value, table, make)
            for column, each in zip(table.columns, made, strict=False):
                place = f"column {column.name!r} of table {table.name!r}"
                if column.type == "bigint" and each is not None and each not in _BIGINT:
                    raise UserCodeError(
                        f"{place} cannot hold {each}: it takes whole numbers of 64 bits"
                    )
                if isinstance(each, Decimal) and _is_long(each):
                    raise UserCodeError(
                        f"{place} cannot hold a number of more than {MOST_DIGITS:,} digits, "
                        "written out"
                    )


def _is_long(number: Decimal) -> bool:
    if not number.is_finite():
        return False
    exponent = number.as_tuple().exponent
    return abs(number.adjusted()) > MOST_DIGITS or -int(exponent) > MOST_DIGITS


def _row(value: Any, table: Table[Any], make: Callable[[Any], Any] | None) -> tuple[Any, ...]:
    try:
        return table.values(make(value) if make else value)
    except (Exception, SystemExit) as error:
        raise UserCodeError(
            f"it makes no row of table {table.name!r}: {reason(error)}; value {shown(value, 300)}"
        ) from error


def _check_numbers(raw: bytes) -> None:
    if _MAYBE_LONG.search(raw) is None:
        return
    for whole, part, exponent in _NUMBER.findall(without_strings(raw)):
        if len(exponent) > 9 or len(whole) + len(part) + int(exponent or 0) > MOST_DIGITS:
            raise BadRow(f"it has a number of more than {MOST_DIGITS:,} digits, written out")


def _check_texts(raw: bytes) -> None:
    """
    Raises:
        BadRow: Postgres cannot store a text, perhaps of a member that the type does not have.
    """
    if _MAYBE_NO_TEXT.search(raw) is None:
        return
    for found in _ESCAPE.finditer(raw):
        if found["nul"]:
            raise BadRow(r"it has a NUL character (\u0000), which Postgres does not store")
        if found["half"]:
            raise BadRow(
                rf"it has half of a surrogate pair (\{found['half'].decode()}), which is no text"
            )

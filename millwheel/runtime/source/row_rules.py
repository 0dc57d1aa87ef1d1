"""The options of `inject` applied to one row: its time, and the handling of a row that cannot be
read."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import Any

from millwheel.core.codec import LETTER_CHARACTERS, place_of, reason, shown, storable
from millwheel.core.model import MIN_TIME, checked_micros, event_micros, to_micros
from millwheel.errors import InputError, ItemAtFault, MillwheelError, UserCodeError
from millwheel.graph.node import Injection
from millwheel.sources import Partition, Row, row_place
from millwheel.store.port.requests import DeadLetter


class RowRules:
    """`injector` is the names of the injector and its pipeline; None on Spark, which can set no row
    aside."""

    def __init__(
        self,
        injection: Injection,
        stream: str,
        partition: Partition,
        injector: tuple[str, str] | None = None,
    ) -> None:
        self._injection = injection
        self._stream = stream
        self._partition = partition
        self._injector = injector

    def time_of(self, row: Row) -> int:
        """Microseconds; `UserCodeError` if the row has none."""
        if self._injection.timestamp is not None:
            return event_micros(self._injection.timestamp(row.value))
        if row.micros is None:
            raise UserCodeError(
                "the row has no timestamp of its own; give timestamp= to inject(...)"
            )
        try:
            return checked_micros(row.micros)
        except ValueError as error:
            raise UserCodeError(str(error)) from error

    def shown_by(self, value: Any, micros: int) -> int:
        injection = self._injection
        if injection.shown_by_reader:
            return MIN_TIME
        if injection.watermark is not None:
            given = injection.watermark(value)
            return MIN_TIME if given is None else to_micros(given)
        return micros if injection.seen is None else event_micros(injection.seen(value))

    def blame(self, row: Row, error: BaseException) -> InputError:
        """The error to report, with the row's place in the input."""
        return InputError(f"{row_place(self._partition, row)}: {self.explained(row.value, error)}")

    def explained(self, value: Any, error: BaseException) -> str:
        """Why the injector does not take a value, with the function at fault."""
        if isinstance(error, MillwheelError):
            return str(error)
        at_fault = self._at_fault(value)
        if at_fault is None:
            return f"{reason(error)}; value {shown(value, 300)}"
        option, function = at_fault
        return (
            f"{option}= of inject({self._stream!r}, ...), {place_of(function)}, failed or "
            f"returned no time: {reason(error)}; value {shown(value, 300)}"
        )

    def check_may_go_on(self, row: Row, error: InputError) -> None:
        if self._injection.on_error == "fail":
            value = f"; value {shown(row.text, 300)}" if row.error is not None and row.text else ""
            stopped = InputError(f"stream {self._stream!r}, {error}{value}. {self._way_out(row)}")
            if self._injector is not None:
                stopped.item = ItemAtFault(
                    self._injector[0], str(row.offset), partition=self._partition.identity
                )
            raise stopped from error

    def set_aside(self, row: Row) -> InputError:
        """Why an operator's row is set aside: its own error, or none."""
        return row.error or InputError(
            f"{row_place(self._partition, row)}: an operator has set this row aside"
        )

    def letter(
        self, row: Row, error: InputError, *, computation: int, record_id: bytes | None, stamp: int
    ) -> DeadLetter:
        """`computation` is the injector's id, `stamp` wall time in microseconds."""
        return DeadLetter(
            slot=0,
            computation=computation,
            stream=self._stream,
            record_id=record_id,
            key=None,
            value=storable(row.text or shown(row.value, LETTER_CHARACTERS)),
            ts=None,
            place=row_place(self._partition, row),
            error=storable(str(error)),
            traceback="",
            attempts=1,
            stamp=stamp,
        )

    def _at_fault(self, value: Any) -> tuple[str, Callable[[Any], Any]] | None:
        """The function given to `inject` that is at fault, with its option."""
        injection = self._injection
        if injection.timestamp is not None:
            try:
                event_micros(injection.timestamp(value))
            except BaseException:
                return "timestamp", injection.timestamp
        if injection.watermark is not None:
            return "watermark", injection.watermark
        return None if injection.seen is None else ("seen", injection.seen)

    def _way_out(self, row: Row) -> str:
        if row.error is None:
            correct = "Correct that function or the row and start again, or "
        elif hasattr(self._partition, "row_name"):
            correct = "It is stored as it is: "
        else:
            correct = "Correct the file and start again, or "
        rule = 'on_error="dead_letter" of inject(...)'
        if self._injector is None:
            return f"{correct}set such rows aside with {rule}"
        injector, pipeline = self._injector
        command = (
            f"millwheel set-aside {injector} {row.offset} --partition "
            f"{quote(self._partition.identity)} --pipeline {pipeline}"
        )
        return (
            f"{correct}set this row aside as a dead letter and start again: {command}. All such "
            f"rows are set aside with {rule}"
        )

"""The two tables of a join: their columns, and how near their times are to their timestamps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.analysis import Spread
from millwheel.sql.place import Place
from millwheel.sql.relations import JOINED, FromItem
from millwheel.sql.scopes import WINDOW, WINDOW_COLUMNS
from millwheel.streams import Stream
from millwheel.windows import Months, Tumbling

EVENT_TIME: Spread = (-1, 0)
"""Of a column that is checked (`check_times`): a window's end is a microsecond after its row."""


def later_spreads(spreads: Mapping[str, Spread], most: int) -> dict[str, Spread]:
    """As `spreads`, for timestamps that are up to so many microseconds later."""
    return {time: (least, greatest + most) for time, (least, greatest) in spreads.items()}


@dataclass
class JoinSide:
    """One of the two tables of a join."""

    stream: Stream[Any]
    label: str
    columns: set[str]
    """Its attributes in the joined records."""
    item: FromItem | None
    """None: it is a join itself, with the attributes as fields."""
    names: dict[str, str]
    """The column of the item, by attribute."""
    kept: list[t.Typed] = field(default_factory=list)
    """Conditions of the rows that can have a partner."""
    keys: list[t.Typed] = field(default_factory=list)
    times: set[str] = field(default_factory=set)
    """Attributes that have to be the event time."""
    delay: int = 0
    """How many microseconds rows without a partner are behind the records that they are."""

    def of_item(self, value: t.Typed) -> t.Typed:
        """A value over joined records, as one over records of this side's stream."""
        return t.rewrite(value, self._of_item)

    def _of_item(self, node: t.Typed) -> t.Typed | None:
        if not isinstance(node, t.ColumnValue) or node.table != JOINED:
            return None
        name = self.names[node.name]
        table = self.stream.name
        if self.item is not None and self.item.window is not None and name in WINDOW_COLUMNS:
            table = WINDOW
        return t.ColumnValue(node.type, node.nullable, node.place, table, name)

    @property
    def is_whole(self) -> bool:
        """Whether all records of the stream can have a partner, as they are, and have the key in
        columns, so that finding it cannot fail."""
        is_keyed = all(isinstance(key, t.ColumnValue) for key in self.keys)
        return is_keyed and not self.kept and (self.item is None or self.item.window is None)

    @property
    def key_columns(self) -> list[t.ColumnValue]:
        """The parts of the key, as columns of its prepared records."""
        found = []
        for number, value in enumerate(self.keys):
            if not isinstance(value, t.ColumnValue):
                name = f"key_{number}"
                while name in self.columns:
                    name += "_"
                value = t.ColumnValue(value.type, value.nullable, value.place, JOINED, name)
            found.append(value)
        return found

    def instants(self) -> dict[str, str]:
        """How the timestamp follows from attributes."""
        if self.item is not None and self.item.window is not None:
            of_window = self.item.window.instants
            return {a: of_window[name] for a, name in self.names.items() if name in of_window}
        known = self.stream.facts.instants or {}
        return {a: known[name] for a, name in self.names.items() if name in known}

    @property
    def windows(self) -> Tumbling | Months | None:
        """The windows of its records, which are no results of windows yet."""
        if self.item is None or self.item.window is None:
            return None
        assigner = self.item.window.assigner
        return assigner if isinstance(assigner, (Tumbling, Months)) else None

    @property
    def columns_of_stream(self) -> set[str]:
        """Its attributes without those of windows."""
        if self.windows is None:
            return self.columns
        return {a for a, name in self.names.items() if name not in WINDOW_COLUMNS}

    @property
    def timed(self) -> Collection[str]:
        """Its attributes that may be times near its timestamps."""
        return self.columns_of_stream if self.stream.facts.spreads is None else self._spreads

    @property
    def known_spreads(self) -> dict[str, Spread]:
        """How far its timestamps are from its times."""
        times = set(self.times)
        if self.item is not None and self.item.window is not None:
            times |= {a for a, name in self.names.items() if name == self.item.window.time}
        return {**dict.fromkeys(times, EVENT_TIME), **self._spreads}

    @property
    def _spreads(self) -> dict[str, Spread]:
        known = self.stream.facts.spreads or {}
        return {a: known[name] for a, name in self.names.items() if name in known}

    def spread(self, time: str, place: Place) -> Spread:
        """How far its timestamps are from one of its times, which is checked if it has to be.

        Raises:
            SqlError: nothing is known about it.
        """
        if self.stream.facts.spreads is None:
            self.times.add(time)
            return EVENT_TIME
        found = self._spreads.get(time)
        if found is None:
            of = "the joins before" if self.item is None else f'the queries of "{self.label}"'
            raise SqlError(
                f"{time} is not the event time of the rows that {of} give",
                place,
                "Join by a time that the joins before have bounded, or by the end of a window; or "
                "say for how long rows wait for a partner: RETAIN INTERVAL '1 day'",
            )
        return found

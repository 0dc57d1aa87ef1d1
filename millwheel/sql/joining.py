"""Turns joins into computations.

Each table of a join passes a loop that keeps the parts that the query uses: the rows that can have
a partner and the columns that are read, with the parts of the key that are no columns. So a join
holds little for each record, and a stream can be joined with itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from millwheel.computations import IntervalJoin, LastingJoin, TemporalJoin, WindowJoin
from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.analysis import Spread, length_of
from millwheel.sql.conditions import (
    EqualKeys,
    TimeBound,
    columns_in,
    conjunction,
    conjuncts,
    equal_keys,
    time_bound,
)
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.keys import check_key, key_of
from millwheel.sql.loops import of_record, select_source
from millwheel.sql.place import Place
from millwheel.sql.planned import Assembly
from millwheel.sql.relations import JOINED, FromItem, JoinedTables, JoinStep
from millwheel.sql.schemas import Field, fields_of, python_type
from millwheel.sql.scopes import WINDOW, WINDOW_COLUMNS, NoScope
from millwheel.sql.steps import Loop
from millwheel.sql.types import TIMESTAMPTZ
from millwheel.sql.window_tables import END, ROWS, check_lines, window_lines
from millwheel.streams import Input, Stream
from millwheel.windows import Months, Tumbling, rule_of

_MICROSECOND = timedelta(microseconds=1)

_UNBOUNDED = (
    "Bound the time between partners: AND b.at BETWEEN a.at AND a.at + INTERVAL '10 minutes'; or "
    "join windows of one size: ON a.id = b.id AND a.window_start = b.window_start; or say for how "
    "long records wait for a partner: RETAIN INTERVAL '1 day' after ON, or RETAIN UNBOUNDED"
)


_EVENT_TIME: Spread = (-1, 0)
"""Of a column that is checked (`check_times`): a window's end is a microsecond after its row."""


def _later(spreads: Mapping[str, Spread], most: int) -> dict[str, Spread]:
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
        known = self.stream.instants or {}
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
        return self.columns_of_stream if self.stream.spreads is None else self._spreads

    @property
    def known_spreads(self) -> dict[str, Spread]:
        """How far its timestamps are from its times."""
        times = set(self.times)
        if self.item is not None and self.item.window is not None:
            times |= {a for a, name in self.names.items() if name == self.item.window.time}
        return {**dict.fromkeys(times, _EVENT_TIME), **self._spreads}

    @property
    def _spreads(self) -> dict[str, Spread]:
        known = self.stream.spreads or {}
        return {a: known[name] for a, name in self.names.items() if name in known}

    def spread(self, time: str, place: Place) -> Spread:
        """How far its timestamps are from one of its times, which is checked if it has to be.

        Raises:
            SqlError: nothing is known about it.
        """
        if self.stream.spreads is None:
            self.times.add(time)
            return _EVENT_TIME
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


class JoinPlanner:
    """Plans the joins of a SELECT.

    Args:
        tables: the streams.
        used: the attributes that the rest of the query uses.
        where: conditions of all rows, which the joins may take over.
        retain: the bound at the end of the query.
        target: the stream of the query, after which streams are named.
    """

    def __init__(
        self, assembly: Assembly, tables: JoinedTables, used: Collection[str], target: str
    ) -> None:
        self._assembly = assembly
        self._tables = tables
        self._used = set(used)
        self._target = target
        self._pushed: list[list[t.Typed]] = [[] for _ in tables.items]
        """Conditions of the result that rows of one table have to fulfil."""

    def plan(self, where: Sequence[t.Typed], retain: Any) -> tuple[Stream[Any], list[t.Typed]]:
        """Add the steps.

        Args:
            where: conditions of the rows of the result.
            retain: the bound at the end of the query, for joins without a bound.

        Returns:
            The stream of joined records, and the conditions that are still to be tested.
        """
        rest = list(where)
        steps = self._tables.steps
        conditions = [conjuncts(step.on) for step in steps]
        if all(step.kind == "INNER" for step in steps):
            rest = self._distribute(rest, conditions)
        rest = [value for value in rest if not self._push(value)]
        left = self._side_of_item(0)
        for number, step in enumerate(steps):
            right = self._side_of_item(number + 1)
            later = [*rest, *(part for each in conditions[number + 1 :] for part in each)]
            later += [step.as_of for step in steps[number + 1 :] if step.as_of is not None]
            needed = self._used.union(*(columns_in(value, JOINED) for value in later))
            pair = _Pair(step, left, right, conditions[number], step.retain or retain)
            if pair.later and any(each.keeps_right for each in steps[number + 1 :]):
                raise SqlError(
                    "a condition with AS OF is tested after all joins, and an outer join follows",
                    pair.later[0].place,
                    "Join AS OF in a query of its own: CREATE STREAM ... AS SELECT",
                )
            rest += pair.later
            needed.update(*(columns_in(value, JOINED) for value in pair.later))
            left = self._joined(pair, needed, number + 1)
        return left.stream, rest

    def _distribute(self, where: list[t.Typed], conditions: list[list[t.Typed]]) -> list[t.Typed]:
        """Give each condition to the first join that has its columns; returns the others."""
        rest = []
        for condition in where:
            used = columns_in(condition, JOINED)
            columns = set(self._tables.attributes[0].values())
            for number, of_join in enumerate(conditions):
                columns |= set(self._tables.attributes[number + 1].values())
                if used and used <= columns and len(_tables_of(condition)) == 1:
                    of_join.append(condition)
                    break
            else:
                rest.append(condition)
        return rest

    def _push(self, condition: t.Typed) -> bool:
        """Test a condition before the joins, if it is about rows that always are in the result."""
        used = columns_in(condition, JOINED)
        for number, attributes in enumerate(self._tables.attributes):
            if used and used <= set(attributes.values()) and _tables_of(condition) == {JOINED}:
                is_version = number > 0 and self._tables.steps[number - 1].as_of is not None
                # Not of versions: an older one that fits would take the place of the newest one.
                if is_version or self._tables.nullable(number, len(self._tables.steps)):
                    return False
                self._pushed[number].append(condition)
                return True
        return False

    def _side_of_item(self, number: int) -> JoinSide:
        item, attributes = self._tables.items[number], self._tables.attributes[number]
        names = {attribute: name for name, attribute in attributes.items()}
        return JoinSide(item.stream, item.alias, set(names), item, names, self._pushed[number])

    # -- steps ----------------------------------------------------------------------------------

    def _joined(self, pair: _Pair, needed: Collection[str], upto: int) -> JoinSide:
        """Add the steps of a join; returns the stream of its results as a side of the next one."""
        left, right = pair.left, pair.right
        columns = (left.columns | right.columns) & set(needed)
        used = columns | pair.used
        prepared = [self._prepared(side, used, pair) for side in (left, right)]
        fields = [f for stream in prepared for f in fields_of(stream.value_type) or []]
        fields = [
            Field(f.name, f.type, f.nullable or self._is_optional(f.name, upto), f.shown)
            for f in fields
            if f.name in columns
        ]
        name = self._assembly.name(f"{self._target}_joined")
        stream: Stream[Any] = Stream(name, _struct(name, fields))
        join = pair.computation(prepared[0], prepared[1], stream, columns)
        join.rules = {**join.rules, "query": pair.meaning}
        inputs: list[Input[Any]] = [
            Input(prepared_stream, key_of(side.key_columns, pair.meaning))
            for prepared_stream, side in zip(prepared, (left, right), strict=True)
        ]
        self._assembly.add(join, *inputs)
        stream.instants = {a: how for a, how in pair.instants.items() if a in columns}
        names = {f.name: f.name for f in fields}
        stream.spreads = {a: near for a, near in pair.spreads().items() if a in columns}
        return JoinSide(stream, "joined", columns, None, names, delay=pair.delay)

    def _is_optional(self, attribute: str, upto: int) -> bool:
        for number, attributes in enumerate(self._tables.attributes):
            if attribute in attributes.values():
                return self._tables.nullable(number, upto)
        return False

    def _prepared(self, side: JoinSide, used: Collection[str], pair: _Pair) -> Stream[Any]:
        """Add the loop that keeps the columns that a join uses of one side."""
        columns = sorted(side.columns & set(used), key=list(side.names).index)
        values = [self._column(side, name) for name in columns]
        for key, column in zip(side.keys, side.key_columns, strict=True):
            check_key(key)
            if column is not key:
                columns.append(column.name)
                values.append(side.of_item(key))
        name = self._assembly.name(f"{self._target}_{_as_name(side.label)}")
        fields = [
            Field(column, value.type, value.nullable, "")
            for column, value in zip(columns, values, strict=True)
        ]
        stream: Stream[Any] = Stream(name, _struct(name, fields))
        where = conjunction([side.of_item(value) for value in side.kept])
        self._assembly.add(self._loop(side, stream, columns, values, where), side.stream.spread())
        return stream

    def _column(self, side: JoinSide, name: str) -> t.Typed:
        item = side.item
        fields = (
            {f.name: f for f in item.all_fields}
            if item is not None
            else {f.name: f for f in fields_of(side.stream.value_type) or []}
        )
        found = fields[side.names[name]]
        assert found.type is not None
        place = self._tables.steps[0].place
        column = t.ColumnValue(found.type, found.nullable, place, JOINED, name)
        return side.of_item(column)

    def _loop(
        self,
        side: JoinSide,
        stream: Stream[Any],
        columns: Sequence[str],
        values: Sequence[t.Typed],
        where: t.Typed | None,
    ) -> Loop:
        generator = Generator(of_record)
        row = generator.name("Row", stream.value_type)
        made = ", ".join(
            f"{column}={generator.value(value)}"
            for column, value in zip(columns, values, strict=True)
        )
        window = None if side.item is None else side.item.window
        before = window_lines(window, [*values, where], generator)
        times = {side.names[time] for time in side.times}
        if window is not None and window.time is not None:
            times.add(window.time)
        checks = [line for time in sorted(times) for line in check_lines(time, generator)]
        condition = "" if where is None else generator.truth(where)
        source = select_source(checks, before, (), condition, f"{row}({made})")
        meaning = "; ".join([*columns, *map(t.written, values)])
        meaning += "" if where is None else f" WHERE {t.written(where)}"
        meaning += "" if window is None else f" IN {rule_of(window.assigner)}"
        return Loop(Generated("select", source, generator.names, meaning, generator.places), stream)


class _Pair:
    """A join of two sides: its key, its conditions, and its bound."""

    def __init__(
        self,
        step: JoinStep,
        left: JoinSide,
        right: JoinSide,
        conditions: Sequence[t.Typed],
        retain: Any,
    ) -> None:
        self._step = step
        self.left, self.right = left, right
        self._retain = retain
        self._on: list[t.Typed] = []
        """Conditions of a pair besides the key."""
        self.later: list[t.Typed] = []
        """Conditions that are tested after the join."""
        self._keys: list[EqualKeys] = []
        self._check_updating()
        for condition in conditions:
            self._take(condition)
        self._windows: Tumbling | Months | None = None
        self._bound: TimeBound | None = None
        self._distances = (1, 1)
        """How many microseconds earlier and later a right record may be."""
        self.instants: dict[str, str] = {}
        if step.as_of is None:
            self._find_windows()
            if self._windows is None:
                self._find_bound()
        self._check_keys()
        self._check_bounded()

    def _check_updating(self) -> None:
        for side in (self.left, self.right):
            if side.stream.is_updating and not (side is self.right and self._step.as_of):
                raise SqlError(
                    f'rows of "{side.label}" are replaced by newer ones, and pairs that were sent '
                    "would stay",
                    self._step.place,
                    "Join the input of that query; or read it FOR SYSTEM_TIME AS OF the other "
                    "row's time, which takes the row that is the newest then",
                )

    def _take(self, condition: t.Typed) -> None:
        """Place a condition: at one side, in the key, or at the pair."""
        step, left, right = self._step, self.left, self.right
        used = columns_in(condition, JOINED)
        if used and used <= left.columns and not step.keeps_left and left.item is not None:
            left.kept.append(condition)
        elif used and used <= right.columns and not step.keeps_right and step.as_of is None:
            right.kept.append(condition)
        elif found := equal_keys(condition, JOINED, left.columns, right.columns):
            self._keys.append(found)
            self._keep_known(found)
        else:
            self._on.append(condition)

    def _keep_known(self, keys: EqualKeys) -> None:
        """NULL equals nothing: leave out such rows, or test for them if both tables keep them."""
        left_kept = self._step.keeps_left or self.left.item is None
        right_kept = self._step.keeps_right
        for side, value, is_kept in (
            (self.left, keys.left, left_kept), (self.right, keys.right, right_kept)
        ):  # fmt: skip
            if value.nullable and not is_kept:
                side.kept.append(
                    t.IsTestValue(keys.condition.type, False, value.place, value, None, True)
                )
        if keys.left.nullable and keys.right.nullable and left_kept and right_kept:
            self._on.append(keys.condition)

    def _find_windows(self) -> None:
        """Whether the two sides are joined by windows, which then are no part of the key."""
        instants = self.left.instants(), self.right.instants()
        same = [
            keys
            for keys in self._keys
            if keys.columns is not None
            and keys.columns[0] in instants[0]
            and instants[0][keys.columns[0]] == instants[1].get(keys.columns[1])
        ]
        raw = [side.windows for side in (self.left, self.right) if side.windows is not None]
        if not same or (len(raw) == 2 and repr(raw[0]) != repr(raw[1])):
            return
        self._windows = raw[0] if raw else ROWS
        step = self._step
        left_known, right_known = not step.keeps_right, not step.keeps_left
        by_end = all(instants[0][keys.columns[0]] == END for keys in same if keys.columns)
        if len(raw) == 1 and by_end:
            # The results of windows may end within the windows of the records: their end stays a
            # part of the key, and those without a partner wait until the latter close.
            left_known &= self.left.windows is not None or not step.keeps_left
            right_known &= self.right.windows is not None or not step.keeps_right
        else:
            rest = [keys for keys in self._keys if keys not in same]
            self._keys = rest or same[:1]
        self.instants = {
            **(instants[0] if left_known else {}),
            **(instants[1] if right_known else {}),
        }

    def _find_bound(self) -> None:
        """How far apart the timestamps of partners are, if times of theirs are bounded."""
        conditions = [*self._on, *(keys.condition for keys in self._keys)]
        sides = self.left, self.right
        found = time_bound(conditions, JOINED, *(side.timed for side in sides))
        if found is None and self._retain is None:
            found = time_bound(conditions, JOINED, *(side.columns_of_stream for side in sides))
        if found is None:
            return
        self._bound = found
        left = self.left.spread(found.left, self._step.place)
        right = self.right.spread(found.right, self._step.place)
        self._distances = (
            max(left[1] - right[0] - found.earliest, 1),
            max(right[1] - left[0] + found.latest, 1),
        )

    def _check_bounded(self) -> None:
        step = self._step
        if step.as_of is not None:
            self._check_as_of()
            return
        is_bounded = self._windows is not None or self._bound is not None
        if is_bounded and step.retain is not None:
            raise SqlError(
                "the condition bounds this join already", step.retain.place, "Leave RETAIN out"
            )
        if not is_bounded and self._retain is None:
            raise SqlError("this join would keep all records for ever", step.place, _UNBOUNDED)
        if not is_bounded and self._retain.length is None and step.kind != "INNER":
            raise SqlError(
                f"a {step.kind} JOIN without a bound never knows that there is no partner",
                step.place,
                "Say for how long a row waits for one: RETAIN INTERVAL '1 day'",
            )

    def _check_as_of(self) -> None:
        step, as_of = self._step, self._step.as_of
        if step.kind not in ("INNER", "LEFT"):
            raise SqlError(f"{step.kind} JOIN with AS OF is not available", step.place)
        assert as_of is not None
        is_time = (
            isinstance(as_of, t.ColumnValue)
            and as_of.type == TIMESTAMPTZ
            and as_of.name in self.left.timed
            and max(map(abs, self.left.spread(as_of.name, as_of.place))) <= 1
        )
        if not is_time:
            raise SqlError(
                "FOR SYSTEM_TIME AS OF takes the column with the event time of the row that is "
                "joined",
                as_of.place,
                ""
                if self.left.item is not None
                else "Of joined rows, this is the later time of "
                "the two: take that one, or join AS OF first",
            )
        self.left.times |= columns_in(as_of, JOINED)
        if step.kind == "LEFT" and self._on:
            raise SqlError(
                "a LEFT JOIN with AS OF has equalities in ON and nothing else",
                self._on[0].place,
                "Write the condition in WHERE, or in a CASE",
            )
        self.later = self._on
        self._on = []

    def _check_keys(self) -> None:
        if not self._keys:
            raise SqlError(
                "a join needs an equality between its tables",
                self._step.place,
                "Records are held by key: ON a.id = b.id",
            )
        self.left.keys = [keys.left for keys in self._keys]
        self.right.keys = [keys.right for keys in self._keys]

    # -- the computation --------------------------------------------------------------------------

    @property
    def used(self) -> set[str]:
        """The attributes that the join reads."""
        values = [*self._on, *self.left.keys, *self.right.keys]
        found: set[str] = set().union(*(columns_in(value, JOINED) for value in values))
        return found

    @property
    def meaning(self) -> str:
        keys = [f"{t.written(keys.left)} = {t.written(keys.right)}" for keys in self._keys]
        return "; ".join([self._step.kind, *keys, *map(t.written, self._on)])

    def computation(
        self, left: Stream[Any], right: Stream[Any], to: Stream[Any], columns: Collection[str]
    ) -> Any:
        """The join, from prepared records."""
        step = self._step
        maker = _RowMaker(left, right, to, columns, self.meaning)
        if step.as_of is not None:
            unmatched = maker.of_left() if step.kind == "LEFT" else None
            return TemporalJoin(left, right, to=to, combine=maker.of_pair(), unmatched=unmatched)
        options: dict[str, Any] = {"to": to, "combine": maker.of_pair(), "on": self._test()}
        if not self._is_lasting:
            options["unmatched_left"] = maker.of_left() if step.keeps_left else None
            options["unmatched_right"] = maker.of_right() if step.keeps_right else None
        if self._windows is not None:
            return WindowJoin(left, right, self._windows, **options)
        if self._is_lasting:
            return LastingJoin(left, right, **options)
        before, after = (timedelta(microseconds=micros) for micros in self._lengths)
        return IntervalJoin(left, right, before=before, after=after, **options)

    @property
    def _is_lasting(self) -> bool:
        """Whether records are kept for ever."""
        bounded = self._windows is not None or self._bound is not None
        return not bounded and self._retain.length is None

    @property
    def _lengths(self) -> tuple[int, int]:
        """How many microseconds earlier and later a right record may be.

        The condition of the pair is exact, this is not.
        """
        if self._bound is not None:
            return self._distances
        length = length_of(self._retain, NoScope())
        assert length is not None
        micros = length // _MICROSECOND
        return micros + self.left.delay, micros

    @property
    def delay(self) -> int:
        """How many microseconds rows without a partner are behind the records that they are."""
        if self._windows is not None or self._step.as_of is not None or self._is_lasting:
            return self.left.delay
        before, after = self._lengths
        alone = after if self._step.keeps_left else 0
        return self.left.delay + max(alone, before if self._step.keeps_right else 0)

    def spreads(self) -> dict[str, Spread]:
        """How far the timestamps of results are from times that they contain."""
        left, right = self.left.known_spreads, self.right.known_spreads
        if self._step.as_of is not None:
            return left
        if self._windows is not None:
            if isinstance(self._windows, Months) or self._windows.is_local:
                return {}
            later = self._windows.size - 1
            return _later({**left, **right}, later)
        if self._is_lasting:
            return {}
        before, after = self._lengths
        return {**_later(left, after), **_later(right, before)}

    def _test(self) -> Generated | None:
        """The function that tests a pair; None: all pairs of a key are partners."""
        condition = conjunction(self._on)
        if condition is None:
            return None
        generator = Generator(
            lambda c: f"{'left' if c.name in self.left.columns else 'right'}.{c.name}"
        )
        source = f"def on(left, right):\n    return {generator.truth(condition)}\n"
        return Generated("on", source, generator.names, t.written(condition), generator.places)


class _RowMaker:
    """Makes the functions that return joined records."""

    def __init__(
        self,
        left: Stream[Any],
        right: Stream[Any],
        to: Stream[Any],
        columns: Collection[str],
        meaning: str,
    ) -> None:
        self._left = [f.name for f in fields_of(left.value_type) or [] if f.name in columns]
        self._right = [f.name for f in fields_of(right.value_type) or [] if f.name in columns]
        self._row = to.value_type
        self._meaning = meaning

    def of_pair(self) -> Generated:
        return self._made("pair", "left, right", self._of("left"), self._of("right"))

    def of_left(self) -> Generated:
        """A left record without a partner."""
        return self._made("left_alone", "left", self._of("left"), _nulls(self._right))

    def of_right(self) -> Generated:
        return self._made("right_alone", "right", _nulls(self._left), self._of("right"))

    def _of(self, side: str) -> list[str]:
        names = self._left if side == "left" else self._right
        return [f"{name}={side}.{name}" for name in names]

    def _made(self, name: str, parameters: str, *parts: Sequence[str]) -> Generated:
        fields = ", ".join(part for group in parts for part in group)
        source = f"def {name}({parameters}):\n    return Row({fields})\n"
        return Generated(name, source, {"Row": self._row}, self._meaning)


def _nulls(names: Sequence[str]) -> list[str]:
    return [f"{name}=None" for name in names]


def _tables_of(value: t.Typed) -> set[str]:
    return {part.table for part in t.walk(value) if isinstance(part, t.ColumnValue)}


def _as_name(label: str) -> str:
    """An alias as a part of a stream's name."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in label.lower())
    return kept.strip("_") or "side"


def _struct(name: str, fields: Sequence[Field]) -> type[msgspec.Struct]:
    made: type[msgspec.Struct] = msgspec.defstruct(
        "".join(part.capitalize() for part in name.split("_")),
        [(f.name, python_type(f.type, nullable=f.nullable)) for f in fields if f.type is not None],
        frozen=True,
        gc=False,
    )
    return made

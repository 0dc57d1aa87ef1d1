"""A join of two tables: the key, the conditions of a pair, and the bound of the wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from millwheel.computations import IntervalJoin, LastingJoin, TemporalJoin, WindowJoin
from millwheel.errors import SqlError
from millwheel.sql import typed as t
from millwheel.sql.analysis import Spread, length_of
from millwheel.sql.conditions import (
    EqualKeys,
    TimeBound,
    columns_in,
    conjunction,
    equal_keys,
    time_bound,
)
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.join_sides import JoinSide, later_spreads
from millwheel.sql.relations import JOINED, JoinStep
from millwheel.sql.scopes import NoScope
from millwheel.sql.types import TIMESTAMPTZ
from millwheel.sql.window_tables import END, ROWS
from millwheel.streams import Stream
from millwheel.windows import Months, Tumbling

_MICROSECOND = timedelta(microseconds=1)

_UNBOUNDED = (
    "Bound the time between partners: AND b.at BETWEEN a.at AND a.at + INTERVAL '10 minutes'; or "
    "join windows of one size: ON a.id = b.id AND a.window_start = b.window_start; or say for how "
    "long records wait for a partner: RETAIN INTERVAL '1 day' after ON, or RETAIN UNBOUNDED"
)


class JoinPair:
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
        self.place = step.place
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
            if side.stream.facts.is_updating and not (side is self.right and self._step.as_of):
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
    def tested(self) -> set[str]:
        """The attributes that a pair is tested by."""
        found: set[str] = set().union(*(columns_in(value, JOINED) for value in self._on))
        return found

    @property
    def meaning(self) -> str:
        keys = [f"{t.written(keys.left)} = {t.written(keys.right)}" for keys in self._keys]
        return "; ".join([self._step.kind, *keys, *map(t.written, self._on)])

    def computation(
        self, left: Stream[Any], right: Stream[Any], to: Stream[Any], row: Mapping[str, t.Typed]
    ) -> tuple[Any, list[Generated]]:
        """The join, and its functions.

        Args:
            left: the stream of the parts of left records that it holds.
            right: that of right ones.
            to: the stream of results.
            row: the columns of a result, as values of joined records.
        """
        step = self._step
        maker = _RowMaker(self.left.columns, to, row, self.meaning)
        combine, test = maker.of_pair(), self._test()
        keeps_right = step.keeps_right and not self._is_lasting
        unmatched_left = maker.of_left() if step.keeps_left and not self._is_lasting else None
        unmatched_right = maker.of_right() if keeps_right else None
        made = [combine, test, unmatched_left, unmatched_right]
        functions = [each for each in made if each is not None]
        if step.as_of is not None:
            of_version = TemporalJoin(left, right, to=to, combine=combine, unmatched=unmatched_left)
            return of_version, functions
        options: dict[str, Any] = {"to": to, "combine": combine, "on": test}
        if self._is_lasting:
            return LastingJoin(left, right, **options), functions
        options |= {"unmatched_left": unmatched_left, "unmatched_right": unmatched_right}
        if self._windows is not None:
            return WindowJoin(left, right, self._windows, **options), functions
        before, after = (timedelta(microseconds=micros) for micros in self._lengths)
        return IntervalJoin(left, right, before=before, after=after, **options), functions

    @property
    def _is_lasting(self) -> bool:
        """Whether records are kept for ever."""
        bounded = self._windows is not None or self._bound is not None
        of_version = self._step.as_of is not None
        return not bounded and not of_version and self._retain.length is None

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
            return later_spreads({**left, **right}, later)
        if self._is_lasting:
            return {}
        before, after = self._lengths
        return {**later_spreads(left, after), **later_spreads(right, before)}

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
    """Makes the functions that return results.

    Args:
        of_left: the attributes of left records; the others are those of right ones.
        row: the columns of a result, as values of joined records.
    """

    def __init__(
        self, of_left: Collection[str], to: Stream[Any], row: Mapping[str, t.Typed], meaning: str
    ) -> None:
        self._of_left = of_left
        self._to = to
        self._row = row
        self._meaning = "; ".join([meaning, *row, *map(t.written, row.values())])

    def of_pair(self) -> Generated:
        return self._made("pair", left="left", right="right")

    def of_left(self) -> Generated:
        """The result of a left record without a partner."""
        return self._made("left_alone", left="left")

    def of_right(self) -> Generated:
        return self._made("right_alone", right="right")

    def _made(self, name: str, **sides: str) -> Generated:
        def access(column: t.ColumnValue) -> str:
            side = sides.get("left" if column.name in self._of_left else "right")
            return "absent" if side is None else f"{side}.{column.name}"

        generator = Generator(access)
        row = generator.row(self._to.value_type, self._row)
        absent = "" if len(sides) == 2 else "    absent = None\n"
        source = f"def {name}({', '.join(sides)}):\n{absent}    return {row}\n"
        return Generated(name, source, generator.names, self._meaning, generator.places)

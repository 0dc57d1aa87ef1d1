"""Aggregates by Spark, declared beside the pipeline whose tables they are made of (decision 54).

See `millwheel.Pipeline.spark`; ``millwheel spark aggregate MODULE:PIPELINE`` keeps the results up
to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from millwheel.core.names import check_name
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError
from millwheel.sinks import Table

__all__ = ["GroupPart", "Parquet", "Period", "days", "hours", "months", "years"]

Unit = Literal["hour", "day", "month", "year"]

TIMES = ("timestamp with time zone", "date")
EXACT = (*TIMES, "text", "bigint", "boolean", "uuid")
"""Types that a group may have: Postgres and Spark compare and write their values alike."""


@dataclass(frozen=True)
class Period:
    """A part of a group: the hour, day, month or year (UTC) of a time column.

    ```python
    group = ("origin", Period("departed", unit="month", name="first_day"))
    assert group[1] == months("departed", "first_day")
    ```
    """

    column: str
    unit: Unit
    name: str
    """The column of the result with the period's begin."""


def hours(column: str, name: str = "hour") -> Period:
    """Group by the hour of a time column; the result has its begin as `name`.

    ```python
    group = ("origin", hours("departed"))  # the result has the columns origin and hour
    ```
    """
    return Period(column, "hour", name)


def days(column: str, name: str = "day") -> Period:
    """Group by the day (UTC) of a time column; the result has its begin as `name`.

    ```python
    group = ("origin", days("departed"))  # the result has the columns origin and day
    ```
    """
    return Period(column, "day", name)


def months(column: str, name: str = "month") -> Period:
    """Group by the month (UTC) of a time column; the result has its begin as `name`.

    ```python
    group = ("origin", months("departed"))  # the result has the columns origin and month
    ```
    """
    return Period(column, "month", name)


def years(column: str, name: str = "year") -> Period:
    """Group by the year (UTC) of a time column; the result has its begin as `name`.

    ```python
    group = ("origin", years("departed", "first_day"))  # the result has origin and first_day
    ```
    """
    return Period(column, "year", name)


@dataclass(frozen=True)
class Parquet:
    """Parquet files of an aggregate, in one directory for each group:
    ``origin=JFK/month=2013-01-01``.

    ```python
    from typing import Any

    def by_customer(orders: Any) -> Any:  # a DataFrame of PySpark
        return orders.groupBy("customer").sum("cents")

    pipeline.sink(ORDERS, Table("bought", Order, numbered=True))
    pipeline.spark(
        by_customer, follows="bought", reads="bought", group="customer", to=Parquet("/data/bought")
    )
    ```

    Args:
        directory: a directory that the driver and all executors see under this name.
    """

    directory: Path | str

    @property
    def path(self) -> Path:
        return Path(self.directory)


GroupPart: TypeAlias = str | Period


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of a pipeline's tables: see `millwheel.Pipeline.spark`."""

    name: str
    function: Callable[..., Any]
    follows: str
    reads: tuple[str, ...]
    group: tuple[Period | str, ...]
    to: Table[Any] | Parquet

    @property
    def target(self) -> str:
        return self.to.name if isinstance(self.to, Table) else str(self.to.path)

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(part if isinstance(part, str) else part.name for part in self.group)


def make_aggregate(
    function: Callable[..., Any],
    *,
    follows: str,
    reads: str | Sequence[str],
    group: GroupPart | Sequence[GroupPart],
    to: Table[Any] | Parquet,
    name: str | None,
    tables: Mapping[str, Table[Any]],
) -> Aggregate:
    """Check an aggregate against the tables of its pipeline.

    Raises:
        GraphError: it follows a table without numbers, or a table or column does not exist.
    """
    label = name or getattr(function, "__name__", "")
    if not callable(function) or not label or label == "<lambda>":
        raise GraphError(
            f"spark({function!r:.60}): give a function of one DataFrame for each table in reads=, "
            "and a name= if it has none"
        )
    where = f"aggregate {check_name(label, 'aggregate')!r}"
    parts = (group,) if isinstance(group, str | Period) else tuple(group)
    made = Aggregate(
        label, function, follows, (reads,) if isinstance(reads, str) else tuple(reads), parts, to
    )
    followed = tables.get(follows)
    if followed is None or not followed.numbered:
        numbered = ", ".join(sorted(t.name for t in tables.values() if t.numbered)) or "none"
        raise GraphError(
            f"{where} follows {follows!r}, which is not a numbered table of the pipeline (those "
            f"are: {numbered}): add pipeline.sink(STREAM, Table({follows!r}, …, numbered=True)) "
            "before it"
        )
    if not made.reads or not made.group:
        raise GraphError(f"{where}: name at least one table in reads= and one column in group=")
    for table in (followed, *(_known(where, name, tables) for name in made.reads)):
        for part in made.group:
            _check_part(where, part, table)
    _check_target(where, made, tables)
    return made


def _known(where: str, name: str, tables: Mapping[str, Table[Any]]) -> Table[Any]:
    if name not in tables:
        raise GraphError(
            f"{where} reads {name!r}, which is no table of the pipeline; there are "
            f"{', '.join(sorted(tables)) or 'none'}. Add the pipeline.sink(…) that writes it "
            "before"
        )
    return tables[name]


def _check_part(where: str, part: GroupPart, table: Table[Any]) -> None:
    name = part if isinstance(part, str) else part.column
    found = {column.name: column for column in table.columns}.get(name)
    if found is None:
        known = [column.name for column in table.columns]
        message = (
            f"{where} groups by {name!r}, but table {table.name!r} has no such column; it has "
            f"{', '.join(known)}"
        )
        raise GraphError(with_suggestion(message, name, known))
    if found.nullable or found.is_json:
        raise GraphError(
            f"{where} groups by {name!r}, which in table {table.name!r} is "
            f"{'JSON' if found.is_json else 'sometimes None'}; a group needs a value of a simple "
            "type"
        )
    if found.type not in EXACT:
        raise GraphError(
            f"{where} groups by {name!r}, which in table {table.name!r} is {found.type}; a group "
            f"needs {', '.join(EXACT)}"
        )
    if isinstance(part, Period) and found.type not in TIMES:
        raise GraphError(
            f"{where} groups by the {part.unit} of {name!r}, which in table {table.name!r} is no "
            f"time but {found.type}"
        )


def _check_target(where: str, made: Aggregate, tables: Mapping[str, Table[Any]]) -> None:
    if isinstance(made.to, Parquet):
        return
    if made.to.name in tables:
        raise GraphError(
            f"{where} writes table {made.to.name!r}, which a sink writes as well; give it a table "
            "of its own"
        )
    if made.to.numbered:
        raise GraphError(
            f"{where} replaces rows of {made.to.name!r}, so that table cannot be numbered"
        )
    columns = {column.name for column in made.to.columns}
    for name in made.group_names:
        if name not in columns:
            message = (
                f"{where} replaces the rows of a group, but table {made.to.name!r} has no column "
                f"{name!r}; it has {', '.join(sorted(columns))}"
            )
            raise GraphError(with_suggestion(message, name, columns))

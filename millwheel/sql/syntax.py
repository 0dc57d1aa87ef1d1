"""The parts of a query that are understood: a closed list.

`BETWEEN`, `LIKE`, `EXTRACT`, `AT TIME ZONE` and the like are read as the operators and functions
that Postgres' grammar turns them into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millwheel.sql.place import Place


@dataclass(frozen=True)
class Expression:
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class Name(Expression):
    """A column, with the name of its table if that is written."""

    table: str | None
    column: str


@dataclass(frozen=True)
class Star(Expression):
    """All columns, or those of a table."""

    table: str | None


@dataclass(frozen=True)
class Number(Expression):
    text: str


@dataclass(frozen=True)
class Text(Expression):
    """A literal in quotes; its use decides its type."""

    value: str


@dataclass(frozen=True)
class Truth(Expression):
    value: bool


@dataclass(frozen=True)
class Null(Expression):
    pass


@dataclass(frozen=True)
class TypeName:
    """As it is written: ``numeric(10, 2)[]``."""

    name: str
    modifiers: tuple[int, ...] = ()
    is_array: bool = False
    place: Place | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class CastTo(Expression):
    value: Expression
    to: TypeName


@dataclass(frozen=True)
class Operation(Expression):
    """An operator of Postgres with one operand or two."""

    operator: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Order:
    value: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class FunctionCall(Expression):
    """A call of a function or an aggregate."""

    function: str
    arguments: tuple[Expression, ...]
    star: bool = False
    distinct: bool = False
    order: tuple[Order, ...] = ()
    filter: Expression | None = None
    within: tuple[Order, ...] = ()
    """The order of `WITHIN GROUP`."""


@dataclass(frozen=True)
class Over(Expression):
    """A window function."""

    call: FunctionCall
    partition: tuple[Expression, ...]
    order: tuple[Order, ...]


@dataclass(frozen=True)
class Logic(Expression):
    """``AND`` or ``OR`` of several operands."""

    kind: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Not(Expression):
    operand: Expression


@dataclass(frozen=True)
class IsTest(Expression):
    """``IS [NOT] NULL``, ``TRUE``, ``FALSE``, ``UNKNOWN``."""

    operand: Expression
    test: str
    negated: bool


@dataclass(frozen=True)
class Distinct(Expression):
    """``IS [NOT] DISTINCT FROM``."""

    left: Expression
    right: Expression
    negated: bool


@dataclass(frozen=True)
class Case(Expression):
    subject: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


@dataclass(frozen=True)
class InList(Expression):
    value: Expression
    items: tuple[Expression, ...]
    negated: bool


@dataclass(frozen=True)
class Quantified(Expression):
    """``value operator ANY (array)`` or ``ALL``."""

    value: Expression
    operator: str
    array: Expression
    is_all: bool


@dataclass(frozen=True)
class Choice(Expression):
    """``COALESCE``, ``NULLIF``, ``GREATEST`` or ``LEAST``."""

    kind: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Items(Expression):
    """``ARRAY[…]``."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Element(Expression):
    """``array[index]``, counted from 1."""

    array: Expression
    index: Expression


# -- queries ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultColumn:
    """A result column of a query."""

    value: Expression
    name: str | None
    """The name after ``AS``."""


@dataclass(frozen=True)
class NamedStream:
    """A stream in ``FROM``."""

    name: str
    alias: str | None
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class WindowTable:
    """``TUMBLE``, ``HOP`` or ``SESSION`` over a stream in ``FROM``."""

    kind: str
    table: NamedStream | Subquery
    arguments: tuple[Expression, ...]
    alias: str | None
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class Subquery:
    query: Query
    alias: str | None
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class Unnested:
    """``unnest(array)``, with the names of its columns."""

    array: Expression
    alias: str
    column: str
    ordinality: str | None
    """The column of ``WITH ORDINALITY``."""
    place: Place = field(repr=False, compare=False)


Source = NamedStream | WindowTable | Subquery


@dataclass(frozen=True)
class Join:
    kind: str
    """``INNER``, ``LEFT``, ``RIGHT``, ``FULL`` or ``CROSS``."""
    right: Source | Unnested
    on: Expression | None
    as_of: Expression | None
    """The time of ``FOR SYSTEM_TIME AS OF``."""
    retain: Bound | None
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class Bound:
    """A length of time, or ``UNBOUNDED``."""

    length: Expression | None
    """None: there is no bound."""
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class Emit:
    """When rows of groups are sent, and for how long groups are kept; None: nothing is said."""

    on_update: bool | None = None
    """Whether a window's row is sent with each record, before the window closes."""
    retain: Bound | None = None
    """Time for which a group without windows is kept after its last record."""
    lateness: Bound | None = None
    """Time after its end for which a window's row is sent again."""
    late_into: str | None = None
    """The stream of the records that come after that."""
    places: dict[str, Place] = field(default_factory=dict, repr=False, compare=False)
    """Where each clause begins, by its first word."""


@dataclass(frozen=True)
class Select:
    columns: tuple[ResultColumn | Star, ...]
    source: Source | None
    joins: tuple[Join, ...]
    where: Expression | None
    group: tuple[Expression, ...]
    having: Expression | None
    distinct: bool
    distinct_on: tuple[Expression, ...]
    order: tuple[Order, ...]
    """Of ``DISTINCT ON``, which takes the first row."""
    emit: Emit
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class Union:
    """``UNION ALL``."""

    parts: Sequence[Select]
    place: Place = field(repr=False, compare=False)


Query = Select | Union


# -- statements -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Insert:
    """``INSERT INTO target (columns) query``."""

    target: str | None
    """None: the query stands alone."""
    columns: tuple[str, ...]
    query: Query
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of a source or a table."""

    name: str
    type: TypeName
    is_required: bool
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class CreateSource:
    """``CREATE SOURCE name (columns, WATERMARK FOR time AS ...) WITH (options)``."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    watermark: tuple[Name, Expression] | None
    """The column with the event time, and the watermark that follows from it."""
    options: dict[str, tuple[str, Place]]
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class CreateTable:
    """``CREATE TABLE name (columns, PRIMARY KEY (...))``."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    key: tuple[str, ...]
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True)
class CreateSink:
    """``CREATE SINK name FROM stream WITH (options)``."""

    name: str
    stream: NamedStream
    options: dict[str, tuple[str, Place]]
    place: Place = field(repr=False, compare=False)


Statement = Insert | CreateSource | CreateTable | CreateSink

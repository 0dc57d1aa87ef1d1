"""Postgres' operators, functions and casts in Python.

A value has the type of `millwheel.sql.types.PYTHON`. Where Postgres raises an error, these raise
`ValueRefused`. Settings of a session are those of a server with ``TimeZone`` UTC, ``DateStyle`` ISO
and ``IntervalStyle`` postgres; texts compare by code points, as with ``COLLATE "C"``.
"""

from millwheel.sql.functions import (  # noqa: F401
    booleans,
    comparisons,
    composites,
    numbers,
    texts,
    times,
)
from millwheel.sql.functions.registry import (
    BY_CONSTANT,
    CASTS,
    FUNCTIONS,
    GIVEN_AS,
    MODIFIERS,
    Implementation,
    ValueRefused,
    cast_of,
    implementation_of,
)

__all__ = [
    "BY_CONSTANT",
    "CASTS",
    "FUNCTIONS",
    "GIVEN_AS",
    "MODIFIERS",
    "Implementation",
    "ValueRefused",
    "cast_of",
    "implementation_of",
]

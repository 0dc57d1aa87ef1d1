"""Ready-made computations, written with the public API of ``millwheel`` alone."""

from millwheel.computations.debounce import Debounce
from millwheel.computations.deduplicate import Deduplicate
from millwheel.computations.expiring import Expiring
from millwheel.computations.flat_map import FlatMap
from millwheel.computations.folds import (
    Fold,
    collect,
    count,
    distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    quantiles,
    top,
    total,
)
from millwheel.computations.in_order import InOrder
from millwheel.computations.joins import IntervalJoin, LastingJoin, WindowJoin
from millwheel.computations.temporal_join import TemporalJoin
from millwheel.computations.throttle import Throttle
from millwheel.computations.two_phase import Partial, PreAggregate, Spread, merged, real_key
from millwheel.computations.windowed import Windowed

__all__ = [
    "Debounce",
    "Deduplicate",
    "Expiring",
    "FlatMap",
    "Fold",
    "InOrder",
    "IntervalJoin",
    "LastingJoin",
    "Partial",
    "PreAggregate",
    "Spread",
    "TemporalJoin",
    "Throttle",
    "WindowJoin",
    "Windowed",
    "collect",
    "count",
    "distinct",
    "first",
    "last",
    "maximum",
    "mean",
    "merged",
    "minimum",
    "quantiles",
    "real_key",
    "top",
    "total",
]

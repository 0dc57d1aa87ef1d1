"""Aggregates: the slots of an accumulator, and the lines of Python that fill them."""

from millwheel.sql.accumulating.choice import plan_of
from millwheel.sql.accumulating.names import NAMES
from millwheel.sql.accumulating.plans import AggregatePlan, Slot

__all__ = ["NAMES", "AggregatePlan", "Slot", "plan_of"]

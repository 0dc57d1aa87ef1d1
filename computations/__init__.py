"""Ready-made computations, written only with what ``from millwheel import …`` gives."""

from millwheel.computations.flat_map import FlatMap
from millwheel.computations.folds import Fold, count, total
from millwheel.computations.windowed import Windowed

__all__ = ["FlatMap", "Fold", "Windowed", "count", "total"]

"""Names the keyword that was probably meant by one that a call of user code does not take."""

from __future__ import annotations

import inspect
import re
from functools import reduce
from types import FrameType

import millwheel
from millwheel.core.suggestion import did_you_mean

UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")


def keyword_advice(error: TypeError) -> str:
    """A sentence, or an empty text: ``Did you mean lease_seconds?``."""
    found = UNEXPECTED.match(str(error))
    trace = error.__traceback__
    if found is None or trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    try:
        called = _named(found[1].removesuffix(".__init__"), trace.tb_frame)
        known = list(inspect.signature(called).parameters)  # type: ignore[arg-type]
    except (LookupError, AttributeError, TypeError, ValueError):
        return ""  # it has no name at the call, or no signature
    return did_you_mean(found[2], known)


def _named(path: str, frame: FrameType) -> object:
    """The object of a dotted name, as a call sees it."""
    first, *rest = path.split(".")
    names = {**vars(millwheel), **frame.f_globals, **frame.f_locals}
    return reduce(getattr, rest, names[first])

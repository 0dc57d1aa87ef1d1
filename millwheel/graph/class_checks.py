"""Checks of a computation's class, and of the settings, when they are given to a pipeline."""

from __future__ import annotations

import inspect
from typing import Any

from millwheel.computation import Computation
from millwheel.core.codec import place_of, shown
from millwheel.core.suggestion import closest
from millwheel.errors import GraphError
from millwheel.settings import Settings
from millwheel.streams import Stream

PROCESS = (
    "process_record",
    "process_group",
    "process_timer",
    "process_broadcast",
    "process_bundle",
)
"""The methods that a computation may define; all of them are ``async def``."""


def check_computation(computation: object) -> None:
    """Refuse a class in place of an instance, methods that are missing, that nothing calls or that
    cannot be awaited, and a `writes` that is not a tuple of streams."""
    if isinstance(computation, type):
        name = computation.__name__
        raise GraphError(f"add({name}, ...): {name} is a class, not a computation; give {name}()")
    if not isinstance(computation, Computation):
        raise GraphError(
            f"add({shown(computation, 80)}, ...): that is not a computation; give an instance of a "
            "class that extends Computation"
        )
    _check_names(computation)
    for name in PROCESS:
        if computation.defines(name):
            _check_coroutine(type(computation), name)
    writes: object = computation.writes
    if not isinstance(writes, (tuple, list)) or not all(isinstance(w, Stream) for w in writes):
        raise GraphError(
            f"{type(computation).__name__}.writes must be a tuple of streams, as in writes = "
            f"(OUT,), not {shown(writes, 80)}"
        )


def _check_coroutine(kind: type, name: str) -> None:
    """Refuse a method that is certainly not awaitable: a generator, or a plain function without a
    return annotation."""
    method = inspect.unwrap(getattr(kind, name))
    if not inspect.isfunction(method) or inspect.iscoroutinefunction(method):
        return
    if inspect.isasyncgenfunction(method):
        fault = "has a `yield`, so it is not a coroutine; produce values with ctx.produce"
    elif inspect.isgeneratorfunction(method) or method.__annotations__.get("return") in (
        None,
        "None",
    ):
        fault = f"is a plain function; write `async def {name}`"
    else:
        return  # its annotation names a return type, which may be awaitable
    raise GraphError(f"{kind.__name__}.{place_of(method)} {fault}")


def _check_names(computation: Computation[Any, Any, Any, Any]) -> None:
    """Refuse a class without a method for its records, and a method with almost a name of
    `PROCESS`."""
    kind = type(computation)
    own = {
        name for each in kind.__mro__ if each not in (Computation, object) for name in vars(each)
    }
    for name in sorted(own):
        meant = closest(name, PROCESS, least=0.8)
        if meant and name not in PROCESS and not computation.defines(meant):
            raise GraphError(
                f"{kind.__name__} ({_line_of(kind)}) defines {name}, which is never called; rename "
                f"it to {meant}"
            )
    defined = any(map(computation.defines, ("process_record", "process_bundle")))
    if computation.bundles is None and not defined:
        raise GraphError(
            f"{kind.__name__} ({_line_of(kind)}) defines no process_record, which is called for "
            "each record: async def process_record(self, record, ctx)"
        )


def _line_of(kind: type) -> str:
    """The file and line of a class, or its module if there is no source."""
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return kind.__module__


def check_settings(pipeline: str, settings: Settings | None) -> Settings:
    """The settings of a pipeline, or the defaults."""
    if not isinstance(settings, Settings | None):
        raise GraphError(
            f"pipeline {pipeline!r}: settings={shown(settings, 80)}: give Settings(...)"
        )
    return settings or Settings()

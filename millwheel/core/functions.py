"""The check of a function that a user gives to a stream, an injector, a sink or a computation."""

from __future__ import annotations

import inspect

from millwheel.core.codec import place_of, shown
from millwheel.errors import GraphError


def check_function(
    function: object, where: str, purpose: str, *, takes: str = "value", gives: str = "value"
) -> None:
    """Refuse a value that cannot be called, and a coroutine function, which nothing awaits.

    Args:
        where: the call that got the function, with the option's name.
        purpose: the function's result, such as ``returns the key of a value``.
        takes: its parameters in the example of the message.
        gives: its result there; in place of "value" that field of it, if `function` names one.
    """
    if not callable(function):
        if gives == "value" and isinstance(function, str) and function.isidentifier():
            gives = f"value.{function}"
        raise GraphError(
            f"{where} is {shown(function, 80)}; give a function that {purpose}, such as "
            f"lambda {takes}: {gives}"
        )
    if inspect.iscoroutinefunction(function):
        raise GraphError(
            f"{where} is a coroutine function, {place_of(function)}; give a plain function that "
            f"{purpose}: nothing awaits it"
        )

"""Tries an item as often as its computation allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from millwheel.errors import CannotCarryOut, CodeBlocked, SetAside
from millwheel.runtime.process.tasks import is_ours, raise_ours

AT_ONCE = (CannotCarryOut, CodeBlocked, SetAside)
"""Errors after which an item is not tried again."""


class GivenUp(NamedTuple):
    """Why an item has failed for good."""

    error: BaseException
    attempts: int


async def attempt(
    once: Callable[[], Awaitable[None]], undo: Callable[[BaseException], None], retries: int
) -> GivenUp | None:
    """Run an item until it succeeds.

    Args:
        once: makes one attempt.
        undo: discards the effects of a failed attempt; may raise an error of its own.

    Returns:
        None: it has succeeded.

    Raises:
        BaseException: an error of the engine (`is_ours`).
    """
    for number in range(1, retries + 2):
        try:
            await once()
        except GeneratorExit:
            raise
        except BaseException as error:
            undo(error)
            if is_ours(error):
                raise_ours(error)
            if number > retries or isinstance(error, AT_ONCE):
                return GivenUp(error, number)
        else:
            return None
    raise AssertionError("unreachable")

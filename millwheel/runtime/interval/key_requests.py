"""Requests of operators to the owner of a key: they take their turn among the key's records
(decision 59).

The owner reads a request from the store. It waits here until the runner takes it, runs while no
record of its key runs, and is settled in the commit that carries its effects. If the interval
starts over before that, it is forgotten, and read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Set
from typing import Any

from millwheel.core.model import Key
from millwheel.store.port.requests import KeptLetter, OpenRequest

ReadTimer = Callable[[str, str], Awaitable["tuple[int, int] | None"]]
"""Reads the due time and hold of a durable timer of the request's key, by kind and tag."""


UNPARK = "unpark"
"""The verb of a `ParkedRow`; the store has no such request."""


class KeyRequest:
    __slots__ = ("id", "key", "key_text", "letter", "payload", "read_timer", "slot", "verb")

    def __init__(
        self,
        number: int,
        verb: str,
        place: tuple[Key, bytes, int],
        payload: dict[str, Any],
        letter: KeptLetter | None,
        read_timer: ReadTimer,
    ) -> None:
        self.id = number
        self.verb = verb
        self.key, self.key_text, self.slot = place
        self.payload = payload
        self.letter = letter
        """The dead letter that it is about."""
        self.read_timer = read_timer


class ParkedRow(KeyRequest):
    """A record or timer that waits in its parked key, as a request of the owner to itself (decision
    60).

    Its number is the negative of its letter's, so that it is no operator's request.
    """

    __slots__ = ()


class IntervalRequests:
    """The requests to one interval that its owner has read, and has not settled."""

    def __init__(self) -> None:
        self.waiting: deque[KeyRequest] = deque()
        """Not begun, in the order of their numbers."""
        self.taken: dict[int, KeyRequest] = {}
        """All of them by number."""
        self.to_injector: list[OpenRequest] = []
        """Requests that the claim of an injector's interval has found."""

    def add(self, requests: Iterable[KeyRequest]) -> None:
        for request in requests:
            self.taken[request.id] = request
            self.waiting.append(request)

    def numbers(self) -> list[int]:
        """Those that operators have made."""
        return [n for n, request in self.taken.items() if not isinstance(request, ParkedRow)]

    def letters(self) -> Iterator[int]:
        """The dead letters that they are about."""
        return (r.letter.id for r in self.taken.values() if r.letter is not None)

    def take(self, limit: int) -> list[KeyRequest]:
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    def settled(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.taken.pop(number, None)

    def start_over(self, apart: Set[int]) -> None:
        """Forget all requests but those with an identity (`id`) in `apart`, which recovery runs."""
        self.taken = {n: request for n, request in self.taken.items() if id(request) in apart}
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """Forget requests that have not begun: they are read again."""
        self.settled([request.id for request in self.waiting])
        self.waiting.clear()

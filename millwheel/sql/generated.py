"""Functions that are made from a query."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any

from millwheel.sql.functions import ValueRefused
from millwheel.sql.place import Place

MODULE = "millwheel.sql.generated"

MOST_SHOWN = 60
"""Characters of the query that an error shows."""


class Generated:
    """A function with its source, and a text with its meaning.

    A deploy compares the text (`millwheel.core.extractors.fingerprint`), not the source, which
    differs between releases. An error says in which line of the query it is.

    Args:
        places: where in the query parts of the source begin (`Generator.places`).
    """

    __slots__ = ("__dict__", "_file", "_function", "_places", "source")

    def __init__(
        self,
        name: str,
        source: str,
        names: Mapping[str, Any],
        meaning: str,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        self.meaning = meaning
        self.source = source
        self._places = dict(places or {})
        self._file = f"<{name} of a query, {abs(hash(source)):x}>"
        self._function = compiled(name, source, names, self._file)

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._function(*arguments)
        except Exception as error:
            place = self._place_of(error.__traceback__)
            if place is not None:
                _add(place, error)
            raise

    def _place_of(self, traceback: TracebackType | None) -> Place | None:
        """Where the query has the part that has failed."""
        found = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self._file:
                found = traceback
            traceback = traceback.tb_next
        if found is None:
            return None
        positions = found.tb_frame.f_code.co_positions()
        line, _, first, last = next(islice(positions, found.tb_lasti // 2, None))
        if line is None or first is None or last is None:
            return None
        code = self.source.split("\n")[line - 1].encode()[first:last].decode()
        around = [text for text in self._places if code in text]
        return self._places[min(around, key=len)] if around else None


def _add(place: Place, error: Exception) -> None:
    """Add the place to an error."""
    line = place.text.split("\n")[place.line - 1][place.column - 1 :].strip()
    shown = line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"
    told = f"in line {place.line} of the query: {shown}"
    if isinstance(error, ValueRefused):
        error.args = (f"{error}, {told}",)
    else:
        error.add_note(told)


def compiled(
    name: str, source: str, names: Mapping[str, Any], file: str = "<query>"
) -> Callable[..., Any]:
    """Compile the source of a function; a traceback shows its lines."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {"__name__": MODULE, **names}
    # Made of `millwheel.sql.typed` alone, so no text of the query is run as Python.
    exec(compile(source, file, "exec"), namespace)  # noqa: S102
    function: Callable[..., Any] = namespace[name]
    return function

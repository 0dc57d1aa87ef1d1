"""Functions that are made from a query."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from typing import Any

MODULE = "millwheel.sql.generated"


class Generated:
    """A function with its source, and a text with its meaning.

    A deploy compares the text (`millwheel.core.extractors.fingerprint`), not the source, which
    differs between releases.
    """

    __slots__ = ("__dict__", "_function", "source")

    def __init__(self, name: str, source: str, names: Mapping[str, Any], meaning: str) -> None:
        self.meaning = meaning
        self.source = source
        self._function = compiled(name, source, names)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def compiled(name: str, source: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Compile the source of a function; a traceback shows its lines."""
    file = f"<{name} of a query, {abs(hash(source)):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {"__name__": MODULE, **names}
    # Made of `millwheel.sql.typed` alone, so no text of the query is run as Python.
    exec(compile(source, file, "exec"), namespace)  # noqa: S102
    function: Callable[..., Any] = namespace[name]
    return function

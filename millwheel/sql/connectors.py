"""Sources that are defined in SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.errors import SqlError
from millwheel.files import Csv, JsonLines
from millwheel.inbox import Inbox
from millwheel.sources import Source
from millwheel.sql import syntax as s


class SourceOptions:
    """The options of ``WITH``; each must be used."""

    def __init__(self, statement: s.CreateSource) -> None:
        self._statement = statement
        self._left = dict(statement.options)

    def text(self, name: str, default: str | None = None) -> str:
        """Raises:
        SqlError: it is missing.
        """
        if name in self._left:
            return self._left.pop(name)[0]
        if default is None:
            raise SqlError(
                f"the source needs {name}", self._statement.place, f"Add {name} = '...' to WITH"
            )
        return default

    def truth(self, name: str) -> bool:
        """Whether an option is 'true'; by default it is not."""
        place = self._left.get(name, ("", self._statement.place))[1]
        value = self.text(name, "false")
        if value not in ("true", "false"):
            raise SqlError(f"{name} is 'true' or 'false', not '{value}'", place)
        return value == "true"

    def end(self) -> None:
        """Raises:
        SqlError: an option is left that nothing has asked for.
        """
        for name, (_, place) in self._left.items():
            raise SqlError(f"there is no option {name} for this source", place)


def _files(options: SourceOptions) -> Source:
    path, follow = options.text("path"), options.truth("follow")
    kind = options.text("format", "json")
    if kind == "csv":
        return Csv(path, delimiter=options.text("delimiter", ","), follow=follow)
    return JsonLines(path, follow=follow)


def _inbox(options: SourceOptions) -> Source:
    return Inbox()


def _kafka(options: SourceOptions) -> Source:
    from millwheel.kafka import Kafka, KafkaCluster  # needs the extra `kafka`

    start: Any = options.text("start", "earliest")
    return Kafka(KafkaCluster(options.text("brokers")), options.text("topic"), start=start)


_CONNECTORS: dict[str, Callable[[SourceOptions], Source]] = {
    "files": _files,
    "inbox": _inbox,
    "kafka": _kafka,
}


def source_of(statement: s.CreateSource) -> Source:
    """The source that a definition describes.

    Raises:
        SqlError: an option is wrong, missing or unknown.
    """
    options = SourceOptions(statement)
    place = statement.options.get("connector", ("", statement.place))[1]
    name = options.text("connector")
    if name not in _CONNECTORS:
        known = ", ".join(_CONNECTORS)
        raise SqlError(f"there is no connector '{name}'", place, f"Available are {known}")
    source = _CONNECTORS[name](options)
    options.end()
    return source

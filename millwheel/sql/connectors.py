"""Sources and sinks that are defined in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from millwheel.core.suggestion import did_you_mean, with_suggestion
from millwheel.errors import SqlError
from millwheel.files import Csv, JsonLines
from millwheel.inbox import Inbox
from millwheel.sinks import Console, JsonLinesFiles, Sink
from millwheel.sources import Source
from millwheel.sql import syntax as s
from millwheel.sql.place import Place
from millwheel.sql.schemas import fields_of
from millwheel.streams import Stream

T = TypeVar("T")


class WithOptions:
    """The options of ``WITH``; each must be used."""

    def __init__(self, statement: s.CreateSource | s.CreateSink) -> None:
        self._statement = statement
        self._kind = "source" if isinstance(statement, s.CreateSource) else "sink"
        self._left = dict(statement.options)
        self._known = ["connector"]

    def text(self, name: str, default: str | None = None) -> str:
        """Raises:
        SqlError: it is missing.
        """
        self._known.append(name)
        if name in self._left:
            return self._left.pop(name)[0]
        if default is None:
            raise SqlError(
                f"the {self._kind} needs {name}",
                self._statement.place,
                f"Add {name} = '...' to WITH",
            )
        return default

    def place(self, name: str) -> Place:
        """Where an option is, or the statement."""
        return self._left.get(name, ("", self._statement.place))[1]

    def truth(self, name: str) -> bool:
        """Whether an option is 'true'; by default it is not."""
        place = self.place(name)
        value = self.text(name, "false")
        if value not in ("true", "false"):
            raise SqlError(f"{name} is 'true' or 'false', not '{value}'", place)
        return value == "true"

    def end(self) -> None:
        """Raises:
        SqlError: an option is left that nothing has asked for.
        """
        for name, (_, place) in self._left.items():
            message = f"there is no option {name} for this {self._kind}"
            raise SqlError(message, place, did_you_mean(name, self._known))


def _files(options: WithOptions) -> Source:
    path, follow = options.text("path"), options.truth("follow")
    kind = options.text("format", "json")
    if kind == "csv":
        return Csv(path, delimiter=options.text("delimiter", ","), follow=follow)
    return JsonLines(path, follow=follow)


def _inbox(options: WithOptions) -> Source:
    return Inbox()


def _kafka(options: WithOptions) -> Source:
    from millwheel.kafka import Kafka, KafkaCluster  # needs the extra `kafka`

    start: Any = options.text("start", "earliest")
    return Kafka(KafkaCluster(options.text("brokers")), options.text("topic"), start=start)


_SOURCES: dict[str, Callable[[WithOptions], Source]] = {
    "files": _files,
    "inbox": _inbox,
    "kafka": _kafka,
}


def source_of(statement: s.CreateSource) -> Source:
    """The source that a definition describes.

    Raises:
        SqlError: an option is wrong, missing or unknown.
    """
    options = WithOptions(statement)
    source = _connector(statement, options, _SOURCES)(options)
    options.end()
    return source


def _connector(
    statement: s.CreateSource | s.CreateSink, options: WithOptions, known: Mapping[str, T]
) -> T:
    place = statement.options.get("connector", ("", statement.place))[1]
    name = options.text("connector")
    if name not in known:
        advice = with_suggestion(f"Available are {', '.join(known)}", name, known)
        raise SqlError(f"there is no connector '{name}'", place, advice)
    return known[name]


# -- sinks ----------------------------------------------------------------------------------------


def _to_files(options: WithOptions, stream: Stream[Any]) -> Sink:
    return JsonLinesFiles(options.text("path"))


def _to_console(options: WithOptions, stream: Stream[Any]) -> Sink:
    return Console(options.text("prefix", ""))


def _to_kafka(options: WithOptions, stream: Stream[Any]) -> Sink:
    from millwheel.kafka import KafkaCluster, KafkaSink  # needs the extra `kafka`

    place = options.place("key")
    name = options.text("key", "")
    key = None
    if name:
        columns = [field.name for field in fields_of(stream.value_type) or []]
        if name not in columns:
            advice = did_you_mean(name, columns)
            raise SqlError(f'"{stream.name}" has no column {name}', place, advice)
        key = attrgetter(name)
    return KafkaSink(KafkaCluster(options.text("brokers")), options.text("topic"), key=key)


_SINKS: dict[str, Callable[[WithOptions, Stream[Any]], Sink]] = {
    "files": _to_files,
    "console": _to_console,
    "kafka": _to_kafka,
}


def sink_of(statement: s.CreateSink, stream: Stream[Any]) -> Sink:
    """The sink that a definition describes.

    Raises:
        SqlError: an option is wrong, missing or unknown, or the stream's rows replace each other.
    """
    if stream.facts.is_updating and statement.options.get("connector", ("",))[0] != "console":
        raise SqlError(
            f'rows of "{stream.name}" are replaced by newer ones, and would no longer be in their '
            "order there",
            statement.place,
            "Write them to a table with a key: CREATE TABLE",
        )
    options = WithOptions(statement)
    sink = _connector(statement, options, _SINKS)(options, stream)
    options.end()
    return sink

"""Checks of a pipeline while it is built; each refusal is a `GraphError` with its reason.

A combination of options that could not keep its guarantees is refused here, before anything runs
(`docs/why/guarantees.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from millwheel.bundles import Bundles
from millwheel.computation import Computation
from millwheel.core.addresses import MOST_CELLS
from millwheel.core.codec import shown
from millwheel.core.functions import check_function
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError
from millwheel.graph.labels import sink_name
from millwheel.graph.node import Injection, Node, Reading
from millwheel.inbox import Inbox
from millwheel.parking import Park
from millwheel.sinks import Console, Discard, JsonLinesFiles, SinkUse, Table
from millwheel.streams import Broadcast, Input, Stream

ON_ERROR = ("fail", "dead_letter")
"""What an injector or a sink does about a row that cannot be read or taken."""

OF_SINKS = ("bundles", "key", "describe", "deliver", "close")
"""The members of a `millwheel.sinks.BundleSink`."""


def check_stream(stream: object, where: str) -> None:
    """`where` is the beginning of the call that received it, for the message."""
    if not isinstance(stream, Stream):
        raise GraphError(
            f'{where}{shown(stream, 80)}, ...): that is not a stream; give a Stream("name", Type)'
        )


def check_source(stream: Stream[Any], source: object) -> None:
    """Refuse a class in place of an instance, and an object that is not a source."""
    if isinstance(source, type):
        name = source.__name__
        raise GraphError(
            f"inject into {stream.name!r}: {name} is a class, not a source; give {name}(...)"
        )
    if not hasattr(source, "partitions"):
        raise GraphError(
            f"inject into {stream.name!r}: {shown(source, 80)} is not a source; give one such as "
            'JsonLines("file.jsonl")'
        )


def check_inbox(stream: Stream[Any], nodes: Iterable[Node], *, has_id: bool) -> None:
    """Refuse a second inbox of a stream, and ids that the records' senders should give."""
    if has_id:
        raise GraphError(
            f"inject into {stream.name!r}: id= has no meaning for an Inbox; the senders give the "
            "id of a record, and Inbox(require_id=True) refuses records without one"
        )
    for node in nodes:
        if (
            node.injection is not None
            and isinstance(node.injection.source, Inbox)
            and stream in node.writes
        ):
            raise GraphError(f"inject into {stream.name!r}: the stream has an Inbox already")


def check_injection(stream: Stream[Any], injection: Injection, most_pending: int) -> None:
    """Refuse options that do not fit, or contradict each other; `most_pending` is
    `Settings.max_unacked_records`."""
    if injection.timestamp is None and not getattr(injection.source, "timestamps", False):
        raise GraphError(
            f"inject into {stream.name!r}: the rows of this source have no timestamps of their "
            "own; give timestamp=, a function that returns the event time of a value"
        )
    _check_choice(f"inject into {stream.name!r}", "on_error", injection.on_error, ON_ERROR)
    for option in ("timestamp", "seen", "watermark"):
        function = getattr(injection, option)
        if function is not None:
            check_function(
                function, f"inject into {stream.name!r}: {option}=", "returns a time of a value"
            )
    lateness, idle_after = injection.lateness, injection.idle_after
    latency_target = injection.latency_target
    for option, duration in (
        ("lateness", lateness),
        ("idle_after", idle_after),
        ("latency_target", latency_target),
    ):
        if duration is not None and not isinstance(duration, timedelta):
            raise GraphError(
                f"inject into {stream.name!r}: {option} must be a timedelta, for example "
                f"timedelta(seconds=10), not {duration!r}"
            )
    if lateness < timedelta(0):
        raise GraphError(f"inject into {stream.name!r}: lateness may not be negative: -{-lateness}")
    if injection.watermark is not None and (injection.seen is not None or lateness):
        raise GraphError(
            f"inject into {stream.name!r}: the watermark comes from the records themselves, so "
            "`seen` and `lateness` would have no effect; give either `watermark` or these"
        )
    if idle_after is not None and idle_after <= timedelta(0):
        raise GraphError(
            f"inject into {stream.name!r}: idle_after must be above zero, not {idle_after}"
        )
    if latency_target is not None and latency_target <= timedelta(0):
        raise GraphError(
            f"inject into {stream.name!r}: latency_target must be above zero, not {latency_target}"
        )
    if injection.max_pending is not None:
        _check_pending(stream, injection.max_pending, most_pending)


def _check_pending(stream: Stream[Any], max_pending: object, limit: int) -> None:
    if not isinstance(max_pending, int) or isinstance(max_pending, bool) or max_pending < 1:
        raise GraphError(
            f"inject into {stream.name!r}: max_pending must be a number of rows, 1 or more, not "
            f"{max_pending!r}"
        )
    if max_pending > limit:
        raise GraphError(
            f"inject into {stream.name!r}: max_pending={max_pending:,} is above "
            f"Settings.max_unacked_records, {limit:,}, which applies in any case; lower the "
            "first or raise the second"
        )


def check_sink(stream: Stream[Any], sink: object, *, row: object, on_error: str) -> None:
    """Refuse a class in place of an instance, an object that is not a sink, and options that do not
    fit."""
    kinds = (Table, JsonLinesFiles, Console, Discard)
    if row is not None:
        check_function(row, f"sink of {stream.name!r}: row=", "returns the row of a value")
    if isinstance(sink, JsonLinesFiles) and sink.by is not None:
        check_function(sink.by, f"sink of {stream.name!r}: by=", "returns the key of a value")
    if isinstance(sink, kinds):
        if on_error != "fail":
            raise GraphError(
                f"sink of {stream.name!r}: on_error= is for sinks outside the store; here the "
                "computation that produces a row decides"
            )
        return
    if not isinstance(sink, type) and all(hasattr(sink, name) for name in OF_SINKS):
        if not isinstance(sink.bundles, Bundles):  # type: ignore[attr-defined]
            bundles = repr(sink.bundles)  # type: ignore[attr-defined]
            raise GraphError(
                f"sink of {stream.name!r}: its `bundles` must be a Bundles(...), not {bundles:.80}"
            )
        _check_choice(f"sink of {stream.name!r}", "on_error", on_error, ON_ERROR)
        if row is not None:
            raise GraphError(
                f"sink of {stream.name!r}: row= is for tables, files and the terminal; this sink "
                "encodes the values itself"
            )
        return
    names = ", ".join(kind.__name__ for kind in kinds)
    if isinstance(sink, type) and (
        issubclass(sink, kinds) or all(hasattr(sink, name) for name in ("deliver", "describe"))
    ):
        name = sink.__name__
        raise GraphError(
            f"sink of {stream.name!r}: {name} is a class, not a sink; give {name}(...)"
        )
    raise GraphError(
        f"sink of {stream.name!r}: {shown(sink, 80)} is not a sink; give an instance of {names}, "
        f"or a BundleSink, which has {', '.join(OF_SINKS)}"
    )


def check_readings(label: str, inputs: tuple[object, ...]) -> None:
    """Refuse inputs that do not say how their stream is read."""
    for input_ in inputs:
        if isinstance(input_, Stream):
            raise GraphError(
                f"{label!r} does not say how it reads the stream {input_.name!r}; give "
                "STREAM.by(key), with a function that takes the key from a value, "
                "STREAM.spread() or STREAM.broadcast()"
            )
        if not isinstance(input_, (Input, Broadcast)):
            raise GraphError(
                f"{label!r} cannot read {shown(input_, 80)}; give STREAM.by(key), STREAM.spread() "
                "or STREAM.broadcast()"
            )


def check_inputs(label: str, inputs: tuple[Reading, ...]) -> None:
    """Refuse a computation that reads nothing, or a stream twice."""
    if not inputs:
        raise GraphError(f"{label!r} has no inputs; give it at least one STREAM.by(...)")
    names = [input_.stream.name for input_ in inputs]
    if len(set(names)) < len(names):
        raise GraphError(f"{label!r} reads one stream twice ({', '.join(names)}); read it once")


def check_values(
    label: str, productions: str, exactly_once: object, delivery: str, acknowledgement: str
) -> None:
    """Refuse unknown values of options."""
    _check_choice(repr(label), "productions", productions, ("strong", "weak"))
    if not isinstance(exactly_once, bool):
        raise GraphError(f"{label!r}: exactly_once must be True or False, not {exactly_once!r}")
    _check_choice(repr(label), "delivery", delivery, ("acknowledged", "at_most_once"))
    _check_choice(repr(label), "acknowledgement", acknowledgement, ("chain", "tree"))


def _check_choice(
    where: str, option: str, given: object, choices: tuple[str, ...], also: str = ""
) -> None:
    """Refuse a value that is none of the choices.

    Args:
        also: another form of the value, for the message.
    """
    if given in choices:
        return
    *first, last = (*map(repr, choices), *([also] if also else []))
    message = f"{where}: {option} must be {', '.join(first)} or {last}, not {shown(given, 80)}"
    raise GraphError(with_suggestion(message, str(given), choices))


def check_waits(label: str, **waits: object) -> None:
    """Refuse waits that are not above zero."""
    for option, wait in waits.items():
        if not isinstance(wait, timedelta) or wait <= timedelta(0):
            raise GraphError(f"{label!r}: {option} must be a timedelta above zero, not {wait!r}")


def check_no_rows(writer: Node, use: SinkUse) -> None:
    """Refuse a table without a step of its own that a tree computation would write: each record
    would need a commit."""
    if writer.is_tree and isinstance(use.sink, Table):
        raise GraphError(
            f'{writer.name!r} is added with acknowledgement="tree" and makes no commits of its '
            f"own, which would have to carry the rows of table {use.sink.name!r}. Add it with "
            'acknowledgement="chain", or give the table a key=... and no producer_key: then the '
            "table has a step of its own"
        )


def check_repeatable(writer: Node, use: SinkUse) -> None:
    """Refuse a table without a key when records may be delivered twice: so would their rows."""
    if (
        writer.is_weak
        and not writer.exactly_once
        and isinstance(use.sink, Table)
        and not use.sink.key
    ):
        raise GraphError(
            f'{writer.name!r} is added with productions="weak" and exactly_once=False, and writes '
            f"rows to the table {use.sink.name!r}, which has no key: records that are sent again, "
            "as weak productions often are, would be in the table twice. Give the table a "
            "key=..., or add the computation with exactly_once=True"
        )


def check_failures(label: str, on_error: object, retries: int) -> Park | None:
    """Refuse an unknown way to treat failures of user code; returns how keys are parked, None: they
    are not."""
    if not isinstance(retries, int) or retries < 0:
        raise GraphError(f"{label!r}: retries must be a whole number, 0 or more, not {retries!r}")
    if isinstance(on_error, Park):
        return on_error
    _check_choice(repr(label), "on_error", on_error, (*ON_ERROR, "park"), "Park(...)")
    return Park() if on_error == "park" else None


def check_bundles(label: str, computation: Computation[Any, Any, Any, Any]) -> None:
    """Refuse numbered bundles of a class that does not define how to process them."""
    defined = computation.defines("process_bundle")
    if computation.bundles is None:
        if defined:
            raise GraphError(
                f"{label!r} defines process_bundle, but no limits for its bundles; give the class "
                "`bundles = Bundles()`"
            )
        return
    if not isinstance(computation.bundles, Bundles):
        raise GraphError(
            f"{label!r}: bundles must be a Bundles(...), not {computation.bundles!r:.80}"
        )
    if not defined:
        raise GraphError(f"{label!r} sets `bundles`, but defines no process_bundle to receive them")
    for method in ("process_record", "process_group"):
        if computation.defines(method):
            raise GraphError(
                f"{label!r} defines both {method} and process_bundle; its records come in "
                f"bundles, so remove {method}, or `bundles` and process_bundle"
            )


def check_sink_of_bundles(writer: Node, use: SinkUse) -> None:
    if writer.bundles is not None and isinstance(use.sink, Table) and use.sink.producer_key:
        raise GraphError(
            f"table {use.sink.name!r} has a column for the producing key, but {writer.name!r} "
            "reads in bundles: their records have many keys; leave producer_key out"
        )


def check_broadcast(
    label: str,
    computation: Computation[Any, Any, Any, Any],
    inputs: tuple[Reading, ...],
    cells: int,
) -> None:
    """Refuse broadcast inputs that do not fit the methods of the computation.

    `cells` is `Settings.broadcast_cells`.
    """
    broadcast = [i.stream.name for i in inputs if isinstance(i, Broadcast)]
    defined = computation.defines("process_broadcast")
    if not broadcast:
        if defined:
            raise GraphError(
                f"{label!r} defines process_broadcast, but reads nothing by broadcast; give it "
                "STREAM.broadcast() for the stream that builds its table"
            )
        return
    if not defined:
        raise GraphError(
            f"{label!r} reads {broadcast[0]!r} by broadcast, but defines no process_broadcast "
            "to add its records to the table"
        )
    if len(broadcast) == len(inputs):
        raise GraphError(
            f"{label!r} reads only {broadcast[0]!r}, by broadcast, so no record uses the table; "
            "give it a stream by a key or spread as well"
        )
    if computation.shared_type in (None, type(None)):
        raise GraphError(
            f"{label!r} reads {broadcast[0]!r} by broadcast, but its table has no type: "
            "give it as the last argument of Computation[..., ..., ..., Table]"
        )
    if not 1 <= cells <= MOST_CELLS or cells & (cells - 1):
        raise GraphError(
            f"{label!r}: broadcast_cells must be a power of two from 1 to {MOST_CELLS}, not {cells}"
        )


def check_shared(node: Node) -> None:
    """Refuse a shared table that has collections loaded by entry, or is immutable."""
    shared = node.shared
    assert shared is not None
    if shared.collections:
        raise GraphError(
            f"the shared table of {node.name!r} has the MapState or ListState "
            f"{', '.join(shared.collections)}: the table is read as one object, so "
            "use a dict or a list"
        )
    if not shared.codec.mutable:
        raise GraphError(
            f"the shared table of {node.name!r} is of type "
            f"{shared.state_type!r}, which cannot be changed in place; make it a "
            "msgspec.Struct or a dataclass that is not frozen"
        )


def check_order(stream: Stream[Any], use: SinkUse) -> None:
    """Refuse a sink in a step of its own for rows that replace each other.

    Rows reach another step by several ways, on which an older one may come after a newer one.
    """
    if not stream.facts.is_updating or isinstance(use.sink, (Console, Discard)):
        return
    if not isinstance(use.sink, Table):
        advice = "Write them to a table with a key, which others can follow"
    elif stream.facts.owners is None:
        advice = (
            "Add the columns of GROUP BY or PARTITION BY to the result, with the types that they "
            "have there"
        )
    else:
        columns = ", ".join(" or ".join(sorted(part)) for part in stream.facts.owners)
        advice = f"Its key must contain ({columns}), and the sink have no row= function"
    raise GraphError(
        f"rows of stream {stream.name!r} replace each other, and only the step that makes them "
        f"knows their order, so it has to write {sink_name(use)} itself. {advice}"
    )

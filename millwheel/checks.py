"""What cannot work together, told when a pipeline is put together: each with its reason.

A combination of switches that could not keep what it says is refused here, before anything runs
(`docs/guarantees.md`).
"""

from __future__ import annotations

import inspect
from typing import Any

from millwheel.bundles import Bundles
from millwheel.codec import place_of, shown
from millwheel.computation import Computation
from millwheel.errors import GraphError
from millwheel.graph import Node, Reading
from millwheel.sinks import Console, Discard, JsonLinesFiles, SinkUse, Table
from millwheel.streams import Broadcast, Input, Stream

PROCESS = ("process_record", "process_timer", "process_broadcast", "process_bundle")
"""The methods that a computation may define, all of them ``async def``."""


def check_stream(stream: object, where: str) -> None:
    """Refuse everything but a stream.

    Args:
        where: how the call begins in which it was given.

    Raises:
        GraphError: it is something else.
    """
    if not isinstance(stream, Stream):
        raise GraphError(
            f'{where}{shown(stream, 80)}, ...): that is no stream; give a Stream("name", Type)'
        )


def check_source(stream: Stream[Any], source: object) -> None:
    """Refuse the class of a source in place of an instance, and what is no source at all.

    Raises:
        GraphError: nothing can be read from it.
    """
    if isinstance(source, type):
        name = source.__name__
        raise GraphError(
            f"inject into {stream.name!r}: {name} is a class, and its instances are sources; give "
            f"{name}(...)"
        )
    if not hasattr(source, "partitions"):
        raise GraphError(
            f"inject into {stream.name!r}: {shown(source, 80)} is no source; give one like "
            'JsonLines("file.jsonl")'
        )


def check_sink(stream: Stream[Any], sink: object) -> None:
    """Refuse the class of a sink in place of an instance, and what is no sink at all.

    Raises:
        GraphError: nothing can be written to it.
    """
    kinds = (Table, JsonLinesFiles, Console, Discard)
    if isinstance(sink, kinds):
        return
    names = ", ".join(kind.__name__ for kind in kinds)
    if isinstance(sink, type) and issubclass(sink, kinds):
        name = sink.__name__
        raise GraphError(
            f"sink of {stream.name!r}: {name} is a class, and its instances are sinks; give {name}(...)"
        )
    raise GraphError(
        f"sink of {stream.name!r}: {shown(sink, 80)} is no sink; give an instance of {names}"
    )


def check_computation(computation: object) -> None:
    """Refuse the class of a computation in place of an instance, methods that cannot be awaited, and a
    `writes` that is no tuple of streams.

    Raises:
        GraphError: it cannot be run.
    """
    if isinstance(computation, type):
        name = computation.__name__
        raise GraphError(
            f"add({name}, ...): {name} is a class, and its instances are computations; give {name}()"
        )
    if not isinstance(computation, Computation):
        raise GraphError(
            f"add({shown(computation, 80)}, ...): that is no computation; give an instance of a "
            "class that extends Computation"
        )
    for name in PROCESS:
        if computation.defines(name):
            _check_coroutine(type(computation), name)
    writes: object = computation.writes
    if not isinstance(writes, (tuple, list)) or not all(isinstance(w, Stream) for w in writes):
        raise GraphError(
            f"{type(computation).__name__}.writes is a tuple of streams, as in writes = (OUT,), and "
            f"not {shown(writes, 80)}"
        )


def _check_coroutine(kind: type, name: str) -> None:
    """Refuse a method that is certainly not awaitable: a plain function without a word of what it
    returns, or a generator."""
    method = inspect.unwrap(getattr(kind, name))
    if not inspect.isfunction(method) or inspect.iscoroutinefunction(method):
        return
    if inspect.isasyncgenfunction(method):
        fault = "has a `yield`, and is no coroutine; produce values with ctx.produce"
    elif inspect.isgeneratorfunction(method) or method.__annotations__.get("return") in (
        None,
        "None",
    ):
        fault = f"is a plain function; write `async def {name}`"
    else:
        return  # it says that it returns something, which may be awaitable
    raise GraphError(f"{kind.__name__}.{place_of(method)} {fault}")


def check_readings(label: str, inputs: tuple[object, ...]) -> None:
    """Refuse streams that do not say how they are read.

    Raises:
        GraphError: an input is a bare stream, or something else.
    """
    for input_ in inputs:
        if isinstance(input_, Stream):
            raise GraphError(
                f"{label!r} does not say how it reads the stream {input_.name!r}; give "
                "STREAM.by(key), with a function that takes the key from a value, STREAM.spread() or "
                "STREAM.broadcast()"
            )
        if not isinstance(input_, (Input, Broadcast)):
            raise GraphError(
                f"{label!r} cannot read {shown(input_, 80)}; give STREAM.by(key), STREAM.spread() or "
                "STREAM.broadcast()"
            )


def check_weak(label: str, computation: Computation[Any, Any, Any, Any]) -> None:
    """See to it that what a weak computation produces depends on the record alone, as far as that
    can be told before it runs.

    Raises:
        GraphError: it keeps something, and does not say that this makes no difference.
    """
    if computation.order_insensitive:
        return
    if computation.state_type not in (None, type(None)):
        what = "keeps state"
    elif computation.shared_type not in (None, type(None)):
        what = "reads a table that broadcast records make"
    else:
        return
    raise GraphError(
        f"{label!r} {what}, so that its productions cannot be weak: a record that is processed again "
        "after a crash, perhaps in another order, may find other things kept and produce something "
        "else, and what is different would be dropped or count twice. Add it with "
        'productions="strong", or, if what it produces for a record is the same whatever came '
        "before, say so in the class: order_insensitive = True"
    )


def check_tree(
    label: str,
    computation: Computation[Any, Any, Any, Any],
    productions: str,
    delivery: str,
    inputs: tuple[Reading, ...],
) -> None:
    """See to it that a computation whose productions nobody keeps does nothing but pass things on.

    Raises:
        GraphError: its inputs would have effects of their own.
    """
    if productions != "weak":
        raise GraphError(
            f'{label!r} is added with acknowledgement="tree" and productions="strong": strong '
            "productions are stored, and need no tree to be made again from; add it with "
            'productions="weak", or leave acknowledgement out'
        )
    if delivery != "acknowledged":
        raise GraphError(
            f'{label!r} is added with acknowledgement="tree", which processes a record again when '
            'something of it is lost, and with delivery="at_most_once"; leave one of them out'
        )
    if computation.state_type not in (None, type(None)):
        what = "keeps state"
    elif computation.defines("process_timer"):
        what = "has timers"
    elif any(isinstance(input_, Broadcast) for input_ in inputs):
        what = "makes a table of what it reads by broadcast"
    else:
        return
    raise GraphError(
        f'{label!r} {what}, so that its records have to be stored: acknowledgement="tree" is for '
        'computations that only pass things on. Add it with acknowledgement="chain"'
    )


def check_no_rows(writer: Node, use: SinkUse) -> None:
    """See to it that what a tree computation produces rides in no commit of its own.

    Raises:
        GraphError: there would be one for each of its records.
    """
    if writer.is_tree and isinstance(use.sink, Table):
        raise GraphError(
            f'{writer.name!r} is added with acknowledgement="tree", and the rows of table '
            f"{use.sink.name!r} would ride in its own commits, of which there are none. Add it with "
            'acknowledgement="chain", or give the table a key=... and no producer_key: then it '
            "has a step of its own"
        )


def check_repeatable(writer: Node, use: SinkUse) -> None:
    """See to it that rows which are written again with a record do no harm.

    Raises:
        GraphError: they would be there twice, and nothing says that this is wanted.
    """
    if (
        writer.is_weak
        and not writer.exactly_once
        and isinstance(use.sink, Table)
        and not use.sink.key
    ):
        raise GraphError(
            f'{writer.name!r} is added with productions="weak" and exactly_once=False, and writes '
            f"rows to the table {use.sink.name!r}, which has no key: whatever is sent again, and "
            "with weak productions much is, would be there twice. Give the table a key=..., or add "
            "the computation with exactly_once=True"
        )


def check_bundles(
    label: str,
    computation: Computation[Any, Any, Any, Any],
    inputs: tuple[Reading, ...],
    productions: str,
    exactly_once: bool,
    delivery: str,
) -> None:
    """See to it that a computation whose records come in numbered bundles can have them so.

    Raises:
        GraphError: it has what belongs to a key, or the switches take the numbers' worth away.
    """
    defined = computation.defines("process_bundle")
    if computation.bundles is None:
        if defined:
            raise GraphError(
                f"{label!r} defines process_bundle, but says nothing of its bundles; give the class "
                "`bundles = Bundles()`"
            )
        return
    if not isinstance(computation.bundles, Bundles):
        raise GraphError(f"{label!r}: bundles is a Bundles(...), not {computation.bundles!r:.80}")
    if not defined:
        raise GraphError(f"{label!r} wants bundles, but defines no process_bundle to take them")
    why = f"{label!r} reads in numbered bundles, whose records have many keys"
    if computation.defines("process_record"):
        raise GraphError(
            f"{label!r} defines both process_record and process_bundle; its records come in "
            "bundles, so leave process_record out, or `bundles` and process_bundle"
        )
    if computation.state_type not in (None, type(None)):
        raise GraphError(f"{why}, but keeps state by key; keep it in a computation before this one")
    if computation.defines("process_timer"):
        raise GraphError(
            f"{why}, but has timers by key; have them in a computation before this one"
        )
    broadcast = [i.stream.name for i in inputs if isinstance(i, Broadcast)]
    if broadcast or computation.defines("process_broadcast"):
        raise GraphError(
            f"{why}, but has a table made by broadcast; look things up in a computation before "
            "this one"
        )
    if exactly_once is not True:
        raise GraphError(
            f"{label!r} reads in numbered bundles, so that each record is in one of them: that "
            "takes exactly_once=True"
        )
    if delivery != "acknowledged":
        raise GraphError(
            f"{label!r} reads in numbered bundles, whose records are sent until they are "
            'acknowledged: take delivery="at_most_once" out'
        )
    if productions != "strong":
        raise GraphError(
            f"{label!r} reads in numbered bundles: what it produces belongs to the commit that says "
            "that the bundle is delivered, so its productions are 'strong'"
        )


def check_sink_of_bundles(writer: Node, use: SinkUse) -> None:
    if writer.bundles is not None and isinstance(use.sink, Table) and use.sink.producer_key:
        raise GraphError(
            f"table {use.sink.name!r} has the key of who produces its rows, but {writer.name!r} "
            "reads in bundles, whose records have many keys; leave producer_key out"
        )


def check_spread(
    label: str, computation: Computation[Any, Any, Any, Any], inputs: tuple[Input[Any], ...]
) -> None:
    """See to it that a computation whose keys are the engine's choice keeps nothing by key.

    Raises:
        GraphError: it has state or timers, or another input has a key that means something.
    """
    spread = [i.stream.name for i in inputs if i.extractor is None]
    if not spread:
        return
    why = f"{label!r} reads {spread[0]!r} spread, where the key is the engine's and means nothing"
    for input_ in inputs:
        if input_.extractor is not None:
            raise GraphError(
                f"{why}, and {input_.stream.name!r} by {input_.extractor_name}; read both by a key "
                "if it matters, both spread if it does not"
            )
    if computation.state_type not in (None, type(None)):
        raise GraphError(f"{why}, but keeps state by key; read the stream by a key: STREAM.by(...)")
    if computation.defines("process_timer"):
        raise GraphError(f"{why}, but has timers by key; read the stream by a key: STREAM.by(...)")

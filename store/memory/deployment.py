from __future__ import annotations

import msgspec
from msgspec import structs

from millwheel.core.model import MIN_TIME
from millwheel.store.memory import administration
from millwheel.store.memory.sink_tables import TableSinks
from millwheel.store.memory.tables import ComputationRow, Log, Tables
from millwheel.store.memory.views import pending_productions
from millwheel.store.port.commit import IntervalCommit
from millwheel.store.port.deploy import Deployment, DescribedGraph, NodeDeploy
from millwheel.store.port.queries import QueryChange, StoredQueries
from millwheel.store.rules.changes.key_changes import rekeyed
from millwheel.store.rules.changes.obstacles import Obstacles
from millwheel.store.rules.code import Generation, present_names
from millwheel.store.rules.generations import Admission, Deployed, admit, unwritten


def deployed(
    tables: Tables,
    sinks: TableSinks,
    described: DescribedGraph,
    others: int | None,
    *,
    back: bool,
) -> Deployed:
    """`others` is the number of workers with a valid lease; None: the worker must be alone."""
    least_left = min((row.generation for row in tables.intervals.values()), default=1)
    return Deployed(
        tables.pipeline,
        tables.generations,
        removed={name for name, node in tables.computations.items() if node.removed},
        tables=sinks.stored(),
        obstacles=Obstacles(
            _begun(tables),
            _bundled(tables),
            _parked(tables),
            _sent(tables, unwritten(tables.generations, described)),
            others or 0,
        ),
        least_left=None if others is None else least_left,
        back=back,
    )


def deploy(
    tables: Tables,
    sinks: TableSinks,
    found: Deployed,
    described: DescribedGraph,
    stamp: int,
    bucket_high: int,
) -> Deployment:
    admission = admit(found, described)
    ever = rekeyed(tables.generations, admission.code)
    if not tables.generations:
        tables.create_bucket("time", 0, 0, bucket_high)
        tables.deployed_in = tables.incarnation
    if admission.begins:
        _begin(tables, admission, described, stamp)
    sinks.add(described.tables)
    sinks.alter(admission.alterations)
    former = present_names(found.history, admission.generation)
    deployment = Deployment(
        {name: node.id for name, node in tables.computations.items() if not node.removed},
        dict(tables.streams),
        [interval.row() for interval in tables.in_order()],
        admission.generation,
        ever,
        admission.changes if admission.begins else (),
        admission.rekeyed,
        is_first=tables.deployed_in == tables.incarnation,
        copied=tables.copied,
    )
    deployment.add_former_names(former)
    return deployment


def remove(tables: Tables, change: QueryChange | None) -> list[int]:
    """Remove the steps that a change of queries takes away; returns their ids."""
    if change is None or not change.removes:
        return []
    names = list(change.removes)
    administration.remove(tables, names, are_replaced=change.verb == "replace")
    return [tables.computations[name].id for name in names]


def note_change(tables: Tables, change: QueryChange | None, generation: int) -> None:
    if change is None:
        return
    query = structs.replace(change.query, generation=generation)
    before = tables.queries.queries
    if change.verb == "submit":
        after = (*before, query)
    else:
        after = tuple(query if one.name == query.name else one for one in before)
    tables.queries = StoredQueries(tables.queries.revision + 1, after)


def _begun(tables: Tables) -> set[str]:
    return {
        tables.names()[row.computation]
        for row in tables.in_order()
        if b'"processed"' in tables.last_commit(row.id)[0].link.counters
    }


def _bundled(tables: Tables) -> set[str]:
    found = set()
    for row in tables.in_order():
        last, _ = tables.last_commit(row.id)
        if msgspec.json.decode(last.link.position or b"{}").get("bundle", {}).get("open"):
            found.add(tables.names()[row.computation])
    return found


def _parked(tables: Tables) -> set[str]:
    return {tables.names()[one.computation] for one in tables.dead_letters if one.parked}


def _sent(tables: Tables, pairs: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of some nodes, each with a stream, have sent records that are not acknowledged."""
    names = tables.names()
    pending = {
        (names[tables.intervals[tables.logs[log].interval_id].computation], row.stream)
        for log, seq in (pending_productions(tables) if pairs else ())
        for row in tables.productions(log)
        if row.seq == seq
    }
    return pending.intersection(pairs)


def _begin(
    tables: Tables,
    admission: Admission,
    described: DescribedGraph,
    stamp: int,
) -> None:
    number = admission.generation
    tables.generations.append(Generation(number, admission.code))
    for name, former in admission.renames.items():
        tables.computations[name] = tables.computations.pop(former)
    outgrown = {tables.computations[name].id for name in admission.outgrown}
    for interval in tables.intervals.values():
        if interval.computation in outgrown:
            interval.generation = number
    for stream in described.streams:
        tables.streams.setdefault(stream.name, len(tables.streams) + 1)
    for node in described.nodes:
        if node.name not in tables.computations:
            _add(tables, node, number, stamp)


def _add(tables: Tables, node: NodeDeploy, generation: int, stamp: int) -> None:
    id_ = len(tables.computations) + 1
    tables.computations[node.name] = ComputationRow(id_, node.kind)
    for number, (low, high) in enumerate(node.slots):
        row = tables.make_interval(id_, low, high, generation)
        if node.sources:
            tables.logs[tables.next_number()] = Log(row.id, node.sources[number])
        link = IntervalCommit(
            row.id, row.sequencer, 0, 0, MIN_TIME, MIN_TIME, stamp, b"{}", None, b"{}"
        )
        tables.begin_chain(link, stamp)

from __future__ import annotations

import msgspec

from millwheel.core.model import MIN_TIME
from millwheel.store.memory.sink_tables import TableSinks
from millwheel.store.memory.tables import ComputationRow, Log, Tables
from millwheel.store.port.commit import IntervalCommit
from millwheel.store.port.deploy import Deployment, DescribedGraph, NodeDeploy
from millwheel.store.rules.code import Code, Generation
from millwheel.store.rules.generations import Admission, admit, obstacles_of, plain
from millwheel.store.rules.rekeying import rekeyed


def deploy(
    tables: Tables,
    sinks: TableSinks,
    described: DescribedGraph,
    stamp: int,
    bucket_high: int,
    others: int | None,
) -> Deployment:
    """`others` is the number of workers with a valid lease; None: the worker must be alone."""
    least_left = min((row.generation for row in tables.intervals.values()), default=1)
    admission, code = admit(
        tables.pipeline,
        tables.generations,
        described,
        {name for name, node in tables.computations.items() if node.removed},
        None if others is None else least_left,
        obstacles_of(described.nodes, _bundled(tables), _parked(tables), others or 0),
    )
    ever = rekeyed(tables.generations, code)
    if not admission.is_older:
        sinks.check(described.tables)
    if not tables.generations:
        tables.create_bucket("time", 0, 0, bucket_high)
        tables.deployed_in = tables.incarnation
    if admission.begins:
        _begin(tables, admission, code, described, stamp)
    sinks.add(described.tables)
    return Deployment(
        {name: node.id for name, node in tables.computations.items() if not node.removed},
        dict(tables.streams),
        [interval.row() for interval in tables.in_order()],
        admission.generation,
        ever,
        admission.rekeyed,
        is_first=tables.deployed_in == tables.incarnation,
    )


def _bundled(tables: Tables) -> set[str]:
    found = set()
    for row in tables.in_order():
        last, _ = tables.last_commit(row.id)
        if msgspec.json.decode(last.link.position or b"{}").get("bundle", {}).get("open"):
            found.add(tables.names()[row.computation])
    return found


def _parked(tables: Tables) -> set[str]:
    return {tables.names()[one.computation] for one in tables.dead_letters if one.parked}


def _begin(
    tables: Tables,
    admission: Admission,
    code: Code,
    described: DescribedGraph,
    stamp: int,
) -> None:
    number = admission.generation
    tables.generations.append(Generation(number, plain(code)))
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

"""Changes that an operator makes in a store (`millwheel.store.console.administration`)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millwheel.core.model import is_derived, log_and_number
from millwheel.store.memory.tables import Tables
from millwheel.store.rules.code import Generation
from millwheel.store.rules.generations import refuse_with_members, without


def pause(tables: Tables, injectors: Sequence[str]) -> None:
    tables.paused = set(injectors)


def remove(tables: Tables, names: list[str], *, are_replaced: bool = False) -> None:
    """`UsageError` if there is no such node, a remaining node needs it, or an open numbered bundle
    has records of it."""
    newest = tables.generations[-1]
    code = without(tables.pipeline, newest.code, names, are_replaced=are_replaced)
    gone = {tables.computations[name].id for name in names}
    refuse_with_members(tables.pipeline, _bundles_in_the_way(tables, gone))
    tables.generations.append(Generation(newest.number + 1, code))
    for name in names:
        tables.computations[name].removed = True
    for row in [row for row in tables.intervals.values() if row.computation in gone]:
        tables.logs = {id_: log for id_, log in tables.logs.items() if log.interval_id != row.id}
        del tables.intervals[row.id]
    tables.state = {key: found for key, found in tables.state.items() if key[1] not in gone}
    tables.timers = {key: found for key, found in tables.timers.items() if key[1] not in gone}
    tables.dead_letters = [
        (
            letter._replace(parked=None, watermark=None, hold=None)
            if letter.computation in gone
            else letter
        )
        for letter in tables.dead_letters
    ]


def _bundles_in_the_way(tables: Tables, gone: set[int]) -> list[tuple[str, int, int]]:
    """(computation, number, count of records of removed nodes)."""
    logs = {
        id_
        for id_, log in tables.logs.items()
        if (row := tables.intervals.get(log.interval_id)) is not None and row.computation in gone
    }
    found = []
    for row in tables.in_order():
        last, _ = tables.last_commit(row.id)
        bundle = msgspec.json.decode(last.link.position or b"{}").get("bundle", {})
        ids = [bytes.fromhex(id_) for id_ in bundle.get("open", ())]
        records = sum(not is_derived(id_) and log_and_number(id_)[0] in logs for id_ in ids)
        if records and row.computation not in gone:
            found.append((tables.names()[row.computation], bundle["number"], records))
    return found

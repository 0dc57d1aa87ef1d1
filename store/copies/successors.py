"""Pipelines that are made to take the place of another one, and begin with its whole input."""

from __future__ import annotations

from millwheel.core.names import check_name
from millwheel.errors import GraphError, UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.migrate import require_version, schema_version
from millwheel.store.console.published_names import published_names
from millwheel.store.console.snapshot import choose, list_pipelines
from millwheel.store.postgres.statements import Statements


def make_successor(
    url: str, pipeline: str, name: str, *, address: StoreAddress, actor: Actor = UNNAMED
) -> None:
    """Make an empty pipeline that withholds its outputs.

    Raises:
        UsageError: there is no such pipeline, or there is a schema `name`.
        StoreError: this login may make no schema.
    """
    try:
        check_name(name, "pipeline")
    except GraphError as error:
        raise UsageError(str(error)) from error
    with transaction(url) as connection:
        choose(list_pipelines(connection), pipeline)
    if schema_version(url, name) is not None:
        raise UsageError(
            f"there is a schema {name!r} already; choose another name, or drop it. Nothing was made"
        )
    require_version(url, name, address=address, migrate_now=True)
    with transaction(url) as connection:
        connection.execute(Statements(name).get("add_withholding"), {"name": name})
        for noted in (pipeline, name):
            Asking(connection, noted).note(actor, "reprocess", {"of": pipeline, "as": name})


def begins_that_are_gone(url: str, pipeline: str) -> list[str]:
    """Partitions of sources that have lost their first rows, as far as workers know."""
    with transaction(url) as connection:
        text = Statements(pipeline).get("lost_begins", source_partitions="source_partitions")
        return [
            f"{injector} ({partition} begins at {first:,})"
            for injector, partition, first in connection.execute(text).fetchall()
        ]


def tables_of_readers(url: str, pipeline: str) -> dict[str, str]:
    """The tables of a pipeline that have published names, with these."""
    with transaction(url) as connection:
        return {one.table: one.words for one in published_names(connection, pipeline)}

"""Forks: copies of a pipeline, or of a savepoint, that run beside it under a name of their own."""

from __future__ import annotations

from millwheel.core.names import check_name
from millwheel.errors import GraphError, UsageError
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.snapshot import list_pipelines
from millwheel.store.copies.copying import CopyMarks, MadeCopy, copy_pipeline
from millwheel.store.copies.origins import SIGN, is_savepoint
from millwheel.store.copies.progress import Show, show_nothing
from millwheel.store.copies.savepoints import find_savepoint


def fork(
    url: str,
    origin: str,
    name: str,
    *,
    withholds: bool = True,
    actor: Actor = UNNAMED,
    show: Show = show_nothing,
) -> MadeCopy:
    """Copy a pipeline as it is now, or a savepoint, to run beside it.

    Args:
        withholds: let nothing leave the store: sinks outside get no records of the fork.

    Errors as `copy_pipeline`.
    """
    try:
        check_name(name, "pipeline")
    except GraphError as error:
        raise UsageError(str(error)) from error
    if is_savepoint(origin):
        find_savepoint(url, origin)
    marks = CopyMarks(withholds=withholds, takes_requests=False)
    made = copy_pipeline(url, origin, name, marks, show)
    payload = {"from": origin, "as": name, "rows": made.rows, "bytes": made.bytes}
    with transaction(url) as connection:
        for noted in {name, origin.partition(SIGN)[0]} & {*list_pipelines(connection)}:
            Asking(connection, noted).note(actor, "fork", payload)
    return made

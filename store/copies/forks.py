"""Forks: copies of a pipeline, or of a savepoint, that run beside it under a name of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

from millwheel.core.names import check_name
from millwheel.errors import GraphError, UsageError
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.snapshot import list_pipelines
from millwheel.store.copies.copying import CopyMarks, MadeCopy, copy_pipeline
from millwheel.store.copies.elsewhere import NewCopy, copy_to_store, load_files
from millwheel.store.copies.file_manifest import read_manifest
from millwheel.store.copies.file_places import FilePlace
from millwheel.store.copies.origins import SIGN, is_savepoint
from millwheel.store.copies.progress import Show, show_nothing
from millwheel.store.copies.savepoints import find_savepoint
from millwheel.store.copies.teeing import TEED, teed


class ForkKind(NamedTuple):
    withholds: bool = True
    """Let nothing leave the store: sinks outside get no records of the fork."""
    tee: bool = False
    """Records that are sent to inboxes of the origin from then on are sent to the fork too."""


ALONE = ForkKind()


class ForkTo(NamedTuple):
    """A fork that is to be made in a store."""

    url: str
    """Of the store."""
    store: str
    """The store's address, as messages show it."""
    name: str
    withholds: bool = True
    """Let nothing leave the store: sinks outside get no records of the fork."""
    actor: Actor = UNNAMED

    def new_copy(self) -> NewCopy:
        marks = CopyMarks(withholds=self.withholds, takes_requests=False)
        return NewCopy(self.url, self.store, self.name, marks)


def fork(
    url: str,
    origin: str,
    name: str,
    *,
    kind: ForkKind = ALONE,
    actor: Actor = UNNAMED,
    show: Show = show_nothing,
) -> MadeCopy:
    """Copy a pipeline as it is now, or a savepoint, to run beside it.

    Raises:
        UsageError: records are to be sent to both, and the origin is a savepoint or has no inbox.

    Further errors as `copy_pipeline`.
    """
    _check_name(name)
    if is_savepoint(origin):
        find_savepoint(url, origin)
        if kind.tee:
            raise UsageError(
                f"--tee is for a fork of the pipeline as it is now: records sent since {origin!r} "
                "was taken would be missing"
            )
    marks = CopyMarks(withholds=kind.withholds, takes_requests=False)
    if kind.tee:
        with teed(url, origin, name):
            made = copy_pipeline(url, origin, name, marks._replace(present=TEED), show)
    else:
        made = copy_pipeline(url, origin, name, marks, show)
    _note(
        [(url, name), (url, origin.partition(SIGN)[0])], actor, {"from": origin, **_figures(made)}
    )
    return made


def fork_files(place: FilePlace, pipeline: str, to: ForkTo, show: Show = show_nothing) -> MadeCopy:
    """Make a fork from a savepoint in files. Errors as `load_files`."""
    _check_name(to.name)
    manifest = read_manifest(place)
    if manifest.pipeline != pipeline:
        raise UsageError(f"{place.text} is of pipeline {manifest.pipeline!r}, not of {pipeline!r}")
    made = load_files(place, manifest, to.new_copy(), show)
    _note([(to.url, to.name)], to.actor, {"from": place.text, **_figures(made)})
    return made


def fork_to_store(url: str, origin: str, to: ForkTo, show: Show = show_nothing) -> MadeCopy:
    """Make a fork of a pipeline as it is now, or of a savepoint, in another store. Errors as
    `copy_to_store`."""
    _check_name(to.name)
    if is_savepoint(origin):
        find_savepoint(url, origin)
    made = copy_to_store(url, origin, to.new_copy(), show)
    payload = {"from": origin, "store": to.store, **_figures(made)}
    _note([(url, origin.partition(SIGN)[0]), (to.url, to.name)], to.actor, payload)
    return made


def _check_name(name: str) -> None:
    try:
        check_name(name, "pipeline")
    except GraphError as error:
        raise UsageError(str(error)) from error


def _figures(made: MadeCopy) -> dict[str, Any]:
    return {"as": made.name, "rows": made.rows, "bytes": made.bytes}


def _note(pipelines: list[tuple[str, str]], actor: Actor, payload: dict[str, Any]) -> None:
    """Note a fork in the logs of pipelines, each with the URL of its store. A savepoint may have
    outlived its pipeline."""
    for url, name in pipelines:
        with transaction(url) as connection:
            if name in list_pipelines(connection):
                Asking(connection, name).note(actor, "fork", payload)

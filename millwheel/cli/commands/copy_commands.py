"""``millwheel savepoint``, ``savepoints`` and ``fork``: copies of a pipeline."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from millwheel import __version__
from millwheel.cli.command import command, group
from millwheel.cli.fitted_tables import Fit, print_table
from millwheel.cli.made_copies import confirm_size, copy_progress, moment_text, pipeline_size
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import ChangeOptions, CommonOptions, Json, OptionGroup, PipelineName, Yes
from millwheel.cli.printing import confirm, print_json, print_result, seconds_text, tell
from millwheel.core.quantities import byte_text, count_of
from millwheel.errors import UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.console.presence import present
from millwheel.store.copies.copying import MadeCopy
from millwheel.store.copies.file_places import is_place, place_of
from millwheel.store.copies.file_savepoints import FileLabel, write_savepoint
from millwheel.store.copies.forks import ForkKind, ForkTo, fork_files, fork_to_store
from millwheel.store.copies.forks import fork as make_fork
from millwheel.store.copies.origins import SIGN
from millwheel.store.copies.savepoints import (
    Savepoint,
    drop_savepoint,
    find_savepoint,
    list_savepoints,
    make_savepoint,
    savepoint_name,
)

app = typer.Typer()
savepoints = group(app, "savepoints")

Label = Annotated[
    str, typer.Argument(metavar="LABEL", help="Its name among those of the pipeline.")
]
SavepointName = Annotated[str, typer.Argument(metavar="PIPELINE@LABEL")]


@dataclass(frozen=True)
class SavepointOptions(OptionGroup):
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long to keep it, as 36h or 14d; then the next savepoint of the pipeline "
            "drops it. Default: until `millwheel savepoints drop`.",
        ),
    ] = None
    to: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="Write files to this directory or object store, in place of a schema in the "
            "store.",
        ),
    ] = None


@command(
    app,
    examples=[
        "millwheel savepoint shop before-march --keep 14d",
        "millwheel savepoint shop nightly --keep 36h --yes  # from cron",
        "millwheel savepoint shop before-march --to /backup/shop-march",
    ],
)
def savepoint(
    pipeline: PipelineName,
    label: Label,
    yes: Yes = False,
    *,
    options: SavepointOptions,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Copy a pipeline as it is at this moment, while it runs."""
    keep, to = options.keep, options.to
    if to is not None:
        if keep is not None:
            raise UsageError("--keep is for savepoints in the store: delete files yourself")
        _savepoint_in_files(pipeline, label, to, change, common)
        return
    keep_until = None if keep is None else datetime.now(UTC) + _time(keep)
    with opened(common) as presence:
        confirm_size(presence, pipeline_size(presence, pipeline), sure=yes)
        with copy_progress() as show:
            made, dropped = make_savepoint(
                presence.url,
                pipeline,
                label,
                keep_until=keep_until,
                actor=actor(change.reason),
                show=show,
            )
    result = {**made._asdict(), "keep_until": keep_until, "dropped": dropped}
    print_result(result, _savepoint_lines(made, keep_until, dropped), as_json=change.as_json)


def _savepoint_in_files(
    pipeline: str, label: str, to: str, change: ChangeOptions, common: CommonOptions
) -> None:
    place = place_of(to)
    called = FileLabel(label, __version__, actor(change.reason))
    with opened(common) as presence, copy_progress() as show:
        made = write_savepoint(presence.url, pipeline, place, called, show)
    lines = [
        f"savepoint {made.name} at {moment_text(made.copied_at)}: {made.rows:,} rows, "
        f"{count_of(made.files, 'file')} in {made.place}, {byte_text(made.bytes)}",
        *(f"not copied: {text}" for text in made.left_out),
        f"next: millwheel fork {pipeline} --as NAME --from {shlex.quote(made.place)}",
    ]
    print_result(made._asdict(), lines, as_json=change.as_json)


def _savepoint_lines(
    made: MadeCopy, keep_until: datetime | None, dropped: list[str]
) -> Iterator[str]:
    yield from _copy_lines("savepoint", made)
    until = "until you drop it" if keep_until is None else f"until {moment_text(keep_until)}"
    yield f"kept {until}: millwheel savepoints drop {made.name}"
    if made.restore_point is not None:
        yield f"restore point of the server: {made.name} at {made.restore_point}"
    for name in dropped:
        yield f"dropped {name}: its time was over"


@dataclass(frozen=True)
class ForkOptions(OptionGroup):
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="LABEL|DIR|URL",
            help="A savepoint: its label in the store, or the directory (with a / in its name) or "
            "URL of its files. Default: the pipeline as it is now.",
        ),
    ] = None
    to_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL|DIR",
            help="Make the fork in this store, which may be of another version of Postgres. "
            "Default: --store.",
        ),
    ] = None
    deliver: Annotated[
        bool,
        typer.Option(
            "--deliver",
            help="Let its sinks write to Kafka, files and other systems, as those of the original "
            "do.",
        ),
    ] = False
    tee: Annotated[
        bool,
        typer.Option(
            "--tee",
            help="Send records to the copy too that programs send to inboxes of the original from "
            "now on.",
        ),
    ] = False


@command(
    app,
    examples=[
        "millwheel fork shop --as shop2 --from before-march",
        "millwheel fork shop --as shop2 --from /backup/shop-march",
        "millwheel fork shop@before-march --as shop2 --to-store postgresql://app@db2/analysis",
    ],
)
def fork(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE[@LABEL]", help="A pipeline, or its savepoint.")
    ],
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The name of the copy, a pipeline.")
    ],
    yes: Yes = False,
    *,
    options: ForkOptions,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Copy a pipeline to another name, to run beside it from the same positions."""
    source = options.source
    if source is not None and SIGN in pipeline:
        raise UsageError(f"{pipeline!r} names a savepoint already: leave out --from, or the label")
    if options.tee and not (source is None and options.to_store is None and SIGN not in pipeline):
        raise UsageError("--tee is for a fork of the pipeline as it is now, in the same store")
    wanted = _Fork(name, options, change, sure=yes)
    if source is not None and is_place(source):
        made = wanted.from_files(pipeline, source, common)
    else:
        origin = pipeline if source is None else savepoint_name(pipeline, source)
        made = wanted.from_store(origin, common)
    where = ""
    if options.to_store is not None:
        where = f" --store {shlex.quote(StoreAddress.parse(options.to_store).redacted())}"
    lines = [
        *_copy_lines("fork", made),
        f"it withholds what would leave the store; to let it: millwheel outputs {name} on{where}"
        if not options.deliver
        else "its sinks deliver",
        f"next: millwheel run MODULE:PIPELINE --as {name}{where}",
    ]
    print_result(made._asdict(), lines, as_json=change.as_json)


class _Fork:
    """A fork as the command line wants it."""

    def __init__(
        self, name: str, options: ForkOptions, change: ChangeOptions, *, sure: bool
    ) -> None:
        self._name, self._options = name, options
        self._actor = actor(change.reason)
        self._sure = sure

    def from_files(self, pipeline: str, source: str, common: CommonOptions) -> MadeCopy:
        place = place_of(source)
        text = self._options.to_store
        address = common.address if text is None else StoreAddress.parse(text)
        with self._target(address) as to, copy_progress() as show:
            return fork_files(place, pipeline, to, show)

    def from_store(self, origin: str, common: CommonOptions) -> MadeCopy:
        with opened(common) as presence:
            if SIGN not in origin:
                confirm_size(presence, pipeline_size(presence, origin), sure=self._sure)
            with copy_progress() as show:
                if self._options.to_store is None:
                    return make_fork(
                        presence.url,
                        origin,
                        self._name,
                        kind=ForkKind(not self._options.deliver, self._options.tee),
                        actor=self._actor,
                        show=show,
                    )
                with self._target(StoreAddress.parse(self._options.to_store)) as to:
                    return fork_to_store(presence.url, origin, to, show)

    @contextlib.contextmanager
    def _target(self, address: StoreAddress) -> Iterator[ForkTo]:
        """The store of the fork; a directory without one gets one."""
        with present(address, create=True) as presence:
            withholds = not self._options.deliver
            yield ForkTo(presence.url, address.redacted(), self._name, withholds, self._actor)


def _copy_lines(kind: str, made: MadeCopy) -> Iterator[str]:
    yield (
        f"{kind} {made.name} of {made.origin} at {moment_text(made.copied_at)}: "
        f"{made.rows:,} rows, {byte_text(made.bytes)}"
    )
    for text in made.left_out:
        yield f"not copied: {text}"


@command(
    savepoints, "list", examples=["millwheel savepoints list", "millwheel savepoints list shop"]
)
def list_(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="PIPELINE", help="Default: all pipelines.")
    ] = None,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """List savepoints with their disk space, the newest first."""
    with opened(common) as presence:
        found = list_savepoints(presence.url, pipeline)
    if as_json:
        print_json({"savepoints": found})
    elif not found:
        tell("there is no savepoint; make one with millwheel savepoint PIPELINE LABEL")
    else:
        print_table(
            ["savepoint", "at", "size", "generation", "low watermark", "kept until"],
            [
                [
                    one.name,
                    moment_text(one.at),
                    byte_text(one.bytes),
                    str(one.generation),
                    seconds_text(one.low_watermark),
                    _kept(one),
                ]
                for one in found
            ],
            Fit(("low watermark", "generation")),
        )


@command(savepoints, "show", examples=["millwheel savepoints show shop@before-march"])
def show(name: SavepointName, as_json: Json = False, *, common: CommonOptions) -> None:
    """Show one savepoint."""
    with opened(common) as presence:
        found = find_savepoint(presence.url, name)
    lines = [
        f"savepoint {found.name}: pipeline {found.pipeline} at {moment_text(found.at)}",
        f"code of generation {found.generation}, low watermark {seconds_text(found.low_watermark)}",
        f"{byte_text(found.bytes)} on disk, kept until {_kept(found)}",
        f"restore point of the server: {found.restore_point or 'none'}",
        f'look into it: millwheel sql, with "{found.name}" as the schema',
    ]
    print_result(found, lines, as_json=as_json)


@command(savepoints, "drop", examples=["millwheel savepoints drop shop@before-march"])
def drop(
    name: SavepointName, yes: Yes = False, *, change: ChangeOptions, common: CommonOptions
) -> None:
    """Drop a savepoint, and free its disk space."""
    with opened(common) as presence:
        found = find_savepoint(presence.url, name)
        size = byte_text(found.bytes)
        confirm(f"dropping {name} deletes it for good ({size})", f"Drop {name} ({size})?", sure=yes)
        drop_savepoint(presence.url, name, actor=actor(change.reason))
    print_result(found, [f"dropped {name}: {size} are free again"], as_json=change.as_json)


def _kept(one: Savepoint) -> str:
    if one.keep_until is None:
        return "dropped"
    return f"{moment_text(one.keep_until)}{' (over)' if one.is_expired else ''}"


_TIME = re.compile(r"(\d{1,6})(s|min|h|d)\Z")
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def _time(text: str) -> timedelta:
    found = _TIME.match(text)
    if found is None:
        raise UsageError(f"--keep {text}: give a time as 30min, 36h or 14d")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])

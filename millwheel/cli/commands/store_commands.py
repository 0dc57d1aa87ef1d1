"""Commands on a store: ``migrate``, ``drop``, ``remove``, ``stop`` and ``url``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import (
    ChangeOptions,
    CommonOptions,
    Json,
    OptionGroup,
    OtherName,
    PipelineName,
    Yes,
    code_if_any,
)
from millwheel.cli.printing import confirm, print_result, tell
from millwheel.core.names import check_name
from millwheel.core.quantities import byte_text, count_of
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.store import embedded
from millwheel.store.console import administration
from millwheel.store.console.left_data import drop_left_data
from millwheel.store.console.migrate import HEAD, require_version, schema_version
from millwheel.store.console.presence import present
from millwheel.store.console.roles import make_roles

if TYPE_CHECKING:
    from millwheel.services.state_migration import MigratedStates

app = typer.Typer()

StoreDirectory = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="Directory of the store, as --store DIR.")
]


@dataclass(frozen=True)
class MigratedPipeline(OptionGroup):
    target: Annotated[
        str, typer.Argument(metavar="MODULE:PIPELINE|NAME", help="The pipeline, or its name.")
    ]
    other_name: OtherName = None


@dataclass(frozen=True)
class StateOptions(OptionGroup):
    states: Annotated[
        bool,
        typer.Option(
            "--states",
            help="Also migrate stored states to the present versions of their types, while "
            "workers run. It can be interrupted and repeated.",
        ),
    ] = False
    rate: Annotated[
        float,
        typer.Option(
            min=1.0, metavar="VALUES", help="Most values that --states migrates a second."
        ),
    ] = 5_000.0


@command(
    app,
    examples=[
        "millwheel migrate zeitgeist:pipeline --store postgresql://db/shop",
        "millwheel migrate zeitgeist --roles  # and roles with their rights",
        "millwheel migrate zeitgeist:pipeline --states  # stored states, too",
    ],
)
def migrate(
    wanted: MigratedPipeline,
    roles: Annotated[
        bool,
        typer.Option(
            "--roles",
            help="Create the roles DATABASE_NAME_owner, _worker, _operator and _reader, or renew "
            "their rights.",
        ),
    ] = False,
    allow_drop: Annotated[
        bool,
        typer.Option(
            "--allow-drop",
            help="Also drop columns of tables and entries of states that former code has written, "
            "and the deployed code does not know.",
        ),
    ] = False,
    as_json: Json = False,
    *,
    states: StateOptions,
    common: CommonOptions,
) -> None:
    """Create or upgrade a pipeline's schema. `run` and `worker` do so for embedded stores.

    With MODULE:PIPELINE, the streams of a new pipeline that have an Inbox take records from then
    on.
    """
    code = code_if_any(wanted.target, wanted.other_name)
    pipeline = None if code is None else code.load()
    name = check_name(wanted.target, "pipeline") if pipeline is None else pipeline.name
    address = common.address
    with present(address, create=True) as presence:
        before = schema_version(presence.url, name)
        require_version(presence.url, name, address=address, migrate_now=True)
        streams = [] if pipeline is None else _registered(pipeline, presence.url)
        made = make_roles(presence.url, name) if roles else ()
        migrated = _migrated(pipeline, presence.url, states.rate) if states.states else None
        dropped = drop_left_data(presence.url, name, actor=actor("")) if allow_drop else []
    lines = [_schema_line(name, before)]
    lines += [f"stream {stream} takes records" for stream in streams]
    lines += [f"role {role} has its rights; next: GRANT {role} TO a login" for role in made]
    lines += [f"dropped {one}" for one in dropped]
    if allow_drop and not dropped:
        lines.append("nothing is left that only former code has written")
    if migrated is not None:
        lines.append(_of_states(migrated))
    result = {
        "pipeline": name,
        "before": before,
        "version": HEAD,
        "streams": streams,
        "roles": made,
        "dropped": dropped,
        "states": None if migrated is None else _states_json(migrated),
    }
    print_result(result, lines, as_json=as_json)
    if migrated is not None and migrated.first_failure is not None:
        raise migrated.first_failure


def _schema_line(name: str, before: str | None) -> str:
    if before == HEAD:
        return f"schema {name} is already at version {HEAD}"
    if before:
        return f"migrated schema {name} from version {before} to version {HEAD}"
    return f"created schema {name} at version {HEAD}"


def _states_json(found: MigratedStates) -> dict[str, object]:
    names = ("computations", "migrated", "failed", "owned", "to_fold", "in_use", "seconds")
    return {name: getattr(found, name) for name in names}


def _migrated(pipeline: Pipeline | None, url: str, rate: float) -> MigratedStates:
    from millwheel.services.state_migration import migrate_states  # the engine: slow to import

    if pipeline is None:
        raise UsageError("--states runs the migrations of the code: give MODULE:PIPELINE")
    return migrate_states(pipeline, url, values_per_second=rate, show=_log_migrated)


def _log_migrated(found: MigratedStates) -> None:
    structlog.get_logger().info(
        "states_migrated",
        values=found.migrated,
        per_second=round(found.migrated / max(found.seconds, 1e-9)),
        share=f"{found.share:.0%}",
    )


def _of_states(found: MigratedStates) -> str:
    if not found.computations:
        return "no computation of this code has migrations"
    done = f"{count_of(found.migrated, 'value')} migrated in {found.seconds:.0f} s"
    if found.failed:
        done += f", and the migration of {found.failed} failed, which stay as they are"
    elif not found.left:
        return f"{done}: every stored state has the present version of its type"
    if not found.left:
        return done
    folded = "workers fold within seconds" if found.has_workers else "only a worker folds"
    advice = (
        "Repeat the command when workers of this code run"
        if found.has_workers
        else "No worker runs: start workers of this code, and repeat the command"
    )
    return (
        f"{done}. {count_of(found.left, 'value')} of former versions are left: {found.owned} in "
        "key intervals that no worker of this code has taken over yet, and "
        f"{found.to_fold + found.in_use} in commits that {folded}. {advice}"
    )


def _registered(pipeline: Pipeline, url: str) -> list[str]:
    from millwheel.services.registering import register_inboxes  # the engine: slow to import

    return register_inboxes(pipeline, url)


@command(
    app,
    examples=[
        "millwheel drop zeitgeist",
        "millwheel drop zeitgeist --yes  # in a script",
    ],
)
def drop(
    pipeline: PipelineName, yes: Yes = False, as_json: Json = False, *, common: CommonOptions
) -> None:
    """Drop a pipeline with its state, timers and results."""
    with opened(common) as presence:
        tables, size = administration.schema_size(presence.url, pipeline)
        what = f"pipeline {pipeline!r} in {presence.address.redacted()}"
        data = f"{count_of(tables, 'table')}, {byte_text(size)}"
        confirm(
            f"dropping {what} deletes all its data ({data})",
            f"Drop {what} with its state, its results and all its other data ({data})?",
            sure=yes,
        )
        administration.drop_pipeline(presence.url, pipeline)
    result = {"pipeline": pipeline, "tables": tables, "bytes": size}
    print_result(result, [f"dropped pipeline {pipeline}"], as_json=as_json)


@command(
    app,
    examples=[
        "millwheel remove zeitgeist count_searches --reason 'not used any more'",
    ],
)
def remove(
    pipeline: PipelineName,
    computations: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Computations or injectors to remove.")
    ],
    yes: Yes = False,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Delete computations and their state from a pipeline. It may keep running."""
    names = ", ".join(computations)
    with opened(common) as presence:
        what = f"{names} of pipeline {pipeline!r} in {presence.address.redacted()}"
        data = "its state, its timers and the records it has sent that are not processed yet"
        confirm(f"removing {what} deletes {data}", f"Remove {what} with {data}?", sure=yes)
        rows = administration.remove_computations(
            presence.url, pipeline, computations, actor=actor(change.reason)
        )
    lines = [
        f"removed {names} from {pipeline}: {rows:,} rows of state and timers",
        "next: start workers with code from which it is removed",
    ]
    result = {"pipeline": pipeline, "removed": computations, "rows": rows}
    print_result(result, lines, as_json=change.as_json)


@command(
    app,
    examples=[
        "millwheel stop",
        "millwheel stop .millwheel",
    ],
)
def stop(directory: StoreDirectory = None, *, common: CommonOptions) -> None:
    """Stop the embedded Postgres of a directory. Other processes may still use it."""
    directory = _existing(directory, common, "stop it there")
    stopped = embedded.stop(directory)
    tell(f"stopped the server of {directory}" if stopped else f"{directory}: no server is running")


@command(
    app,
    examples=[
        "millwheel url",
        "psql $(millwheel url)",
    ],
)
def url(directory: StoreDirectory = None, *, common: CommonOptions) -> None:
    """Print the URL of a directory's embedded Postgres. Give it to psql and other programs while
    the server runs."""
    directory = _existing(directory, common, "its URL is the one that you gave")
    found = embedded.status(directory).url
    if found is None:
        raise UsageError(
            f"{directory}: no server is running. It runs while a worker, or another command, uses "
            "the directory"
        )
    typer.echo(found)


def _existing(directory: Path | None, common: CommonOptions, instead: str) -> Path:
    if directory is not None and common.store is not None:
        raise UsageError("give the directory once: DIR or --store DIR")
    if directory is None:
        directory = common.address.directory
        if directory is None:
            raise UsageError(f"the store is a Postgres that millwheel did not start; {instead}")
    if embedded.status(directory).state == "absent":
        raise UsageError(f"there is no store in {directory}")
    return directory

"""``millwheel query``: queries of a pipeline that may be running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millwheel.cli.command import command, group
from millwheel.cli.fitted_tables import Fit, Styled, print_table
from millwheel.cli.opened_store import opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import ChangeOptions, CodeOptions, CommonOptions, Json, Yes
from millwheel.cli.printing import confirm, print_json, print_result, tell
from millwheel.cli.sql_files import text_of_file
from millwheel.core.quantities import count_of
from millwheel.store.console.administration import drop_query
from millwheel.store.console.migrate import require_version

if TYPE_CHECKING:
    from millwheel.services.live_queries import Loaded, PreparedQuery

LOADED_SECONDS = 30.0
"""Longest wait for workers; they look for changes every second."""

app = typer.Typer()
query = group(app, "query")

QueryFile = Annotated[Path, typer.Argument(metavar="FILE.sql", help="The statements of the query.")]
QueryName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the query.")]


@command(
    query,
    "submit",
    examples=[
        "millwheel query submit zeitgeist:pipeline trends.sql",
        "millwheel query submit zeitgeist:pipeline trends.sql --name trends_by_hour",
    ],
)
def submit(
    code: CodeOptions,
    file: QueryFile,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: the name of the file.")
    ] = None,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Add a query to a pipeline. Workers that run load it without a restart."""
    name = name or file.name.removesuffix(".sql")
    with _prepared(code, name, file, common, is_new=True) as (prepared, url):
        _carry_out(prepared, url, change)


@command(
    query,
    "replace",
    examples=[
        "millwheel query replace zeitgeist:pipeline trends trends.sql",
    ],
)
def replace(
    code: CodeOptions,
    name: QueryName,
    file: QueryFile,
    yes: Yes = False,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Give a query another text. State that fits it is kept."""
    with _prepared(code, name, file, common, is_new=False) as (prepared, url):
        if prepared.continued:
            kept = ", ".join(prepared.continued)
            tell(f"continue with their state: {kept}", err=change.as_json)
        if prepared.removed:
            gone = ", ".join(prepared.removed)
            data = "with their state, their timers and records that are on their way to them"
            tell(f"do not fit, and are removed {data}: {gone}", err=change.as_json)
            confirm(
                f"replacing query {name!r} removes {gone}, {data}",
                f"Remove {gone}, {data}?",
                sure=yes,
            )
        _carry_out(prepared, url, change)


@contextmanager
def _prepared(
    code: CodeOptions, name: str, file: Path, common: CommonOptions, *, is_new: bool
) -> Iterator[tuple[PreparedQuery, str]]:
    """A query that is compiled and compared, and the URL of the open store."""
    from millwheel.services.live_queries import prepare  # the engine: slow to import

    text = text_of_file(file)
    pipeline = code.load()
    with opened(common) as presence:
        require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
        yield prepare(pipeline, presence.url, name, text, is_new=is_new), presence.url


def _carry_out(prepared: PreparedQuery, url: str, change: ChangeOptions) -> None:
    from millwheel.services.live_queries import carry_out, wait_for_workers

    by, pipeline = actor(change.reason), prepared.queried.pipeline
    generation = carry_out(prepared, url, by=by.name, reason=by.reason)
    name, steps = prepared.step.query.name, prepared.step.steps
    done = "submitted" if prepared.is_new else "replaced"
    tell(
        f"{done} query {name} of pipeline {pipeline.name}: generation {generation}, steps "
        f"{', '.join(steps)}",
        err=change.as_json,
    )
    loaded = wait_for_workers(pipeline, url, generation, LOADED_SECONDS)
    result = {
        "pipeline": pipeline.name,
        "query": name,
        "outcome": done,
        "generation": generation,
        "steps": steps,
        "continued": prepared.continued,
        "removed": prepared.removed,
        "workers": loaded.workers,
        "loaded_by": loaded.have_it,
    }
    print_result(result, [_loaded_line(loaded)], as_json=change.as_json)


def _loaded_line(loaded: Loaded) -> str:
    if not loaded.workers:
        return "no worker is running: the next one that starts has it"
    if loaded.by_all:
        return f"loaded by {count_of(loaded.workers, 'worker')}"
    return (
        f"loaded by {loaded.have_it} of {count_of(loaded.workers, 'worker')}. The log of the "
        "others says why (queries_not_loaded); see also: millwheel query list"
    )


@command(
    query,
    "list",
    examples=[
        "millwheel query list zeitgeist:pipeline",
    ],
)
def list_queries(code: CodeOptions, as_json: Json = False, *, common: CommonOptions) -> None:
    """List the queries that were submitted to a pipeline."""
    from millwheel.services.live_queries import listed

    pipeline = code.load()
    with opened(common) as presence:
        require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
        found = listed(pipeline, presence.url)
    if as_json:
        print_json({"pipeline": pipeline.name, "queries": [_as_json(one) for one in found]})
    elif not found:
        tell(f"no query was submitted to pipeline {pipeline.name}")
    else:
        print_table(
            ["name", "state", "since", "by", "writes", "steps"],
            [
                [
                    one.query.name,
                    Styled(one.state, "good" if one.loaded.by_all else "warning"),
                    one.query.submitted_at[:19].replace("T", " "),
                    one.query.submitted_by, ", ".join(one.query.targets),
                    ", ".join(one.query.steps),
                ]
                for one in found
            ],
            Fit(("by", "since", "steps")),
        )  # fmt: skip


def _as_json(one: Any) -> dict[str, Any]:
    stored = one.query
    return {
        "name": stored.name,
        "state": one.state,
        "generation": stored.generation,
        "submitted_at": stored.submitted_at,
        "submitted_by": stored.submitted_by,
        "writes": stored.targets,
        "steps": stored.steps,
        "text": stored.text,
    }


@command(
    query,
    "explain",
    examples=[
        "millwheel query explain zeitgeist:pipeline trends",
    ],
)
def explain(code: CodeOptions, name: QueryName, *, common: CommonOptions) -> None:
    """Show the steps of a query: keys, windows, state and its bound, and when rows come out."""
    from millwheel.services.live_queries import explained_query

    pipeline = code.load()
    with opened(common) as presence:
        require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
        for line in explained_query(pipeline, presence.url, name):
            tell(line)


@command(
    query,
    "drop",
    examples=[
        "millwheel query drop zeitgeist:pipeline trends",
    ],
)
def drop(
    code: CodeOptions,
    name: QueryName,
    yes: Yes = False,
    *,
    change: ChangeOptions,
    common: CommonOptions,
) -> None:
    """Take a query away, with its state. Tables that it has written stay."""
    pipeline = code.load()
    with opened(common) as presence:
        require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
        data = "its state, its timers and records that are on their way in it"
        confirm(
            f"dropping query {name!r} deletes {data}",
            f"Drop query {name!r} with {data}?",
            sure=yes,
        )
        dropped = drop_query(presence.url, pipeline.name, name, actor=actor(change.reason))
    lines = [
        f"dropped query {name} of pipeline {pipeline.name}: {', '.join(dropped.steps)}",
        "tables that it has written stay, with their rows",
    ]
    result = {"pipeline": pipeline.name, "query": name, "steps": dropped.steps}
    print_result(result, lines, as_json=change.as_json)

"""``millwheel graph``."""

from __future__ import annotations

from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.options import CommonOptions, Json, Target
from millwheel.cli.printing import print_json
from millwheel.cli.sql_files import sources
from millwheel.cli.target import load_pipeline
from millwheel.errors import UsageError
from millwheel.graph import drawing
from millwheel.pipeline import Pipeline
from millwheel.store.console.migrate import require_version, schema_version

app = typer.Typer()


@command(
    app,
    examples=[
        "millwheel graph zeitgeist:pipeline",
        "millwheel graph zeitgeist:pipeline --mermaid  # for a page of documentation",
        "millwheel graph trends.sql --code  # the Python that queries became",
    ],
)
def graph(
    target: Target,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: Json = False,
    code: Annotated[
        bool, typer.Option("--code", help="Print the Python that queries became.")
    ] = False,
    on_spark: Annotated[
        bool, typer.Option("--spark", help="Print which queries run as Spark's SQL, and it.")
    ] = False,
    *,
    common: CommonOptions,
) -> None:
    """Check a pipeline's graph and print it. Nothing is started. With --store it has the queries
    that were submitted there."""
    if mermaid + as_json + code + on_spark > 1:
        raise UsageError("choose one of --mermaid, --json, --code and --spark")
    pipeline = load_pipeline(target)
    if common.store is not None:
        pipeline = _with_queries(pipeline, common)
    found = pipeline.graph()
    if code:
        for name, source in sources(pipeline).items():
            typer.echo(f"# {name}\n{source}")
    elif on_spark:
        from millwheel.spark.queries.query_plan import QueryPlan

        for line in QueryPlan.of(found).lines():
            typer.echo(line)
    elif as_json:
        print_json({"pipeline": found.name, **found.describe()})
    else:
        typer.echo(drawing.mermaid(found) if mermaid else drawing.text(found))


def _with_queries(pipeline: Pipeline, common: CommonOptions) -> Pipeline:
    from millwheel.services.live_queries import pipeline_with_queries  # the engine: slow to import

    with opened(common) as presence:
        if schema_version(presence.url, pipeline.name) is None:
            return pipeline
        require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
        return pipeline_with_queries(pipeline, presence.url)

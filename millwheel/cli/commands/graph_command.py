"""``millwheel graph``."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.options import CodeOptions, CommonOptions, Json, OptionGroup
from millwheel.cli.printing import print_json
from millwheel.cli.sql_files import sources
from millwheel.errors import UsageError
from millwheel.graph import drawing
from millwheel.graph.svg import svg
from millwheel.pipeline import Pipeline
from millwheel.store.console.migrate import require_version, schema_version

app = typer.Typer()


@dataclass(frozen=True)
class GraphForms(OptionGroup):
    """The forms other than text, of which a command takes one."""

    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False
    picture: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture to a file.")
    ] = None
    as_json: Json = False
    code: Annotated[bool, typer.Option("--code", help="Print the Python that queries became.")] = (
        False
    )
    on_spark: Annotated[
        bool, typer.Option("--spark", help="Print which queries run as Spark's SQL, and it.")
    ] = False


@command(
    app,
    examples=[
        "millwheel graph zeitgeist:pipeline",
        "millwheel graph zeitgeist:pipeline --svg zeitgeist.svg",
        "millwheel graph trends.sql --code  # the Python that queries became",
    ],
)
def graph(code: CodeOptions, forms: GraphForms, *, common: CommonOptions) -> None:
    """Check a pipeline's graph and print it. Nothing is started. With --store it has the queries
    that were submitted there."""
    if sum(form not in (False, None) for form in astuple(forms)) > 1:
        raise UsageError("choose one of --mermaid, --svg, --json, --code and --spark")
    pipeline = code.load()
    if common.store is not None:
        pipeline = _with_queries(pipeline, common)
    found = pipeline.graph()
    if forms.code:
        for name, source in sources(pipeline).items():
            typer.echo(f"# {name}\n{source}")
    elif forms.on_spark:
        from millwheel.spark.queries.query_plan import QueryPlan

        for line in QueryPlan.of(found).lines():
            typer.echo(line)
    elif forms.picture is not None:
        _write(forms.picture, svg(found))
    elif forms.as_json:
        print_json({"pipeline": found.name, **found.describe()})
    else:
        typer.echo(drawing.mermaid(found) if forms.mermaid else drawing.text(found))


def _write(path: Path, picture: str) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--svg {path}: the picture cannot be written: {error.strerror}"
        ) from error


def _with_queries(pipeline: Pipeline, common: CommonOptions) -> Pipeline:
    from millwheel.services.live_queries import pipeline_with_queries  # the engine: slow to import

    with opened(common) as presence:
        if schema_version(presence.url, pipeline.name) is None:
            return pipeline
        require_version(presence.url, pipeline.name, address=common.address, migrate_now=False)
        return pipeline_with_queries(pipeline, presence.url)

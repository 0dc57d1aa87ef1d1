"""A file of SQL as a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline

SUFFIX = ".sql"


def pipeline_of(path: Path) -> Pipeline:
    """The pipeline that a file defines; its name is that of the file.

    Raises:
        UsageError: the file cannot be read, or its name cannot name a pipeline.
        SqlError: a statement cannot be compiled.
    """
    text = text_of_file(path)
    name = path.name.removesuffix(SUFFIX)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(
            f"the file {path.name!r} cannot name a pipeline; use lower case, digits and "
            "underscores, with a letter first"
        )
    from millwheel.sql.adding import add_queries  # the compiler: slow to import

    pipeline = Pipeline(name)
    add_queries(pipeline, text, ())
    return pipeline


def text_of_file(path: Path) -> str:
    """`UsageError` if the file cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file {str(path)!r} cannot be read: {error}") from error


def sources(pipeline: Pipeline) -> dict[str, str]:
    """The Python that the queries of a pipeline became, by the names of their steps."""
    from millwheel.sql.steps import Loop, QueryJoin  # the compiler: slow to import

    return {
        name: node.computation.source
        for name, node in pipeline.nodes.items()
        if isinstance(node.computation, (Loop, QueryJoin))
    }

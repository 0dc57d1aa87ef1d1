"""How Spark's Python processes make a pipeline: from MODULE:PIPELINE, or from a text of SQL, which
travels with the query, since executors elsewhere do not have its file."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.sql.adding import add_queries

SUFFIX = ".sql"


def shipped_target(target: str) -> str:
    """MODULE:PIPELINE as it is; of a file of SQL, its name and its text, as JSON."""
    if not target.endswith(SUFFIX):
        return target
    path = Path(target)
    return json.dumps([path.name.removesuffix(SUFFIX), path.read_text("utf-8")])


def modules_of(target: str) -> list[str]:
    """The modules that a shipped target needs where tasks run."""
    return [] if _is_text(target) else [target.partition(":")[0]]


def pipeline_of_target(target: str) -> Pipeline:
    """Make the pipeline of a shipped target.

    Raises:
        UsageError: its module is not on this machine.
    """
    if _is_text(target):
        name, text = json.loads(target)
        pipeline = Pipeline(name)
        add_queries(pipeline, text, ())
        return pipeline
    module, _, name = target.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"there is no module {error.name!r} where Spark runs its tasks (needed for "
            f"{target!r}): install it there, or give it with --py-files"
        ) from error
    return found if isinstance(found, Pipeline) else found()


def _is_text(target: str) -> bool:
    return target.startswith("[")

"""``millwheel spark report``: run a function on a snapshot, with a local Spark session.

The import of the function and the snapshot come first, since they may fail. At the end, also after
an error, Ctrl-C or SIGTERM, Spark's jobs are cancelled, the session and its JVM are stopped, and
the snapshot is released.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from millwheel.core.modules import modules_beside
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import MillwheelError, UsageError, UserCodeError
from millwheel.spark.failures import error_text, user_error
from millwheel.spark.filters import Filter
from millwheel.spark.launch import Cluster, launched
from millwheel.spark.lookout import numbered_table
from millwheel.spark.snapshots import MOST_SECONDS, Snapshot, snapshot
from millwheel.spark.spark_stopping import Interruptible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT = Path("millwheel-output")


@dataclass(frozen=True)
class Job:
    """The argument of a job's function.

    ```python
    def busiest(job: Job) -> None:
        hours = job.table("airport_hour", columns=["origin", "flights"])
        hours.groupBy("origin").sum("flights").show()
    ```
    """

    spark: SparkSession
    output: Path
    """An existing directory."""
    snapshot: Snapshot
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further options for each read."""

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
    ) -> DataFrame:
        """A table or view of the pipeline, as of the job's snapshot.

        For large ones, name the `columns` and the rows you need: Postgres applies
        ``filters=[("origin", "=", "JFK")]``, whereas Spark applies a DataFrame's ``where`` after
        all rows have been read.

        Raises:
            UsageError: there is no such table or view; the message lists those that exist.
        """
        chosen = self.snapshot.options(name, columns=columns, filters=filters, with_store=False)
        return self.spark.read.format("millwheel").options(**chosen, **self.options).load()

    def stream(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
    ) -> DataFrame:
        """The values of a stream so far, as of the job's snapshot: the numbered table that they are
        written to.

        The columns have the types of the fields; `sender` and `sequence` give the order of the
        values of a key.

        Raises:
            UsageError: the stream is written to no numbered table, or to several.
        """
        return self.table(
            numbered_table(self.snapshot.store, self.snapshot.pipeline, name), columns, filters
        )


def run_job(
    target: str,
    store_url: str | None = None,
    pipeline: str | None = None,
    *,
    output: Path = OUTPUT,
    partitions: int | None = None,
    cluster: Cluster | None = None,
    snapshot_seconds: float | None = MOST_SECONDS,
    console: Console | None = None,
) -> None:
    """Run a function with a :class:`Job` on a pipeline's store.

    ```python
    from pathlib import Path

    run_job("report:busiest", "postgresql://app@db/shop", output=Path("report"))
    ```

    Args:
        target: the function, as "MODULE:FUNCTION".
        store_url: a postgresql:// URL; None: the value of MILLWHEEL_STORE.
        pipeline: the pipeline's name; None: the store's only pipeline.
        output: directory for the job's files; it is created.
        cluster: where Spark runs; None: here, with two cores.
        snapshot_seconds: longest time for which the snapshot is held; None: there is no limit.
        console: where progress is shown; None: standard error.

    Raises:
        UsageError: the target is wrong, or a table is missing.
        UserCodeError: the function raised an error.
        SystemExit: code 143, after SIGTERM.
        KeyboardInterrupt: after Ctrl-C.
    """
    cluster = cluster or Cluster()
    function = load_function(target)
    with (
        Interruptible() as interruptible,
        snapshot(store_url, pipeline, most_seconds=snapshot_seconds) as held,
    ):
        output.mkdir(parents=True, exist_ok=True)
        modules = [target.partition(":")[0]]
        with launched(cluster, held.store, interruptible, console, modules=modules) as (
            spark,
            options,
        ):
            if partitions is not None:
                options["partitions"] = str(partitions)
            with user_error(target):
                function(Job(spark, output, held, options))


def load_function(target: str) -> Callable[[Job], object]:
    """Import MODULE:FUNCTION, also from the current directory.

    `UsageError` if it does not exist, `UserCodeError` if importing the module failed.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{target!r} is not of the form MODULE:FUNCTION, as in jobs.report:report")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            message = (
                f"there is no module {missing!r} here or among the installed packages (needed for "
                f"{target!r})"
            )
            raise UsageError(with_suggestion(message, missing, modules_beside(missing))) from error
        raise UsageError(f"{module_name} needs {missing!r}, which is not installed") from error
    except MillwheelError:
        raise
    except Exception as error:
        raise UserCodeError(f"importing {module_name} failed: {error_text(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        offered = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        message = f"{module_name} has no function {name!r}; it has: {', '.join(offered) or 'none'}"
        raise UsageError(with_suggestion(message, name, offered))
    return function  # type: ignore[no-any-return] # its signature is not checked

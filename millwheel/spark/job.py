"""``millwheel spark MODULE:FUNCTION``: run a function on a snapshot, with a local Spark session.

The steps: import the function, take the snapshot (both fail early), find Java, start a local session,
run the function. At the end, also after an error, Ctrl-C or SIGTERM, its Spark jobs are cancelled, the
session and its JVM are stopped, and the snapshot is released.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from millwheel import errors
from millwheel.errors import MillwheelError, UsageError, UserCodeError
from millwheel.spark.filters import Filter
from millwheel.spark.interruption import Interruptible
from millwheel.spark.progress import watching
from millwheel.spark.registration import register
from millwheel.spark.session import DRIVER_MEMORY, MASTER, session
from millwheel.spark.snapshots import Snapshot, snapshot
from millwheel.store.address import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT = Path("millwheel-output")
PACKAGES = ("pyspark", "pandas", "pyarrow")


@dataclass(frozen=True)
class Job:
    """The argument of a job's function."""

    spark: SparkSession
    output: Path
    """An existing directory for the job's output files."""
    snapshot: Snapshot
    """The snapshot on which this job reads all tables."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further options for each read."""

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filters: Iterable[Filter] | None = None,
    ) -> DataFrame:
        """Return a table or view of the pipeline, as of the job's snapshot.

        For large ones, name the `columns` and the rows you need: Postgres applies
        ``filters=[("origin", "=", "JFK")]``, whereas Spark applies a DataFrame's ``where`` after all
        rows have been read.

        Raises:
            UsageError: there is no such table or view; the message lists those that exist.
        """
        chosen = self.snapshot.options(name, columns=columns, filters=filters, with_store=False)
        return self.spark.read.format("millwheel").options(**chosen, **self.options).load()


def run_job(
    target: str,
    store_url: str | None = None,
    pipeline: str | None = None,
    *,
    output: Path = OUTPUT,
    partitions: int | None = None,
    master: str = MASTER,
    driver_memory: str = DRIVER_MEMORY,
    config: Mapping[str, str] | None = None,
    console: Console | None = None,
) -> None:
    """Run a function with a :class:`Job` on a pipeline's store.

    Args:
        target: the function, as "MODULE:FUNCTION".
        store_url: a postgresql:// URL; None: the value of MILLWHEEL_STORE.
        pipeline: the pipeline's name; None: the store's only pipeline.
        output: directory for the job's files; it is created.
        console: where progress is shown; None: standard error.

    Raises:
        UsageError: the target is wrong, or a package or table is missing.
        UserCodeError: the function raised an error.
        SystemExit: code 143, after SIGTERM.
        KeyboardInterrupt: after Ctrl-C.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed: pip install 'millwheel[spark]'")
    function = load_function(target)
    with Interruptible() as interruptible, snapshot(store_url, pipeline) as held:
        from millwheel.java import prepare_environment

        prepare_environment()
        output.mkdir(parents=True, exist_ok=True)
        # Local workers inherit the store in the environment, which no plan or log shows.
        local = master.startswith("local")
        options = {} if local else {"store": held.store}
        if partitions is not None:
            options["partitions"] = str(partitions)
        with session(
            master=master,
            driver_memory=driver_memory,
            environment={VARIABLE: held.store},
            config=config,
            launched=lambda jvm: interruptible.cancel_by(jvm.terminate),
        ) as spark:
            register(spark)
            interruptible.cancel_by(spark.sparkContext.cancelAllJobs)
            try:
                with watching(spark, console):
                    _call(function, Job(spark, output, held, options), target)
            finally:
                interruptible.close()


def load_function(target: str) -> Callable[[Job], object]:
    """Import MODULE:FUNCTION, also from the current directory.

    Raises:
        UsageError: there is no such module or function.
        UserCodeError: importing the module failed.
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
            raise UsageError(
                f"there is no module {missing!r} here or among the installed packages (needed for "
                f"{target!r})"
            ) from error
        raise UsageError(f"{module_name} needs {missing!r}, which is not installed") from error
    except MillwheelError:
        raise
    except Exception as error:
        raise UserCodeError(f"importing {module_name} failed: {_error_text(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        offered = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise UsageError(
            f"{module_name} has no function {name!r}; it has: {', '.join(offered) or 'none'}"
        )
    return function  # type: ignore[no-any-return] # its signature is not checked


def _call(function: Callable[[Job], object], job: Job, target: str) -> None:
    try:
        function(job)
    except MillwheelError:
        raise
    except Exception as error:
        failure = UserCodeError(f"{target} failed: {_error_text(error)}")
        raise _from_worker(error) or failure from error


def _from_worker(error: Exception) -> MillwheelError | None:
    """Recover the millwheel error that ended a Spark worker from the text of Spark's error."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    found = re.search(r"^millwheel\.errors\.(\w+): (.+)", _text(error), re.MULTILINE | re.DOTALL)
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, MillwheelError)):
        return None
    message = re.split(r"\n\s*(?:at |SQLSTATE|JVM stacktrace)", found[2])[0]
    return kind(message.strip())


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {_text(error)}"


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # py4j asks the JVM for the text, and the JVM may be gone
        return "the JVM ended before it could report the error"

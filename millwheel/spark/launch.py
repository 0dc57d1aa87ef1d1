"""A Spark session for a command: local, on a cluster, or by Spark Connect."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from millwheel.spark.local_session import MASTER, session
from millwheel.spark.packages import CONNECT_PACKAGES, require_packages
from millwheel.spark.registration import register
from millwheel.spark.shipping import top_level, zipped
from millwheel.spark.spark_stopping import Interruptible
from millwheel.spark.stage_bars import watching
from millwheel.store.address import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "PYSPARK_PYTHON"


@dataclass(frozen=True)
class Cluster:
    master: str = MASTER
    remote: str | None = None
    """The address of a Spark Connect server, sc://HOST:PORT, in place of a master."""
    config: Mapping[str, str] = field(default_factory=dict)
    py_files: Sequence[str] = ()
    """Python files and zip files for executors, besides the user's package."""

    def __post_init__(self) -> None:
        if self.remote is not None:
            require_packages(CONNECT_PACKAGES, extra="connect")

    @property
    def is_local(self) -> bool:
        """Whether tasks run on this machine and have its environment."""
        return self.remote is None and self.master.startswith("local")


@contextmanager
def launched(
    cluster: Cluster,
    store: str,
    interruptible: Interruptible,
    console: Console | None = None,
    *,
    modules: Iterable[str] = (),
    shows_stages: bool = True,
) -> Iterator[tuple[SparkSession, dict[str, str]]]:
    """Start Spark, and stop it at the end of the block.

    Args:
        store: the store's URL, for Spark's tasks.
        interruptible: gets the function that cancels Spark's work at a signal.
        modules: names of the modules with the user's code, which executors elsewhere get.

    Returns:
        The session, and options for each read and write: tasks elsewhere need the store's URL in
        them. Local ones have it in their environment, which no plan or log shows.
    """
    if cluster.remote is not None:
        with _connected(cluster, interruptible) as spark, shipped(spark, cluster, modules):
            yield spark, {"store": store}
        return
    from millwheel.spark.java import prepare_environment

    environment = {VARIABLE: store} | ({} if cluster.is_local else {PYTHON: _python(cluster)})
    prepare_environment()
    with session(
        master=cluster.master,
        environment=environment,
        config=cluster.config,
        launched=lambda jvm: interruptible.cancel_by(jvm.terminate),
    ) as spark:
        register(spark)
        interruptible.cancel_by(spark.sparkContext.cancelAllJobs)
        try:
            with (
                watching(spark, console) if shows_stages else nullcontext(),
                shipped(spark, cluster, modules),
            ):
                yield spark, {} if cluster.is_local else {"store": store}
        finally:
            interruptible.close()


def _python(cluster: Cluster) -> str:
    """A path, or a name to find on the PATH of executors elsewhere. Spark plans reads here with it,
    too."""
    return cluster.config.get("spark.pyspark.python") or os.environ.get(PYTHON) or sys.executable


@contextmanager
def shipped(spark: SparkSession, cluster: Cluster, modules: Iterable[str]) -> Iterator[None]:
    if cluster.is_local:
        yield
        return
    with TemporaryDirectory(prefix="millwheel-code-") as directory:
        code = {top for name in modules if (top := top_level(name)) is not None}
        files = [str(zipped(top, Path(directory))) for top in code]
        for file in (*files, *cluster.py_files):
            if cluster.remote is None:
                spark.sparkContext.addPyFile(file)
            else:
                spark.addArtifacts(file, pyfile=True)
        yield


@contextmanager
def _connected(cluster: Cluster, interruptible: Interruptible) -> Iterator[SparkSession]:
    """A session of a Spark Connect server, on which millwheel must be installed."""
    from pyspark.sql import SparkSession

    assert cluster.remote is not None
    builder = SparkSession.builder.remote(cluster.remote).config(
        "spark.sql.session.timeZone", "UTC"
    )
    for name, value in cluster.config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    interruptible.cancel_by(spark.interruptAll)
    try:
        register(spark)
        yield spark
    finally:
        interruptible.close()
        spark.stop()

"""Read a pipeline's tables and views in PySpark, as of one moment, or follow a table as it grows.

::

    from millwheel.spark import register, snapshot

    register(spark)
    with snapshot("postgresql://…", "flights") as held:
        hours = spark.read.format("millwheel").options(**held.options("airport_hour")).load()
        hours.groupBy("origin").sum("flights").show()

``millwheel spark report MODULE:FUNCTION`` (:func:`run_job`) does all of this: it finds Java, starts
a local session, takes the snapshot, shows progress and cleans up. The function gets a :class:`Job`.

All reads of one snapshot are of one moment, although workers keep committing.

================  =================================================================
``source``        the Python Data Source: where its code runs; why no push-down
``following``     the same for ``readStream``: the new rows of a numbered table
``aggregation``   keeping aggregates up to date, a batch at a time
``engine``        a whole pipeline as a streaming query, and moving it there and back
``sending``       the same for ``write``: rows that become records of a stream
``groups``        groups of rows, found, read and replaced
``staging``       the table that Spark's tasks write a result to
``lookout``       how far a numbered table is written
``reading``       rows as Arrow batches, in Spark's tasks
``snapshots``     the process that holds the snapshot, and for how long
``relation``      Postgres types to Spark types
``query``         one share's SELECT: columns, filters, bounds
``session``       Java and a local Spark session
``launch``        a session for a command: local, on a cluster, by Connect
``shipping``      the user's code, for executors that do not have it
``fitting``       whether columns fit the records of a stream
``failures``      errors of the user's code, without Spark's lines
================  =================================================================

Importing any module of this package without PySpark is an error with the command that installs it.
"""

from typing import TYPE_CHECKING

from millwheel.core.lazy import imported_when_used
from millwheel.spark.packages import require_packages

if TYPE_CHECKING:
    from millwheel.spark.job import Job, run_job
    from millwheel.spark.registration import register
    from millwheel.spark.snapshots import Snapshot, snapshot

__all__ = ["Job", "Snapshot", "register", "run_job", "snapshot"]

require_packages()

_PLACES = {
    "Job": "job",
    "Snapshot": "snapshots",
    "register": "registration",
    "run_job": "job",
    "snapshot": "snapshots",
}

__getattr__ = imported_when_used(__name__, _PLACES)

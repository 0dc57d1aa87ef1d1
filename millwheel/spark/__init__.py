"""Downstream PySpark: read a pipeline's tables and views, all of one moment.

::

    from millwheel.spark import register, snapshot

    register(spark)
    with snapshot("postgresql://…", "flights") as held:
        hours = spark.read.format("millwheel").options(**held.options("airport_hour")).load()
        hours.groupBy("origin").sum("flights").show()

``millwheel spark MODULE:FUNCTION`` (:func:`run_job`) does this and the rest: Java, a local
session, the snapshot, progress, a clean end. The function gets a :class:`Job`.

Reads of one snapshot are consistent with each other, whatever their number: states, timers
and the user's own tables are those of one moment, although workers go on committing.

================  =================================================================
``source``        the Python Data Source: where its code runs; why no push-down
``snapshots``     who holds the snapshot, and for how long
``relation``      Postgres types to Spark types
``query``         one share's SELECT: columns, filters, bounds
``filters``       which rows are read at all
``connection``    how all of them reach the store
``session``       Java and a local Spark session
``interruption``  Ctrl-C and SIGTERM
``progress``      the bar, or log lines
``job``           :func:`run_job`
================  =================================================================

Importing this package needs no PySpark; registering and running do.
"""

from millwheel.spark.job import Job, run_job
from millwheel.spark.snapshots import Snapshot, register, snapshot

__all__ = ["Job", "Snapshot", "register", "run_job", "snapshot"]

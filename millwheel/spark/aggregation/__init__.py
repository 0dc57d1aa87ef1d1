"""Keeping aggregates up to date: the loop behind ``millwheel spark aggregate`` (decision 54).

A batch::

    new rows of the followed table ──Postgres──▶ which groups they belong to
    tables to read, at one snapshot ──Spark──▶ rows of these groups ──the user's function──▶ result
    result ──tasks──▶ staging table ──one transaction──▶ groups replaced, vector stored

The vector of rows read is stored in the transaction of the result, so a batch counts once, whatever
is killed. Files are replaced before it; a batch that is repeated replaces them again.

==============  =================================================================
``following``   which groups have changed
``progress``    the stored vector, which only one process advances
``tables``      replacing groups of a table
``files``       replacing groups of Parquet files
``loop``        one batch, and all of them
``running``     the command: Spark, locks, and its display
==============  =================================================================
"""

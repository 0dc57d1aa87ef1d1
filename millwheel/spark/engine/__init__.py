"""``millwheel spark run``: a pipeline, its classes unchanged, as a streaming query of
Spark (decision 55).

=================  =============================================================
``plan``           the steps of a pipeline and their levels, made in each process
``refusals``       the parts of a pipeline that cannot run on Spark, with reasons
``stream_rows``    the rows between operators
``input``          the sources, with the promised low watermark
``buckets``        the keys of a step as Spark keeps them
``key_run``        the records and timers of one key in one batch
``operator``       one level of the graph as a stateful operator
``result_writer``  the rows of the sinks, into a staging table
``staged_results`` the rows of the sinks, in one transaction a batch
``query_progress`` the query in the store: its last batch
``query``          the query, put together
``running``        the command
``moving``         to Spark and back: the part of the store
``returning``      back from a checkpoint
``moved_keys``     states and timers as rows of the store, and as parts of buckets
=================  =============================================================
"""

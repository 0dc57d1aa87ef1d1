"""``millwheel spark run``: a pipeline, its classes unchanged, as a streaming query of
Spark (decision 55).

============  ==================================================================
``plan``      the steps of a pipeline and their levels, made in each process
``refusals``  the parts of a pipeline that cannot run on Spark, each with the reason
``rows``      the rows between operators
``input``     the sources, with the promised low watermark
``key_run``   the records and timers of one key in one batch
``operator``  one level of the graph as a stateful operator
``output``    the rows of the sinks, in one transaction a batch
``progress``  the query in the store: its last batch
``query``     the query, put together
``running``   the command
============  ==================================================================
"""

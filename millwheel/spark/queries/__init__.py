"""Queries as Spark's own SQL, where that means the same as in Postgres.

A registry names the signatures of Postgres for which Spark has an expression with the same value
for all values (`equivalents`). A step with anything else runs as the class that it was compiled to.
Nothing here needs Spark but `frames`.
"""

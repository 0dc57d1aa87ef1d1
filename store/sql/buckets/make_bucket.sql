-- Makes the tables of a bucket whose row was written in the same transaction.
SELECT {make_bucket}(%(id)s)

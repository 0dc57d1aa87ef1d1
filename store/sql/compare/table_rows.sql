-- The rows of a page of one table; their columns have numbers for names.
SELECT true AS is_there, {columns} FROM {table} AS t WHERE {page}

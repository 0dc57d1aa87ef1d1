-- Until the end of the transaction, unqualified names mean those of the schema.
SET LOCAL search_path = {schema}

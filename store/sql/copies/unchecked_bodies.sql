-- Until the end of the transaction, bodies of functions may name tables that are made later.
SET LOCAL check_function_bodies = off

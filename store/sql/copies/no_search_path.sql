-- Until the end of the transaction, names in definitions have their schemas.
SET LOCAL search_path = ''

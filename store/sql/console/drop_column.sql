-- A column that neither the deployed code nor any that may still run has.
ALTER TABLE {table} DROP COLUMN IF EXISTS {column}

-- The number of the newest generation.
SELECT max(number) FROM {generation}

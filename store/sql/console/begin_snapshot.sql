-- All statements until the end of the transaction read the same snapshot, which the first query takes.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- A view of one computation's state that is no longer wanted, or must be made again.
DROP VIEW {view}

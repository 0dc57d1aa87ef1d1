-- A view that is about to be made again, with the views on top of it.
DROP VIEW IF EXISTS {view} CASCADE

-- Requests to the origin are carried out by the origin's workers.
DELETE FROM {request} WHERE outcome IS NULL

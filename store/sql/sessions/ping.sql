-- Does nothing: the server answers.
SELECT 1

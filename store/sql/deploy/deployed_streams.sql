-- The streams of the deployed graph.
SELECT id, name FROM {stream}

-- The streams of the deployed graph.
SELECT id, name, version, type::text FROM {stream}

-- The nodes of the deployed graph.
SELECT id, name, kind, version, state::text FROM {computation}

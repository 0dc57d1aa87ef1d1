-- The steps that have keys: those of the graph, in its order, and then the relays.
SELECT c.id, c.name FROM {computation} AS c WHERE c.removed_at IS NULL AND c.kind <> 'injector' ORDER BY c.kind, c.id

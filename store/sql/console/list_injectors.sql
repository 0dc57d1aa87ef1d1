-- The injectors of the deployed graph, in its order.
SELECT name FROM {computation} WHERE kind = 'injector' ORDER BY id

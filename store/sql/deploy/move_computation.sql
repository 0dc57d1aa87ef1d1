-- Updates a node that was deployed before.
UPDATE {computation} SET version = %(version)s, state = %(state)s, upstream = %(upstream)s
WHERE name = %(name)s

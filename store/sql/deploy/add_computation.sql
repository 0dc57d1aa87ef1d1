-- A node that the deployed graph did not have.
INSERT INTO {computation} (name, kind, version, state, upstream, paused)
VALUES (%(name)s, %(kind)s, %(version)s, %(state)s, %(upstream)s, false)
RETURNING id

-- A stream that the deployed graph did not have.
INSERT INTO {stream} (name, version, type) VALUES (%(name)s, %(version)s, %(type)s)

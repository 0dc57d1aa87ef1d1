-- Keeps the secret of the workers from a role.
REVOKE ALL ON {peer_secret} FROM {role}

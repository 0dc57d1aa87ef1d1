-- The secret that workers prove to each other; no row before the first worker.
SELECT secret FROM {peer_secret}

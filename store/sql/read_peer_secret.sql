-- What the pipeline's workers prove to each other that they know; no row before the first worker.
SELECT secret FROM {peer_secret}
